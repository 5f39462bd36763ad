"""What a simulation assumes beside jobs and devices: speeds, slowdowns, costs of stopping, and failures."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_flows.cli.errors import BadInput
from gpu_flows.cli.options import parse_assignments
from gpu_flows.cli.simulation.options import SimulationOptions
from gpu_flows.cli.simulation.policy_choices import split_at_commas
from gpu_flows.schedulers.model import Node, all_devices
from gpu_flows.schedulers.network.base import NetworkModel
from gpu_flows.schedulers.network.tables import load_network
from gpu_flows.schedulers.network.tiers import Tiers
from gpu_flows.schedulers.prediction.gavel_pairs import gavel_pairs
from gpu_flows.schedulers.prediction.interference import Interference
from gpu_flows.schedulers.simulation.conditions import Conditions
from gpu_flows.schedulers.simulation.profiles import SCHEDULEARN, Profile
from gpu_flows.schedulers.traces import formats
from gpu_flows.schedulers.traces.gavel import Throughputs, throughputs

MEASURED = "gavel"  # the slowdowns that Gavel measured


def read_world(options: SimulationOptions, nodes: Sequence[Node]) -> Conditions:
    """The simulator's assumptions, as the options state them. Raises BadInput."""
    checkpoint_s, restart_s, migration_s = _read_costs(options)
    return Conditions(
        profile=_read_profile(options, nodes),
        network=_read_network(options),
        interference=0.0 if options.interference == MEASURED else _parse_interference(options.interference),
        pairs=Interference(gavel_pairs()) if options.interference == MEASURED else None,
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        migration_s=migration_s,
        checkpoint_every_s=options.checkpoint_every,
        node_mtbf_s=3600 * options.node_mtbf_hours,
        device_mtbf_s=3600 * options.device_mtbf_hours,
        repair_s=3600 * options.repair_hours,
        seed=options.seed,
    )


def _parse_interference(text: str) -> float:
    try:
        slowdown = float(text)
    except ValueError:
        slowdown = -1.0
    if not 0 <= slowdown < float("inf"):
        raise BadInput(
            f"--interference {text!r} is neither a number of at least 0, such as 0.3, nor {MEASURED}."
        )
    return slowdown


def is_profile_file(profile: str) -> bool:
    return profile not in ("none", "schedulearn")


def _read_costs(options: SimulationOptions) -> tuple[float, float, float]:
    """The seconds of a checkpoint, a restart and a migration: as given, or else as recorded."""
    given = options.checkpoint_seconds, options.restart_seconds, options.migration_seconds
    if options.costs is None:
        return given
    from gpu_flows.analytics.recorded_trace import load_costs

    recorded = load_costs(options.costs)
    checkpoint_s, restart_s, migration_s = given
    return (
        checkpoint_s or recorded.checkpoint_s,
        restart_s or recorded.restart_s,
        migration_s or recorded.migration_s,
    )


def _read_network(options: SimulationOptions) -> NetworkModel | None:
    """The network that the options name: a table, or factors for tiers."""
    kinds = _read_slowdowns(options.profile)
    if not options.network:
        if options.congestion is not None:
            raise BadInput("--congestion is about a network; name one with --network.")
        return _parse_tiers(options.tier_slowdown, kinds) if options.tier_slowdown or kinds else None
    if options.tier_slowdown or kinds:
        given = "--tier-slowdown" if options.tier_slowdown else f"the slowdowns of profile {options.profile}"
        raise BadInput(f"--network says how much jobs are slowed down across nodes; leave out {given}.")
    return load_network(options.network, options.congestion or 1.0)


def _parse_tiers(text: str, kinds: dict[str, tuple[float, float]]) -> Tiers:
    try:
        slowdowns = [float(number) for number in text.split(",")] if text else [1.0, 1.0]
    except ValueError:
        slowdowns = []
    if len(slowdowns) != 2 or not all(1 <= slowdown < float("inf") for slowdown in slowdowns):
        raise BadInput(f"--tier-slowdown {text!r} is not two numbers of at least 1, such as 1.2,1.5.")
    nodes, racks = slowdowns
    return Tiers(nodes, racks, kinds)


def _read_slowdowns(profile: str) -> dict[str, tuple[float, float]]:
    """The slowdown across nodes and across racks for each kind of job that a profile's file lists."""
    if not is_profile_file(profile):
        return {}
    try:
        found = json.loads(Path(profile).read_text(encoding="utf-8")).get("slowdown", {})
        return {str(kind): (float(nodes), float(racks)) for kind, (nodes, racks) in found.items()}
    except (ValueError, TypeError, AttributeError):
        raise BadInput(
            f"The slowdowns in profile {profile} have the wrong form.",
            'Write {"slowdown": {KIND: [ACROSS_NODES, ACROSS_RACKS]}}.',
        ) from None


def _read_profile(options: SimulationOptions, nodes: Sequence[Node]) -> Profile:
    if not is_profile_file(options.profile):
        return SCHEDULEARN if options.profile == "schedulearn" else Profile()
    spellings = {device.model.lower(): device.model for device in all_devices(nodes)}

    def spell(model: str) -> str:
        """The model's name as the cluster spells it. A table may have models that the cluster lacks."""
        return spellings.get(model.lower(), model.lower())

    path = Path(options.profile)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        is_ours = "throughput" in content
        read = _parse_table(content["throughput"]) if is_ours else throughputs(content)
        table = {(kind, spell(model)): row for (kind, model), row in read.items()}
        reference = spell(content.get("reference", "") if is_ours else _find_gavel_reference(options.format))
    except OSError as error:
        raise BadInput(
            f"Profile {path} cannot be read: {error.strerror}.", "Or: none, schedulearn."
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError, SyntaxError):
        raise BadInput(
            f"Profile {path} is not a table of throughputs.",
            'Write {"reference": MODEL, "throughput": {KIND: {MODEL: {GPUS: RATE}}}}, or use Gavel\'s.',
        ) from None
    if reference not in {model for _, model in table}:
        raise BadInput(f"Profile {path} has no speeds for {reference!r}, the model that durations refer to.")
    return Profile(table, reference)


def _parse_table(content: Mapping[str, Any]) -> Throughputs:
    return {
        (kind, model): {int(gpus): float(rate) for gpus, rate in row.items()}
        for kind, models in content.items()
        for model, row in models.items()
    }


def _find_gavel_reference(format: str) -> str:
    written = parse_assignments(split_at_commas(format.partition(":")[2]), "--format", str)
    return written.get("reference", str(formats()["gavel"].Options.model_fields["reference"].default))

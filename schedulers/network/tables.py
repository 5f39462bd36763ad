"""Reads the figures of a network: the shipped tables by name, or a YAML file with the same fields.

    name: ours
    tiers:
      node: {gbytes_per_s: 130, latency_us: 5, collective: ring}
      rack: {gbytes_per_s: 12.5, latency_us: 15, collective: tree}
      cluster: {gbytes_per_s: 6, latency_us: 30, collective: tree, capacity_gbytes_per_s: 25}
    uneven: fullest
    contention: true
    default_model: resnet50
    models:
      resnet50: {gradient_mb: 102.2, messages: 5, compute_ms: 200, overlap: 0.6, names: [resnet]}

Only the tiers are required: `models` adds to those of the table `realistic`, and replaces them where the name
is the same. The fields are explained in `Network`, `Link` and `TrainedModel`. Their bounds are far beyond any
network, and keep the times that are computed from them finite.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gpu_flows.common.suggestions import did_you_mean
from gpu_flows.common.validation import explain
from gpu_flows.common.yaml_files import read_yaml
from gpu_flows.schedulers.network.collectives import Collective, Link
from gpu_flows.schedulers.network.models import Models, TrainedModel, simplify
from gpu_flows.schedulers.network.network import Network, Uneven

SHIPPED = ("realistic", "dally")
REALISTIC = "realistic"
LEAST, MOST = 1e-6, 1e9  # of the figures in a table
MOST_CONGESTION = 1e6


class _Link(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    gbytes_per_s: float = Field(ge=LEAST, le=MOST)
    latency_us: float = Field(ge=0, le=MOST)
    collective: Collective = "ring"
    capacity_gbytes_per_s: float = Field(default=0.0, ge=0, le=MOST)
    source: str = ""

    def build(self) -> Link:
        capacity = max(self.capacity_gbytes_per_s, self.gbytes_per_s)
        return Link(self.gbytes_per_s * 1e9, self.latency_us * 1e-6, self.collective, capacity * 1e9)


class _Tiers(BaseModel):
    model_config = ConfigDict(extra="forbid")
    node: _Link
    rack: _Link
    cluster: _Link


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    gradient_mb: float = Field(ge=0, le=MOST)
    messages: int = Field(ge=1, le=MOST)
    compute_ms: float = Field(ge=LEAST, le=MOST)
    overlap: float = Field(ge=0, le=1)
    names: tuple[str, ...] = ()
    source: str = ""

    def build(self, name: str) -> TrainedModel:
        return TrainedModel(
            name, self.gradient_mb * 1e6, self.messages, self.compute_ms * 1e-3, self.overlap, self.source
        )


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = ""
    source: str = ""
    caveat: str = ""
    tiers: _Tiers
    uneven: Uneven = "fullest"
    contention: bool = True
    default_model: str = ""
    models: dict[str, _Model] = Field(default_factory=dict)


def load_network(name: str, congestion: float = 1.0) -> Network:
    """Return the network of a shipped table or of a YAML file. Raises ValueError."""
    if not 1 <= congestion <= MOST_CONGESTION:
        raise ValueError(
            f"A congestion of {congestion:g} is not a number from 1, which means no traffic of others, to "
            f"{MOST_CONGESTION:,.0f}."
        )
    network = _load_shipped(name) if name in SHIPPED else _load_file(name)
    return replace(network, congestion=congestion)


@cache
def _load_shipped(name: str) -> Network:
    import yaml

    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return _build(_Table.model_validate(yaml.safe_load(text)), name, None)


def _load_file(name: str) -> Network:
    path = Path(name)
    if path.suffix.lower() not in (".yaml", ".yml"):
        what = [f"There is no network table {name!r}.", did_you_mean(name, SHIPPED)]
        what.append(f"Shipped are {', '.join(SHIPPED)}; a table of your own is a YAML file (.yaml or .yml).")
        raise ValueError(" ".join(filter(None, what)))
    content = read_yaml(path, "Network table")
    try:
        table = _Table.model_validate(content)
        return _build(table, table.name or path.stem, _load_shipped(REALISTIC).models)
    except ValidationError as error:
        raise ValueError(f"Network table {path}: {explain(error, 'the table')}.") from None


def _build(table: _Table, name: str, base: Models | None) -> Network:
    own = {model: entry.build(model) for model, entry in table.models.items()}
    models = {**(base.models if base else {}), **own}
    names = dict(base.names) if base else {}
    for model, entry in table.models.items():
        names.update({plain: model for plain in map(simplify, (model, *entry.names)) if plain})
    default = table.default_model or (base.default if base else next(iter(models), ""))
    if default not in models:
        raise ValueError(
            f"Network table {name}: default_model: there is no model {default!r}. "
            f"{did_you_mean(default, models)}".rstrip()
        )
    return Network(
        name,
        table.tiers.node.build(),
        table.tiers.rack.build(),
        table.tiers.cluster.build(),
        Models(models, names, default),
        table.uneven,
        table.contention,
        source=table.source,
        caveat=table.caveat,
    )

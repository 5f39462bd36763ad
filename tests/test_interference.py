"""How much longer jobs take because they share a device: measured, predicted and learned."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_flows.schedulers.model import Job
from gpu_flows.schedulers.prediction.colocated_runs import Run, learn_from_runs
from gpu_flows.schedulers.prediction.gavel_pairs import gavel_pairs, gavel_slowdown
from gpu_flows.schedulers.prediction.interference import Interference, PairExcess


def product(sensitivity: dict[str, float], pressure: dict[str, float]) -> list[PairExcess]:
    """Return pairs in which every excess, plus 0.1, is a product."""
    return [
        PairExcess("v100", kind, beside, a * b - 0.1)
        for kind, a in sensitivity.items()
        for beside, b in pressure.items()
    ]


FACTORS = {"tame": 0.5, "usual": 1.0, "wild": 1.5, "other": 0.8}


def test_a_measured_pair_is_taken_as_it_is_on_its_gpu_model() -> None:
    known = Interference([PairExcess("v100", "a", "b", 0.4), PairExcess("k80", "a", "b", 1.2)])
    assert known.slowdown("a", ("b",), "Tesla V100-SXM2") == pytest.approx(1.4)
    assert known.slowdown("a", ("b",), "K80") == pytest.approx(2.2)


@pytest.mark.parametrize(("smaller", "larger"), [("A10", "A100-SXM4-80GB"), ("L4", "L40S")])
def test_a_gpu_model_whose_name_begins_like_another_is_not_taken_for_it(smaller: str, larger: str) -> None:
    known = Interference()
    known.learn("a", ["b"], f"NVIDIA {smaller}", 1.2)
    known.learn("a", ["b"], f"NVIDIA {larger}", 2.0)
    assert known.slowdown("a", ("b",), smaller) == pytest.approx(1.2)
    assert known.slowdown("a", ("b",), larger.partition("-")[0]) == pytest.approx(2.0)
    assert len(known.pairs()) == 2


def test_on_an_unmeasured_gpu_model_a_pair_has_its_mean() -> None:
    known = Interference([PairExcess("v100", "a", "b", 0.4), PairExcess("k80", "a", "b", 1.2)])
    assert known.slowdown("a", ("b",), "A100") == pytest.approx(1.8)


def test_an_unmeasured_pair_is_predicted_by_sensitivity_and_pressure() -> None:
    pairs = [pair for pair in product(FACTORS, FACTORS) if (pair.kind, pair.beside) != ("wild", "tame")]
    found = Interference(pairs).slowdown("wild", ("tame",), "v100")
    assert found == pytest.approx(1 + 1.5 * 0.5 - 0.1, rel=0.08)


def test_unknown_kinds_are_like_their_family_or_like_the_usual_kind() -> None:
    known = Interference(product({"ResNet-50 (batch size 16)": 2.0, "a": 0.5}, {"a": 1.0, "b": 1.0}))
    heavy, light = (known.slowdown(kind, ("b",), "v100") for kind in ("resnet50", "a"))
    assert light < known.slowdown("never seen", ("b",), "v100") < heavy
    assert heavy == pytest.approx(known.slowdown("ResNet-50 (batch size 64)", ("b",), "v100"))


def test_a_flow_that_trains_a_network_is_of_the_family_of_the_network() -> None:
    known = Interference(gavel_pairs())
    found = known.slowdown("train resnet50", ("nightly transformer",), "V100")
    assert found == pytest.approx(known.slowdown("resnet50", ("transformer",), "V100"))
    assert found != pytest.approx(known.slowdown("train", ("nightly",), "V100"))


def test_one_measurement_on_a_new_gpu_model_does_not_decide_for_all_kinds() -> None:
    known = Interference(gavel_pairs())
    before = known.slowdown("resnet50", ("transformer",), "A100")
    known.learn("idle", ["asleep"], "A100", 1.0)
    assert known.slowdown("idle", ("asleep",), "A100") == 1.0
    assert known.slowdown("resnet50", ("transformer",), "A100") == pytest.approx(before, rel=0.02)


def test_without_any_measurement_jobs_take_turns() -> None:
    assert Interference().slowdown("a", ("b",), "v100") == 2.0
    assert Interference().slowdown("a", ("b", "c"), "v100") == 3.0


def test_excesses_of_several_neighbours_add_up() -> None:
    known = Interference([PairExcess("v100", "a", "b", 0.4), PairExcess("v100", "a", "c", 0.3)])
    assert known.slowdown("a", ("b", "c"), "v100") == pytest.approx(1.7)
    assert known.slowdown("a", (), "v100") == 1.0


def test_it_learns_from_runs_and_changes_later_predictions() -> None:
    known = Interference([PairExcess("v100", "a", "b", 0.4)])
    known.learn("a", ["b"], "Tesla V100", 2.0)
    assert known.slowdown("a", ("b",), "v100") == pytest.approx(1.7), "the mean of both measurements"
    known.learn("a", ["b", "b"], "v100", 1.0 + 2 * 0.7)  # as predicted
    assert known.slowdown("a", ("b",), "v100") == pytest.approx(1.7)
    known.learn("new", ["b"], "A100", 1.2)
    assert known.slowdown("new", ("b",), "A100") == pytest.approx(1.2)
    assert Interference(known.pairs()).slowdown("new", ("b",), "A100") == pytest.approx(1.2)


def test_it_starts_with_what_gavel_measured() -> None:
    resnet = Job("r", kind="ResNet-50 (batch size 64)")
    transformer = Job("t", kind="Transformer (batch size 16)")
    measured = {pair[:3]: pair.excess for pair in gavel_pairs()}
    excess = measured["v100", transformer.kind, resnet.kind]
    assert gavel_slowdown(transformer, [resnet], "V100") == pytest.approx(1 + excess)
    assert gavel_slowdown(transformer, [], "V100") == 1.0
    assert 1.2 < gavel_slowdown(Job("x"), [Job("y")], "A100") < 2.2, "of unknown jobs the usual is expected"


def test_it_learns_from_recorded_runs_that_shared_a_device() -> None:
    def run(kind: str, device: str, started: float, seconds: float) -> Run:
        return Run(kind, "V100", frozenset({device}), started, started + seconds)

    alone = [run("a", "gpu-1", 1000.0 * n, 100) for n in range(3)]
    alone += [run("b", "gpu-2", 1000.0 * n, 200) for n in range(3)]
    beside = [run("a", "gpu-3", 0, 150), run("b", "gpu-3", 10, 220)]
    brushed = [run("a", "gpu-4", 0, 100), run("b", "gpu-4", 98, 200)]  # for two seconds
    known = Interference()
    assert learn_from_runs(known, [*alone, *beside, *brushed]) == 2
    assert known.slowdown("a", ("b",), "V100") == pytest.approx(1.5)
    assert known.slowdown("b", ("a",), "V100") == pytest.approx(1.1)


def test_an_attempt_that_was_stopped_disturbs_others_but_measures_nothing() -> None:
    def run(seconds: float, device: str, at: float = 0.0, **more: Any) -> Run:
        return Run("a", "V100", frozenset({device}), at, at + seconds, **more)

    alone = [run(100.0, f"gpu-{number}") for number in range(3)]
    stopped, slowed = run(200.0, "shared", is_whole=False), run(160.0, "shared")
    known = Interference()
    assert learn_from_runs(known, [*alone, stopped, slowed]) == 1
    assert known.slowdown("a", ("a",), "V100") == pytest.approx(1.6)


def test_it_learns_nothing_without_runs_to_compare_with() -> None:
    runs = [Run("a", "V100", frozenset({"g"}), 0.0, 150.0), Run("b", "V100", frozenset({"g"}), 0.0, 150.0)]
    assert learn_from_runs(Interference(), runs) == 0

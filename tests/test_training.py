"""Training on a CPU: it learns, a seed repeats it, and it stops at its limits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

torch = pytest.importorskip("torch", reason="needs gpu-flows[train]")

from gpu_flows.checkpoints import contract  # noqa: E402
from gpu_flows.checkpoints.process_group import ProcessGroup  # noqa: E402
from gpu_flows.training import registry  # noqa: E402
from gpu_flows.training.adam import Adam  # noqa: E402
from gpu_flows.training.batches import Batches  # noqa: E402
from gpu_flows.training.config import TrainConfig  # noqa: E402
from gpu_flows.training.datasets import ALPHABET, digits, sentences  # noqa: E402
from gpu_flows.training.device_count import count_assigned_devices  # noqa: E402
from gpu_flows.training.hardware import Hardware, find_hardware  # noqa: E402
from gpu_flows.training.loop import train  # noqa: E402
from gpu_flows.training.networks import LanguageModel  # noqa: E402
from gpu_flows.training.reports import Diverged, Progress  # noqa: E402


def cpu() -> Hardware:
    return Hardware(torch.device("cpu"), ProcessGroup(), "test")


def losses(config: TrainConfig, hardware: Hardware) -> list[float]:
    seen: list[Progress] = []
    train(config, seen.append, hardware=hardware)
    return [progress.loss for progress in seen]


class Clock:
    """A clock that advances only by sleeping and by being read."""

    def __init__(self, seconds_per_call: float = 0.0) -> None:
        self.now = 0.0
        self.seconds_per_call = seconds_per_call
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += self.seconds_per_call
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.mark.parametrize("model", registry.names())
def test_every_model_learns(model: str) -> None:
    config = TrainConfig(model=model, samples=256, batch_size=32, epochs=8, learning_rate=0.01)
    result = train(config, hardware=cpu())
    assert result.loss < 0.9 * result.first_loss
    assert result.steps == 8 * 8
    assert result.samples == 8 * 256
    assert result.stopped_by == "epochs"
    assert json.loads(json.dumps(result.as_dict()))["model"] == model


@pytest.mark.parametrize("model", registry.names())
def test_size_makes_a_model_larger(model: str) -> None:
    small, large = (
        train(TrainConfig(model=model, size=size, samples=16, steps=1), hardware=cpu()) for size in (1, 2)
    )
    assert large.parameters > 1.5 * small.parameters


def test_the_same_seed_gives_the_same_losses() -> None:
    config = TrainConfig(model="cnn", samples=64, batch_size=16, epochs=2)
    first = losses(config, cpu())
    assert first == losses(config, cpu())
    assert first != losses(config.model_copy(update={"seed": 1}), cpu())


@pytest.mark.parametrize("model", ["mlp", "cnn", "resnet", "transformer", "trees"])
def test_classifiers_report_their_accuracy(model: str) -> None:
    config = TrainConfig(model=model, samples=256, batch_size=32, epochs=8, learning_rate=0.01)
    seen: list[Progress] = []
    result = train(config, seen.append, hardware=cpu())
    assert seen[0].accuracy is not None
    assert result.accuracy is not None
    assert seen[0].accuracy < result.accuracy <= 1
    assert f"accuracy {result.accuracy:.0%}" in str(seen[-1])


def test_a_forecast_has_no_accuracy() -> None:
    result = train(TrainConfig(model="lstm", samples=16, steps=2), hardware=cpu())
    assert result.accuracy is None


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("model", registry.names())
def test_every_model_learns_in_every_precision(model: str, precision: str) -> None:
    config = TrainConfig(model=model, samples=128, batch_size=32, epochs=4, learning_rate=0.01)
    exact = losses(config, cpu())
    other = losses(config.model_copy(update={"precision": precision}), cpu())
    assert other != exact
    assert other == pytest.approx(exact, rel=0.1)


def test_batches_contain_all_samples_once_per_epoch_in_a_new_order() -> None:
    batches = Batches(samples=10, epochs=2, seed=3)
    assert batches.count_remaining(4) == 6
    first, second = ([batches.next(4) for _ in range(3)] for _ in range(2))
    assert batches.count_remaining(4) == 0
    for epoch in (first, second):
        assert [len(batch) for batch in epoch] == [4, 4, 2]
        assert sorted(torch.cat(epoch).tolist()) == list(range(10))
    assert torch.cat(first).tolist() != torch.cat(second).tolist()


def test_batches_resume_in_the_same_order_with_another_size() -> None:
    """This happens when a job with a scaled batch resumes with fewer devices."""
    whole = Batches(samples=12, epochs=2, seed=3)
    expected = [int(whole.next(1)) for _ in range(24)]
    before, after = Batches(12, 2, 3), Batches(12, 2, 3)
    seen = [*before.next(8).tolist()]
    after.load_state_dict(before.state_dict())
    while after.count_remaining(4):
        seen += after.next(4).tolist()
    assert seen == expected


def test_progress_rises_to_one_and_names_the_epoch() -> None:
    seen: list[Progress] = []
    train(TrainConfig(samples=40, batch_size=16, epochs=2), seen.append, hardware=cpu())
    assert [progress.epoch for progress in seen] == [1, 1, 1, 2, 2, 2]  # the last batch is smaller
    assert [progress.fraction for progress in seen] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert str(seen[-1]).startswith("epoch 2/2 loss ")
    assert seen[-1].peak_memory_mb > 0


def test_the_first_limit_ends_the_training() -> None:
    by_steps = train(TrainConfig(samples=64, steps=3, epochs=100), hardware=cpu())
    assert (by_steps.steps, by_steps.stopped_by) == (3, "steps")

    seen: list[Progress] = []
    config = TrainConfig(samples=64, epochs=100, seconds=5)
    by_time = train(config, seen.append, hardware=cpu(), clock=Clock(seconds_per_call=1))
    assert (by_time.steps, by_time.stopped_by) == (5, "seconds")
    assert [progress.fraction for progress in seen] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])


def test_the_pace_is_kept_by_sleeping_after_each_step() -> None:
    clock = Clock()
    config = TrainConfig(samples=64, steps=4, epochs=9, steps_per_second=2)
    result = train(config, hardware=cpu(), clock=clock, sleep=clock.sleep)
    assert clock.slept == pytest.approx([0.5] * 4)
    assert result.seconds == pytest.approx(2)
    assert result.samples_per_second == pytest.approx(result.samples / 2)


def test_a_diverging_training_is_an_error_with_a_fix() -> None:
    @registry.register("hopeless")
    def hopeless(size: int, samples: int) -> registry.Recipe:
        """Learns nothing."""
        rows = torch.zeros(samples, 1)
        return registry.Recipe(torch.nn.Linear(1, 1), rows, rows, lambda out, _: out.mean() * float("nan"))

    try:
        with pytest.raises(Diverged, match=r"became nan at step 1\. Lower the learning rate"):
            train(TrainConfig(model="hopeless"), hardware=cpu())
    finally:
        registry.models.unregister("hopeless")


def test_the_number_of_threads_is_restored() -> None:
    before = torch.get_num_threads()
    during: list[int] = []
    config = TrainConfig(samples=16, steps=1, threads=before + 1)
    train(config, lambda progress: during.append(torch.get_num_threads()), hardware=cpu())
    assert (during, torch.get_num_threads()) == ([before + 1], before)


def test_adam_takes_the_same_steps_as_the_one_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    optimizers = Adam(ours.parameters(), 0.05), torch.optim.Adam(theirs.parameters(), lr=0.05)
    for _ in range(20):
        batch = torch.randn(8, 3)
        for network, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
    assert torch.allclose(ours.weight, theirs.weight, atol=1e-5)


def test_the_language_model_is_causal() -> None:
    torch.manual_seed(0)
    model = LanguageModel(len(ALPHABET), context=16, width=32).eval()
    letters, _ = sentences(1)
    changed = letters.clone()
    changed[0, 10:] = 0
    assert torch.allclose(model(letters)[0, :10], model(changed)[0, :10], atol=1e-5)
    assert not torch.allclose(model(letters)[0, 10:], model(changed)[0, 10:], atol=1e-5)


def test_digits_are_distinguishable() -> None:
    torch.manual_seed(0)
    images, labels = digits(4000)
    typical = torch.stack([images[labels == digit].mean(0).flatten() for digit in range(10)])
    distances = torch.cdist(typical, typical) + torch.eye(10) * 9
    assert distances.min() > 0.5


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model": "gpt"}, "no model is called 'gpt'. Choose one of: mlp, cnn, resnet, transformer, lstm"),
        ({"dataset": "mnist"}, "no dataset is called 'mnist'. Choose one of: spirals, digits"),
        ({"precision": "int8"}, "'float32', 'bfloat16', 'float16' or 'float64'"),
        ({"epochs": 0}, "greater than or equal to 1"),
        ({"learning_rate": 0}, "greater than 0"),
        ({"seconds": float("inf")}, "finite number"),
        ({"batchsize": 3}, "Extra inputs are not permitted"),
    ],
)
def test_invalid_settings_are_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate(values)


def test_every_field_of_the_form_has_a_title_and_a_description() -> None:
    schema = TrainConfig.model_json_schema()
    assert schema["title"] == "Training"
    assert schema["properties"]["model"]["enum"] == [
        *("mlp", "cnn", "resnet", "transformer", "lstm", "matmul", "trees")
    ]
    assert schema["properties"]["dataset"]["enum"] == [
        *("", "spirals", "digits", "sentences", "waves", "products", "tables")
    ]
    for name, prop in schema["properties"].items():
        assert prop["description"].endswith("."), name
        assert prop["title"][0].isupper(), name
        assert "_" not in prop["title"], name
        assert "anyOf" not in prop, name  # drawn as tabs


def test_registering_twice_or_without_a_docstring_is_an_error() -> None:
    with pytest.raises(ValueError, match="'mlp' is registered twice"):
        registry.register("mlp")(registry.models.get("cnn"))
    with pytest.raises(ValueError, match="no docstring"):
        registry.register("silent")(lambda size, samples: registry.models.get("mlp")(size, samples))
    assert "silent" not in registry.names()


def test_users_can_register_a_model_and_a_dataset() -> None:
    @registry.register("line")
    def line(size: int, samples: int) -> registry.Recipe:
        """Straight line through points."""
        x = torch.rand(samples, 1)
        return registry.Recipe(torch.nn.Linear(1, 1), x, 2 * x, torch.nn.functional.mse_loss)

    @registry.register_dataset("falling")
    def falling(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Points on a line that falls."""
        x = torch.rand(samples, 1)
        return x, -2 * x

    try:
        for dataset in ("", "falling"):
            config = TrainConfig(model="line", dataset=dataset, epochs=4, learning_rate=0.1)
            result = train(config, hardware=cpu())
            assert result.loss < 0.1 * result.first_loss
        assert "line" in TrainConfig.model_json_schema()["properties"]["model"]["enum"]
        assert (
            "falling: Points on a line that falls."
            in (TrainConfig.model_json_schema()["properties"]["dataset"]["description"])
        )
        assert registry.models.source("line") == registry.datasets.source("falling") == __file__
        assert registry.models.source("mlp") == ""
    finally:
        registry.models.unregister("line")
        registry.datasets.unregister("falling")


def test_a_dataset_of_another_shape_is_refused_before_training() -> None:
    with pytest.raises(ValueError, match=r"inputs of dataset 'spirals' .* 'cnn' learns from .*\(1, 16, 16\)"):
        train(TrainConfig(model="cnn", dataset="spirals"), hardware=cpu())


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"GPU_FLOWS_GPUS": "3"}, 3),
        ({"GPU_FLOWS_DEVICES": '["GPU-a", "GPU-b"]', "GPU_FLOWS_GPUS": "2"}, 2),
        ({"GPU_FLOWS_DEVICES": "[]", "GPU_FLOWS_GPUS": "0"}, 1),
    ],
)
def test_the_number_of_devices_comes_from_the_worker(environment: dict[str, str], count: int) -> None:
    assert count_assigned_devices(environment) == count


def test_invalid_devices_are_an_error() -> None:
    with pytest.raises(ValueError, match="not what the worker writes"):
        count_assigned_devices({"GPU_FLOWS_DEVICES": "GPU-a,GPU-b"})


def test_the_note_of_the_hardware_names_the_device_and_the_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    hardware = find_hardware()
    assert hardware.device.type == "cpu"
    assert hardware.note == "training on the CPU: torch finds no CUDA device"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "GTX 1080 Ti")
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    hardware = find_hardware()
    assert (hardware.device, hardware.processes.rank) == (torch.device("cuda", 1), 1)
    assert hardware.note == "training on GTX 1080 Ti in 2 processes, one per device"


def test_training_does_not_import_the_compiler() -> None:
    """torch.optim would import it, which costs every job a second of CPU time and 65 MiB."""
    script = (
        "import sys; from gpu_flows.training.config import TrainConfig; assert 'torch' not in sys.modules\n"
        "from gpu_flows.training.loop import train\n"
        "for model in ('mlp', 'cnn', 'resnet', 'transformer', 'lstm', 'matmul', 'trees'):\n"
        "    train(TrainConfig(model=model, samples=16, steps=1))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_training_says_from_which_step_it_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contract.DIRECTORY, str(tmp_path))
    notes: list[str] = []
    train(TrainConfig(steps=3, checkpoint_seconds=0), on_note=notes.append)
    assert not any("resumed" in note for note in notes)
    train(TrainConfig(steps=5), on_note=notes.append)
    assert notes[-1] == "resumed from step 3"

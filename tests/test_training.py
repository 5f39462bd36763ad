"""Training on a CPU: it learns, it repeats itself, and it stops where it was told to."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

torch = pytest.importorskip("torch", reason="needs gpu-flows[train]")

from gpu_flows.training import registry  # noqa: E402
from gpu_flows.training.adam import Adam  # noqa: E402
from gpu_flows.training.config import TrainConfig  # noqa: E402
from gpu_flows.training.data import ALPHABET, digits, sentences  # noqa: E402
from gpu_flows.training.hardware import Hardware, assigned_devices, find_hardware  # noqa: E402
from gpu_flows.training.loop import Diverged, Progress, train  # noqa: E402
from gpu_flows.training.networks import LanguageModel  # noqa: E402


def cpu(count: int = 1) -> Hardware:
    return Hardware(torch.device("cpu"), count, "test")


def losses(config: TrainConfig, hardware: Hardware) -> list[float]:
    seen: list[Progress] = []
    train(config, seen.append, hardware=hardware)
    return [progress.loss for progress in seen]


class Clock:
    """Time that passes only when somebody sleeps, or a step is taken."""

    def __init__(self, seconds_per_look: float = 0.0) -> None:
        self.now = 0.0
        self.seconds_per_look = seconds_per_look
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.now += self.seconds_per_look
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


def test_a_seed_gives_the_same_losses_again_and_another_seed_others() -> None:
    config = TrainConfig(model="cnn", samples=64, batch_size=16, epochs=2)
    first = losses(config, cpu())
    assert first == losses(config, cpu())
    assert first != losses(config.model_copy(update={"seed": 1}), cpu())


def test_a_batch_cut_over_devices_learns_the_same() -> None:
    config = TrainConfig(model="mlp", samples=70, batch_size=30, epochs=3)  # parts of unequal size
    assert losses(config, cpu(4)) == pytest.approx(losses(config, cpu(1)), rel=1e-3)


def test_more_devices_than_samples_in_a_batch_still_train() -> None:
    result = train(TrainConfig(samples=16, batch_size=2, steps=3), hardware=cpu(8))
    assert (result.steps, result.devices) == (3, 8)


def test_progress_climbs_to_one_and_tells_the_epoch() -> None:
    seen: list[Progress] = []
    train(TrainConfig(samples=40, batch_size=16, epochs=2), seen.append, hardware=cpu())
    assert [progress.epoch for progress in seen] == [1, 1, 1, 2, 2, 2]  # the last batch is a short one
    assert [progress.fraction for progress in seen] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1])
    assert str(seen[-1]).startswith("epoch 2/2 loss ")
    assert seen[-1].peak_memory_mb > 0


def test_the_first_limit_ends_it() -> None:
    by_steps = train(TrainConfig(samples=64, steps=3, epochs=100), hardware=cpu())
    assert (by_steps.steps, by_steps.stopped_by) == (3, "steps")

    seen: list[Progress] = []
    config = TrainConfig(samples=64, epochs=100, seconds=5)
    by_time = train(config, seen.append, hardware=cpu(), clock=Clock(seconds_per_look=1))
    assert (by_time.steps, by_time.stopped_by) == (5, "seconds")
    assert [progress.fraction for progress in seen] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1])


def test_pace_sleeps_away_what_a_step_did_not_need() -> None:
    clock = Clock()
    config = TrainConfig(samples=64, steps=4, epochs=9, steps_per_second=2)
    result = train(config, hardware=cpu(), clock=clock, sleep=clock.sleep)
    assert clock.slept == pytest.approx([0.5] * 4)
    assert result.seconds == pytest.approx(2)
    assert result.samples_per_second == pytest.approx(result.samples / 2)


def test_a_diverging_training_says_what_to_do() -> None:
    @registry.register("hopeless")
    def hopeless(size: int, samples: int) -> registry.Recipe:
        """Learns nothing."""
        rows = torch.zeros(samples, 1)
        return registry.Recipe(torch.nn.Linear(1, 1), rows, rows, lambda out, _: out.mean() * float("nan"))

    try:
        with pytest.raises(Diverged, match=r"became nan at step 1\. Lower the learning rate"):
            train(TrainConfig(model="hopeless"), hardware=cpu())
    finally:
        del registry._builders["hopeless"]


def test_torch_gets_its_threads_back() -> None:
    before = torch.get_num_threads()
    during: list[int] = []
    config = TrainConfig(samples=16, steps=1, threads=before + 1)
    train(config, lambda progress: during.append(torch.get_num_threads()), hardware=cpu())
    assert (during, torch.get_num_threads()) == ([before + 1], before)


def test_adam_steps_like_the_adam_of_torch() -> None:
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


def test_the_language_model_does_not_look_ahead() -> None:
    torch.manual_seed(0)
    model = LanguageModel(len(ALPHABET), context=16, width=32).eval()
    letters, _ = sentences(1)
    changed = letters.clone()
    changed[0, 10:] = 0
    assert torch.allclose(model(letters)[0, :10], model(changed)[0, :10], atol=1e-5)
    assert not torch.allclose(model(letters)[0, 10:], model(changed)[0, 10:], atol=1e-5)


def test_digits_can_be_told_apart() -> None:
    torch.manual_seed(0)
    images, labels = digits(4000)
    typical = torch.stack([images[labels == digit].mean(0).flatten() for digit in range(10)])
    distances = torch.cdist(typical, typical) + torch.eye(10) * 9
    assert distances.min() > 0.5


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"model": "resnet"}, "no model is called 'resnet'. Choose one of: mlp, cnn, transformer, lstm"),
        ({"epochs": 0}, "greater than or equal to 1"),
        ({"learning_rate": 0}, "greater than 0"),
        ({"seconds": float("inf")}, "finite number"),
        ({"batchsize": 3}, "Extra inputs are not permitted"),
    ],
)
def test_bad_settings_are_named(values: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        TrainConfig.model_validate(values)


def test_the_form_reads_well() -> None:
    schema = TrainConfig.model_json_schema()
    assert schema["title"] == "Training"
    assert schema["properties"]["model"]["enum"] == ["mlp", "cnn", "transformer", "lstm"]
    for name, prop in schema["properties"].items():
        assert prop["description"].endswith("."), name
        assert prop["title"][0].isupper(), name
        assert "_" not in prop["title"], name
        assert "anyOf" not in prop, name  # drawn as tabs


def test_a_model_is_registered_once_and_with_a_docstring() -> None:
    with pytest.raises(ValueError, match="'mlp' is registered twice"):
        registry.register("mlp")(registry.builder("cnn"))
    with pytest.raises(ValueError, match="no docstring"):
        registry.register("silent")(lambda size, samples: registry.builder("mlp")(size, samples))
    assert "silent" not in registry.names()


@pytest.mark.parametrize(
    ("environment", "count"),
    [
        ({}, 1),
        ({"GPU_FLOWS_GPUS": "3"}, 3),
        ({"GPU_FLOWS_DEVICES": '["GPU-a", "GPU-b"]', "GPU_FLOWS_GPUS": "2"}, 2),
        ({"GPU_FLOWS_DEVICES": "[]", "GPU_FLOWS_GPUS": "0"}, 1),
    ],
)
def test_assigned_devices_come_from_the_worker(environment: dict[str, str], count: int) -> None:
    assert assigned_devices(environment) == count


def test_garbled_devices_are_an_error() -> None:
    with pytest.raises(ValueError, match="not what the worker writes"):
        assigned_devices({"GPU_FLOWS_DEVICES": "GPU-a,GPU-b"})


def test_hardware_says_what_it_does_with_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    hardware = find_hardware({"GPU_FLOWS_GPUS": "2"})
    assert (hardware.device.type, hardware.count, hardware.parts) == ("cpu", 2, 2)
    assert "cut into 2 parts" in hardware.note

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "GTX 1080 Ti")
    hardware = find_hardware({"GPU_FLOWS_GPUS": "4"})
    assert (hardware.device.type, hardware.count, hardware.parts) == ("cuda", 2, 1)
    assert hardware.note == (
        "training on 2 x GTX 1080 Ti, batches split by nn.DataParallel; "
        "4 devices are assigned but torch sees only 2"
    )


def test_training_starts_without_the_compiler() -> None:
    """torch.optim would import it, at two seconds and 70 MB for every job."""
    script = (
        "import sys; from gpu_flows.training.config import TrainConfig; assert 'torch' not in sys.modules\n"
        "from gpu_flows.training.loop import train\n"
        "for model in ('mlp', 'cnn', 'transformer', 'lstm'):\n"
        "    train(TrainConfig(model=model, samples=16, steps=1))\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

"""Memory of a training step, traced with fake tensors. Expected sizes are computed by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from command_line.run import gpu_flows

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gpu_flows.prediction.memory_prediction import predict_step  # noqa: E402
from gpu_flows.prediction.step import StepError, load_step_function, make_step  # noqa: E402
from gpu_flows.prediction.trace_process import (  # noqa: E402
    TracedMemory,
    TraceError,
    TraceOptionError,
    _answer,
    trace_in_process,
)
from gpu_flows.prediction.tracing import trace_training  # noqa: E402
from gpu_flows.schedulers.prediction.gpu_models import find_gpu_model  # noqa: E402
from gpu_flows.schedulers.prediction.memory_trace import (  # noqa: E402
    Allocate,
    Free,
    MemoryTrace,
    estimate_memory,
    replay,
)

BATCH, WIDTH = 32, 256
MATRIX, ROWS = 4 * WIDTH * WIDTH, 4 * BATCH * WIDTH  # bytes


def trace(function: Callable[..., Any], steps: int = 2, **options: Any) -> MemoryTrace:
    return trace_training(lambda: make_step(function, options, ()), steps)


def find_live(trace: MemoryTrace) -> Counter[str]:
    """Bytes that are there after the last event, by what they hold."""
    sizes = {event.storage: event.size for event in trace.events if isinstance(event, Allocate)}
    for event in trace.events:
        if isinstance(event, Free):
            del sizes[event.storage]
    live: Counter[str] = Counter()
    for storage, size in sizes.items():
        live[trace.holds.get(storage, "activations")] += size
    return live


def find_peak(trace: MemoryTrace) -> int:
    sizes = {event.storage: event.size for event in trace.events if isinstance(event, Allocate)}
    now = peak = 0
    for event in trace.events:
        if isinstance(event, Allocate):
            now += event.size
        elif isinstance(event, Free):
            now -= sizes[event.storage]
        peak = max(peak, now)
    return peak


def linear(batch: int = BATCH) -> Any:
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    rows = torch.randn(batch, WIDTH, device="cuda")
    return model, lambda: model(rows).sum()


@pytest.mark.parametrize(("optimizer", "states"), [("SGD", 0), ("Adam", 2), ("RMSprop", 1), ("Adagrad", 1)])
def test_weights_gradients_and_optimizer_state(optimizer: str, states: int) -> None:
    live = find_live(trace(linear, optimizer=optimizer))
    assert live["weights"] == MATRIX
    assert live["gradients"] == MATRIX
    assert live["optimizer"] == states * MATRIX


def test_a_step_with_adam_needs_a_temporary_of_the_weights_size() -> None:
    # Weights, gradient and two moments, and the root of the second moment while it divides.
    assert find_peak(trace(linear, optimizer="Adam")) == 5 * MATRIX + ROWS + 4


def test_outputs_are_kept_for_backward_and_inputs_of_elementwise_layers_too() -> None:
    def chain(batch: int) -> Any:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.GELU(), nn.Tanh())
        rows = torch.randn(batch, WIDTH, device="cuda")
        return model, lambda: model(rows).sum()

    per_row = (find_peak(trace(chain, batch=512)) - find_peak(trace(chain, batch=256))) / 256
    # The batch; outputs of linear (kept for GELU) and tanh; GELU's own output; and in backward the gradients
    # of tanh's input and of GELU's input at the same time, when GELU's output is already gone.
    assert per_row == pytest.approx(4 * WIDTH * 5, abs=4 * WIDTH)


def test_max_pooling_keeps_indices_of_8_bytes_and_dropout_a_mask_of_1_byte() -> None:
    def pool(batch: int) -> Any:
        model = nn.Conv2d(1, 1, 1).cuda()
        images = torch.randn(batch, 1, 64, 64, device="cuda")
        kept: list[Any] = []

        def step() -> None:
            kept[:] = [nn.functional.dropout(nn.functional.max_pool2d(model(images), 2), 0.1)]

        return step

    # Between steps: images, the convolution's output (kept for pooling), the pooled image (for nothing: it is
    # dropout's input), its indices, the mask and the result.
    live = find_live(trace(pool, batch=16))["activations"]
    pixels, pooled = 16 * 64 * 64, 16 * 32 * 32
    assert live == 4 * pixels + 4 * pixels + 8 * pooled + 1 * pooled + 4 * pooled


def test_gradients_of_a_residual_are_added_in_place() -> None:
    def residual(batch: int) -> Any:
        model = nn.Linear(WIDTH, WIDTH, bias=False)
        rows = torch.randn(batch, WIDTH, device="cuda")

        def loss() -> Any:
            hidden = torch.tanh(rows * model.weight[0])
            return (torch.relu(model(hidden)) + hidden).exp().sum()

        return model, loss

    per_row = (find_peak(trace(residual, batch=512)) - find_peak(trace(residual, batch=256))) / 256
    # When both gradients of `hidden` are there: batch, hidden, and these two; the sum needs no third one.
    kept = 4 * WIDTH * 7  # batch, product (for tanh's input it is gone), hidden, relu's output, sum, exp
    assert per_row <= kept


def test_mixed_precision_halves_activations_and_keeps_weights() -> None:
    def wide(batch: int) -> Any:
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        rows = torch.randn(batch, WIDTH, device="cuda")
        return model, lambda: model(rows).float().sum()

    full, half = (trace(wide, batch=8192, precision=precision) for precision in ("fp32", "bf16"))
    assert find_live(half)["weights"] == find_live(full)["weights"]
    assert 0.5 < find_peak(half) / find_peak(full) < 0.8


def test_attention_on_cuda_keeps_no_matrix_of_all_pairs() -> None:
    def block(tokens: int) -> Any:
        model = nn.TransformerEncoderLayer(64, 4, batch_first=True, dropout=0.0)
        rows = torch.randn(1, tokens, 64, device="cuda")
        return model, lambda: model(rows).sum()

    assert find_peak(trace(block, tokens=8192)) < 8 * find_peak(trace(block, tokens=1024)) * 1.05


def test_what_a_network_computes_from_few_numbers_is_computed() -> None:
    def chosen(batch: int) -> Any:
        widths = (torch.arange(3) * 64 + 64).tolist()
        assert widths == [64, 128, 192]
        model = nn.Linear(widths[0], widths[2]).cuda()

        def step() -> float:
            loss = model(torch.ones(batch, 64, device="cuda")).sum()
            return loss.item()  # type: ignore[no-any-return]

        return step

    assert find_live(trace(chosen, batch=2))["weights"] == 4 * (64 * 192 + 192)


def test_programs_see_a_gpu() -> None:
    def asking(batch: int = 1) -> Any:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        rows = torch.zeros(batch, 4, device=device)
        assert (rows.device.type, rows.is_cuda, rows.cpu().device.type) == ("cuda", True, "cpu")
        assert torch.zeros_like(rows).device == rows.device
        return lambda: None

    trace(asking)
    assert not torch.cuda.is_available() or torch.cuda.device_count()


def test_shared_weights_are_counted_once() -> None:
    def tied(batch: int = 1) -> Any:
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False))
        model[1].weight = model[0].weight
        return model, lambda: model(torch.zeros(batch, WIDTH, device="cuda")).sum()

    assert find_live(trace(tied))["weights"] == MATRIX


def test_a_model_can_be_moved_and_then_cast() -> None:
    def half(batch: int = 1) -> Any:
        model = nn.Linear(WIDTH, WIDTH, bias=False).cuda().cuda().half()
        return lambda: model(torch.zeros(batch, WIDTH, device="cuda", dtype=torch.float16))

    assert find_live(trace(half))["weights"] == MATRIX / 2


def test_what_an_estimate_consists_of() -> None:
    traced = trace(linear, optimizer="Adam")
    gpu = find_gpu_model("A100")
    need = replay(traced, gpu)
    assert need.fits
    assert need.parts_mib["weights"] == MATRIX / 2**20
    assert need.total_mib == pytest.approx(sum(need.parts_mib.values()))
    found = estimate_memory(need)
    assert found.how == "traced"
    assert found.value == need.total_mib
    assert found.upper == pytest.approx(found.value + 0.14 * need.torch_mib + 64)  # 64: the context's margin


def test_a_step_that_does_not_fit_says_what_it_would_need() -> None:
    traced = trace(linear, batch=2**21)
    need = replay(traced, find_gpu_model("A100"), available_mib=2000)
    assert not need.fits
    assert need.total_mib > 4000


@pytest.mark.parametrize("model", ["mlp", "cnn", "lstm"])
def test_the_train_flow_can_be_traced(model: str) -> None:
    from gpu_flows.training.step import make_step as make_training_step

    small, large = (
        find_peak(trace(make_training_step, model=model, batch=batch, samples=4096)) for batch in (64, 2048)
    )
    assert small < large


def test_errors_say_what_is_wrong() -> None:
    with pytest.raises(StepError, match=r"Write package.module:function"):
        load_step_function("json")
    with pytest.raises(StepError, match="has no function 'nothing'"):
        load_step_function("json:nothing")
    with pytest.raises(StepError, match="no parameter 'width'"):
        make_step(lambda: print, {"width": 3}, needed=["width"])
    with pytest.raises(StepError, match="returned int"):
        make_step(lambda: 3, {}, ())
    with pytest.raises(StepError, match="no optimizer 'Adamw'"):
        trace(linear, optimizer="Adamw")


def test_a_gpu_that_is_not_known_gets_the_largest_known_context() -> None:
    def predict(gpu: str, memory_mib: int = 0) -> TracedMemory:
        return predict_step(f"{__name__}:linear", {"batch": 2**20}, gpu, (), 2, memory_mib)

    known, assumed = predict("B200"), predict("GPU")
    assert assumed.parts_mib == known.parts_mib
    assert assumed.parts_mib["context"] > predict("A100").parts_mib["context"]
    assert "GPU model 'GPU' is not known" in assumed.estimate.detail
    assert "not known" not in known.estimate.detail
    assert predict("abacus", 16_000).fits
    assert not predict("abacus", 1500).fits


def test_a_mistyped_gpu_is_not_taken_for_an_unknown_one() -> None:
    done = gpu_flows("predict", "memory", f"{__name__}:linear", "--gpu", "A1000")
    assert done.code == 2
    assert "Known are" in done.err


def make_step_on_the_host() -> Any:
    model = nn.Linear(WIDTH, WIDTH)
    rows = torch.randn(WIDTH, BATCH).t()  # not contiguous, so that the softmax copies it
    return lambda: model(rows.softmax(dim=1)).sum().backward()


def test_a_step_that_uses_no_gpu_has_no_prediction() -> None:
    with pytest.raises(StepError, match=r"Nothing of .* was on the GPU. Move its model and its batches"):
        predict_step(f"{__name__}:make_step_on_the_host", {}, "A100", (), 2)


STEP = """
import torch
def make_step(batch=8):
    print("this must not mix with the answer")
    model = torch.nn.Linear(64, 64)
    return model, lambda: model(torch.randn(batch, 64, device="cuda")).sum()
def by_values():
    return lambda: torch.randn(8, device="cuda").nonzero()
"""


@pytest.mark.parametrize(
    ("step", "options"),
    [
        ("json", {}),
        (f"{__name__}:linear", {"width": 3}),
        (f"{__name__}:linear", {"precision": "int8"}),
        (f"{__name__}:linear", {"optimizer": "Adamm"}),
    ],
)
def test_a_wrong_option_is_told_from_a_step_that_fails(step: str, options: dict[str, Any]) -> None:
    request = {"step": step, "options": options, "gpu": "A100", "needed": list(options), "steps": 1}
    assert _answer(request)["is_option"]
    assert not _answer({**request, "step": "json:loads", "options": {"s": 3}, "needed": []})["is_option"]


def test_a_wrong_option_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((TraceOptionError, 2), (TraceError, 1)):

        def trace(*words: Any, error: type[Exception] = error, **options: Any) -> None:
            raise error("It is wrong.")

        monkeypatch.setattr(import_module("gpu_flows.cli.predict.memory"), "trace_with_parts", trace)
        assert gpu_flows("predict", "memory", "a:b").code == code


@pytest.mark.slow
def test_the_command_traces_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_step.py").write_text(STEP)
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-m", "gpu_flows.cli", "predict", "memory"]
    done = subprocess.run(
        [*command, "my_step:make_step", "--batch", "16", "--gpu", "4090", "--json"],
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)
    assert (found["gpu"], found["how"], found["fits"]) == ("RTX 4090", "traced", True)
    assert 0 < found["memory_mib"] <= found["upper_mib"]
    with pytest.raises(TraceError, match="depends on the values"):
        trace_in_process("my_step:by_values", {}, "4090")
    with pytest.raises(TraceError, match="longer than"):
        trace_in_process("my_step:make_step", {}, "4090", time_limit_s=0.01)

"""The memory of a step, predicted in this process. `trace_process` does it in one of its own."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)

from gpu_flows.prediction.step import StepError, load_step_function, make_step
from gpu_flows.prediction.trace_process import TracedMemory
from gpu_flows.prediction.tracing import trace_training
from gpu_flows.schedulers.prediction.gpu_models import GPU_MODELS, find_or_assume_gpu_model
from gpu_flows.schedulers.prediction.memory_trace import estimate_memory, replay


def predict_step(
    step: str,
    options: Mapping[str, Any],
    gpu: str,
    needed: Sequence[str],
    steps: int,
    memory_mib: int = 0,
) -> TracedMemory:
    """Trace the named step and replay it on the GPU model. `memory_mib` is that of a GPU that we may not
    know; 0 if it is not known either. Raises StepError."""
    begin = time.perf_counter()
    model = find_or_assume_gpu_model(gpu, memory_mib)
    with _explain_errors(step):
        function = load_step_function(step)
        gc.freeze()  # what was imported needs no search for garbage, which would take a third of the time
        trace = trace_training(lambda: make_step(function, options, needed), steps)
    if not trace.events:
        raise StepError(
            f'Nothing of {step} was on the GPU. Move its model and its batches to the device "cuda".'
        )
    need = replay(trace, model)
    estimate = estimate_memory(need)
    if model not in GPU_MODELS:
        remark = f"GPU model {gpu!r} is not known, so the largest known context is counted"
        estimate = replace(estimate, detail=f"{estimate.detail}; {remark}")
    return TracedMemory(
        estimate=estimate,
        gpu=model.name,
        fits=need.fits,
        parts_mib={part: round(mib, 1) for part, mib in need.parts_mib.items()},
        seconds=round(time.perf_counter() - begin, 2),
    )


@contextmanager
def _explain_errors(step: str) -> Iterator[None]:
    try:
        yield
    except StepError:
        raise
    except (
        DataDependentOutputException,
        DynamicOutputShapeException,
        UnsupportedFakeTensorException,
    ) as error:
        raise StepError(
            f"{step} cannot be traced: the result of {getattr(error, 'func', error)} depends on the values "
            "of tensors, which a trace does not have. Make the step without it, such as with a fixed size."
        ) from error
    except Exception as error:
        raise StepError(f"{step} failed: {type(error).__name__}: {error}") from error

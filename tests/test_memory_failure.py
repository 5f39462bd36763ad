"""A job that ran out of GPU memory is recognized by its output, and nothing else is taken for that."""

from __future__ import annotations

import time

import pytest

from gpu_flows.prediction.memory_failure import find_memory_failure

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    "10.75 GiB of which 512.00 MiB is free. Including non-PyTorch memory, this process has 9.50 GiB memory "
    "in use. Of the allocated memory 8.90 GiB is allocated by PyTorch"
)


@pytest.mark.parametrize(
    "line",
    [
        TORCH,
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8 GiB total)",
        "RuntimeError: CUDA out of memory. Tried to allocate 36.00 MiB",
        "RuntimeError: CUDA error: out of memory",
        "[rank1]: torch.OutOfMemoryError: HIP out of memory. Tried to allocate 64.00 MiB.",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "terminate called after throwing an instance of 'thrust': cudaErrorMemoryAllocation: out of memory",
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9",
        "tensorflow.ResourceExhaustedError: OOM when allocating tensor with shape[8,8] on device:GPU:0",
        "numba.cuda.cudadrv.driver.CudaAPIError: [2] Call results in CUDA_ERROR_OUT_OF_MEMORY",
        "12:00:01.123 | ERROR   | Flow run 'a' - Finished in state Failed(\"Flow run encountered an "
        'exception: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")',
    ],
)
def test_each_framework_is_recognized(line: str) -> None:
    assert find_memory_failure(f"epoch 1\n{line}\nthe command ended with exit code 1\n") is not None


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB; using a batch of 32 instead",
        "INFO recovering after torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB",
        "UserWarning: CUDA error: out of memory was ignored",
        "set PYTORCH_CUDA_ALLOC_CONF to avoid running out of memory on the GPU",
        "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: allocate 9 bytes",
        "MemoryError: Unable to allocate 8.00 GiB for an array",
        "Out of memory: Killed process 4242 (python)",
        "grpc RESOURCE_EXHAUSTED: Received message larger than max (9 vs. 4)",
        "ResourceExhaustedError: OOM when allocating tensor with shape[8] on device:CPU:0 by allocator cpu",
        "E tensorflow/cuda_driver.cc:802 failed to allocate 9.0G: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
        "java.lang.OutOfMemoryError: Java heap space",
        "ValueError: expected 3 channels",
    ],
)
def test_other_lines_are_not_taken_for_it(line: str) -> None:
    assert find_memory_failure(line) is None


def test_what_the_job_had_and_asked_for_is_read_from_torchs_message() -> None:
    failure = find_memory_failure(f"{TORCH}\nTraceback (most recent call last):\nChildFailedError: \n")
    assert failure is not None
    assert failure.needed_mb == pytest.approx(11.5 * 1024)


def test_a_failure_long_before_the_end_does_not_count() -> None:
    assert find_memory_failure("\n".join([TORCH, *(f"step {number}" for number in range(1000))])) is None


SURVIVED = f"Traceback (most recent call last):\n  File 'find_batch.py'\n{TORCH}\nusing a batch of 256\n"


@pytest.mark.parametrize(
    ("later", "died_of_it"),
    [
        ("epoch 40 done\nTraceback (most recent call last):\nFileNotFoundError: no /out/model.pt", False),
        ("During handling of the above exception, another exception occurred:\n\nKeyError: 'a'", False),
        ("The above exception was the direct cause of the following exception:\n\nValueError: x", True),
        ("torch.distributed.DistBackendError: NCCL error: remote process exited", True),
        ("RuntimeError: [gloo/transport/tcp/pair.cc] Connection closed by peer", True),
        ("[rank1]: ValueError: what another process met", True),
        ("subprocess.CalledProcessError: Command 'python train.py' returned non-zero exit status 1.", True),
    ],
)
def test_only_the_last_error_counts(later: str, died_of_it: bool) -> None:
    assert (find_memory_failure(SURVIVED + later) is not None) is died_of_it


@pytest.mark.parametrize("unit", ["OutOfMemoryError ", "Error: ", "OOM when allocating tensor "])
def test_a_long_line_is_searched_quickly(unit: str) -> None:
    began = time.process_time()
    assert find_memory_failure(unit * (65_536 // len(unit))) is None
    assert time.process_time() - began < 0.2

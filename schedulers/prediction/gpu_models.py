"""Facts of common GPU models, for predictions of memory and time.

Memory (as the driver reports it), bandwidth, cores, SMs, clocks and tensor cores are typical of each model;
cards of other makers may differ by a few percent. The CUDA context is what one process takes on the device
before its first tensor: its size depends on the number of SMs and on the driver, so the figures are typical
ones of CUDA 12, not exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

KIB, MIB = 1024, 2**20


@dataclass(frozen=True, slots=True)
class GpuModel:
    """One GPU as a job sees it."""

    name: str
    memory_mib: int
    bandwidth_gb_s: float
    sms: int
    cuda_cores: int
    tensor_cores: int
    memory_clock_mhz: int
    boost_clock_mhz: int
    compute_capability: tuple[int, int]
    context_mib: int

    @property
    def fp32_tflops(self) -> float:
        """Peak speed outside of tensor cores: a core does one multiplication and one addition a cycle."""
        return 2 * self.cuda_cores * self.boost_clock_mhz * 1e-6

    @property
    def has_tf32(self) -> bool:
        """Whether tensor cores work on float32 tensors (from Ampere on)."""
        return self.compute_capability >= (8, 0)

    @property
    def has_bf16(self) -> bool:
        return self.compute_capability >= (8, 0)

    @property
    def cublas_workspace_bytes(self) -> int:
        """What torch allocates for every pair of a cuBLAS handle and a stream, and keeps."""
        if self.compute_capability >= (9, 0):
            return 8 * 4096 * KIB
        return 2 * 4096 * KIB + 8 * 16 * KIB


# name, memory (MiB), bandwidth (GB/s), SMs, CUDA cores, tensor cores, memory and boost clock (MHz), compute
# capability, context (MiB). Where a name stands for several sizes, the first one listed is meant.
GPU_MODELS = [
    GpuModel("K80", 11441, 240, 13, 2496, 0, 2505, 875, (3, 7), 75),  # one of its two halves
    GpuModel("M60", 7618, 160, 16, 2048, 0, 2505, 1178, (5, 2), 120),
    GpuModel("P4", 7611, 192, 20, 2560, 0, 3003, 1063, (6, 1), 130),
    GpuModel("P40", 22919, 346, 30, 3840, 0, 3615, 1531, (6, 1), 150),
    GpuModel("P100", 16280, 732, 56, 3584, 0, 715, 1303, (6, 0), 250),
    GpuModel("GTX 1080 Ti", 11172, 484, 28, 3584, 0, 5505, 1582, (6, 1), 150),
    GpuModel("GTX 1080", 8114, 320, 20, 2560, 0, 5005, 1733, (6, 1), 130),
    GpuModel("V100 16GB", 16160, 900, 80, 5120, 640, 877, 1530, (7, 0), 305),
    GpuModel("V100 32GB", 32510, 900, 80, 5120, 640, 877, 1530, (7, 0), 305),
    GpuModel("T4", 15109, 320, 40, 2560, 320, 5001, 1590, (7, 5), 105),
    GpuModel("RTX 2070 Super", 7982, 448, 40, 2560, 320, 7001, 1770, (7, 5), 150),
    GpuModel("RTX 2080 Ti", 11019, 616, 68, 4352, 544, 7000, 1545, (7, 5), 190),
    GpuModel("RTX 2080", 7982, 448, 46, 2944, 368, 7000, 1710, (7, 5), 160),
    GpuModel("Titan RTX", 24220, 672, 72, 4608, 576, 7001, 1770, (7, 5), 200),
    GpuModel("Quadro RTX 8000", 48601, 672, 72, 4608, 576, 7001, 1770, (7, 5), 200),
    GpuModel("RTX 3060 Ti", 7982, 448, 38, 4864, 152, 7001, 1665, (8, 6), 160),
    GpuModel("RTX 3060", 12037, 360, 28, 3584, 112, 7501, 1777, (8, 6), 150),
    GpuModel("RTX 3070", 7982, 448, 46, 5888, 184, 7001, 1725, (8, 6), 170),
    GpuModel("RTX 3080", 10018, 760, 68, 8704, 272, 9501, 1710, (8, 6), 220),
    GpuModel("RTX 3090", 24268, 936, 82, 10496, 328, 9751, 1695, (8, 6), 260),
    GpuModel("RTX 4060 Ti", 7932, 288, 34, 4352, 136, 9001, 2535, (8, 9), 160),
    GpuModel("RTX 4060", 7932, 272, 24, 3072, 96, 8501, 2460, (8, 9), 120),
    GpuModel("RTX 4070 Ti", 11994, 504, 60, 7680, 240, 10501, 2610, (8, 9), 210),
    GpuModel("RTX 4090", 24210, 1008, 128, 16384, 512, 10501, 2520, (8, 9), 340),
    GpuModel("A10G", 22515, 600, 80, 9216, 320, 6251, 1710, (8, 6), 240),
    GpuModel("A10", 22515, 600, 72, 9216, 288, 6251, 1695, (8, 6), 230),
    GpuModel("A30", 24062, 933, 56, 3584, 224, 1215, 1440, (8, 0), 300),
    GpuModel("A40", 45403, 696, 84, 10752, 336, 7251, 1740, (8, 6), 260),
    GpuModel("RTX A6000", 48541, 768, 84, 10752, 336, 8001, 1800, (8, 6), 260),
    GpuModel("RTX 6000 Ada", 48510, 960, 142, 18176, 568, 10001, 2505, (8, 9), 360),
    GpuModel("A100 40GB", 40337, 1555, 108, 6912, 432, 1215, 1410, (8, 0), 415),
    GpuModel("A100 80GB", 81038, 2039, 108, 6912, 432, 1593, 1410, (8, 0), 415),
    GpuModel("L4", 22502, 300, 58, 7424, 232, 6251, 2040, (8, 9), 210),
    GpuModel("L40S", 45470, 864, 142, 18176, 568, 9001, 2520, (8, 9), 360),
    GpuModel("H100", 81090, 3352, 132, 16896, 528, 2619, 1980, (9, 0), 515),
    GpuModel("H200", 143156, 4800, 132, 16896, 528, 3201, 1980, (9, 0), 515),
    GpuModel("B200", 182634, 7700, 148, 18944, 592, 3996, 1965, (10, 0), 600),
]


class UnknownGpuModel(ValueError):
    """No GPU model has such a name."""


def find_gpu_model(name: str) -> GpuModel:
    """Return the GPU model of this name, or the one whose name is best contained in it: `A100`, `rtx3060`,
    `a100-80`, `NVIDIA A100-SXM4-80GB` and `GeForce-RTX-4070-Ti` are all understood."""
    return find_variants(name)[0]


def find_variants(name: str) -> list[GpuModel]:
    """Return the GPU models that the name means: several if it stands for several sizes of memory. The first
    one is taken. Raises UnknownGpuModel if there is none."""
    words = _split(name)
    found = [model for model in GPU_MODELS if _matches(_split(model.name), words)]
    if not found:
        raise UnknownGpuModel(_explain_unknown(name, words))
    # The longest name says most: "RTX 3060 Ti" before "RTX 3060".
    matches = [len(_split(model.name) & words) for model in found]
    return [model for model, count in zip(found, matches, strict=True) if count == max(matches)]


@lru_cache(maxsize=1024)
def find_chip(name: str) -> str:
    """Return one name, in small letters, for all that is written of a GPU whatever its memory: `a100` for
    `A100 80GB` and `NVIDIA A100-SXM4-40GB`. A name that is not known stands for itself."""
    try:
        return re.sub(r" \d+gb$", "", find_gpu_model(name).name.lower())
    except UnknownGpuModel:
        return name.strip().lower()


def _explain_unknown(name: str, words: frozenset[str]) -> str:
    near = [model.name for model in GPU_MODELS if words and words <= _split(model.name)]
    if len(near) > 1:
        return f"{name!r} does not name one GPU model. There are several: {', '.join(near)}."
    if near:
        return f"GPU model {name!r} is not known. Did you mean {near[0]}?"
    known = ", ".join(model.name for model in GPU_MODELS)
    return f"GPU model {name!r} is not known. Known are: {known}."


def find_or_assume_gpu_model(name: str, memory_mib: int = 0) -> GpuModel:
    """Return the GPU model of this name. One that is not known is taken to need as much for its context and
    workspaces as the model that needs most, so that a prediction of memory is rather too high; its other
    facts mean nothing. `memory_mib` is its own memory; 0 if that is not known either."""
    try:
        return find_gpu_model(name)
    except UnknownGpuModel:
        most = max(GPU_MODELS, key=lambda model: model.context_mib)
        return replace(most, name=name or "GPU", memory_mib=memory_mib or most.memory_mib)


def find_context_mib(name: str) -> int:
    """Return what the CUDA context of a process takes on this GPU model; 0 if the model is not known."""
    try:
        return find_gpu_model(name).context_mib
    except UnknownGpuModel:
        return 0


@lru_cache(maxsize=1024)
def _split(name: str) -> frozenset[str]:
    """The words of a name, with letters and digits of one model kept together: rtx3060 -> {rtx, 3060}. A size
    of memory is written in one way: 80, 80G and 80GB -> 80gb."""
    text = re.sub(r"(rtx|gtx|quadro|titan)(?=\d)", r"\1 ", name.lower())
    text = re.sub(r"(?<=\d\d\d\d)(ti|super)\b", r" \1", text)
    words = re.findall(r"[a-z0-9]+", text)
    return frozenset(re.sub(r"^(\d{2,3})(g|gb|gib)?$", r"\1gb", word) for word in words)


_BRANDS = {"rtx", "gtx", "quadro"}


def _matches(model: frozenset[str], words: frozenset[str]) -> bool:
    """Whether the words name this model: everything but its brand and its memory must be among them."""
    sizes, own_sizes = _find_sizes(words), _find_sizes(model)
    if sizes and own_sizes and not sizes & own_sizes:
        return False
    return model - _BRANDS - own_sizes <= words


def _find_sizes(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if re.fullmatch(r"\d{2,3}gb", word))

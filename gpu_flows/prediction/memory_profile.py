"""The measured peaks that a new installation predicts from, and the model that is fitted on them.

They are SchedTune's: 12 CNNs with 4 batch sizes on 5 GPU models, published with the paper (CCGrid 2022). Both
files of the package are made by

    python -m gpu_flows.prediction.memory_profile model_stats.csv --licence LICENSE

with its `model_stats.csv`. The file does not state an optimizer; the model takes plain SGD, so that it adds
too much rather than too little for others.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpu_flows.prediction.memory_fitting import MeasuredJob, fit
from gpu_flows.schedulers.prediction.memory_features import GpuTraits, MemoryFeatures, MemoryModel

SOURCE = "SchedTune's profile of 12 CNNs on 5 GPU models (Stone-ResearchLife/Scheduler-SchedTune-CCGrid-2022)"
OPTIMIZER = "SGD"  # see above
PROFILE, MODEL = "memory_profile.json", "memory_model.json"
# The profile names a GPU model by its figures only.
GPU_NAMES = {2496: "K80", 2560: "RTX 2070 Super", 5888: "RTX 3070", 5120: "V100", 10496: "RTX 3090"}


def read_csv(path: Path) -> list[MeasuredJob]:
    """Read SchedTune's file. Raises ValueError if it has other columns."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return [_read_row(row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not SchedTune's model_stats.csv: {error!r}.") from None


def _read_row(row: dict[str, str]) -> MeasuredJob:
    cores = int(row["Pipelines/CUDA cores"])
    gpu = GpuTraits(
        GPU_NAMES.get(cores, f"{cores} cores"),
        float(row["Memory bandwidth (GB/s)"]),
        cores,
        float(row["SM count"]),
    )
    features = MemoryFeatures(
        parameters_mib=float(row["parameters"]),
        activations_mib=float(row["activations"]),
        batch=float(row["batchsize"]),
        input_mib=float(row["input"]),
        optimizer=OPTIMIZER,
        family=row["model"],
        gpu=gpu,
    )
    return MeasuredJob(features, row["model"], float(row["peak mem usage"]))


# -- the files of the package -----------------------------------------------------------------


@cache
def default_model() -> MemoryModel:
    """The model that serves until there is a retrained one. Needs no scikit-learn."""
    return MemoryModel.from_json(_read_data(MODEL))


def default_jobs() -> list[MeasuredJob]:
    """The jobs that the default model was fitted on."""
    profile = _read_data(PROFILE)
    gpus = {gpu["name"]: GpuTraits(**gpu) for gpu in profile["gpus"]}
    return [
        MeasuredJob(
            MemoryFeatures(parameters, activations, batch, input_mib, OPTIMIZER, network, gpus[gpu]),
            network,
            peak,
        )
        for network, gpu, parameters, activations, batch, input_mib, peak in profile["jobs"]
    ]


def _read_data(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((files("gpu_flows.prediction") / name).read_text(encoding="utf-8"))
    return data


def _describe(jobs: Iterable[MeasuredJob], licence: str) -> dict[str, Any]:
    jobs = list(jobs)
    gpus = sorted({job.features.gpu for job in jobs if job.features.gpu})
    return {
        "source": SOURCE,
        "licence": licence,
        "columns": "network, GPU model, parameters MiB, activations MiB, batch, input MiB, peak MiB",
        "gpus": [gpu._asdict() for gpu in gpus],
        "jobs": [
            [
                job.network,
                job.features.gpu.name if job.features.gpu else "",
                job.features.parameters_mib,
                job.features.activations_mib,
                job.features.batch,
                job.features.input_mib,
                job.peak_mib,
            ]
            for job in jobs
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Make the memory profile and the default model of the package."
    )
    parser.add_argument("csv", type=Path, help="SchedTune's model_stats.csv")
    parser.add_argument("--licence", type=Path, required=True, help="the licence that the rows are under")
    options = parser.parse_args()
    jobs = read_csv(options.csv)
    folder = Path(__file__).parent
    profile = _describe(jobs, options.licence.read_text(encoding="utf-8"))
    (folder / PROFILE).write_text(json.dumps(profile) + "\n", encoding="utf-8")
    model = fit(jobs, source=f"fitted on {len(jobs)} measured jobs of SchedTune's profile")
    (folder / MODEL).write_text(json.dumps(model.to_json()) + "\n", encoding="utf-8")
    print(f"{folder / MODEL}: margins {model.margins}")


if __name__ == "__main__":
    main()

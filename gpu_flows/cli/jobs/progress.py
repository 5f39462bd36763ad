"""How the progress of a running job is shown."""

from __future__ import annotations

from typing import Any

from gpu_flows.cli import output


def describe_progress(progress: dict[str, Any] | None) -> str:
    """`45% done, about 3m 00s left, probably within 4m 00s (tqdm)`; empty if its output does not tell it."""
    if not progress:
        return ""
    left, most = (output.format_duration(progress[name]) for name in ("remaining_s", "upper_s"))
    done = f"{100 * progress['fraction']:.0f}% done"
    return f"{done}, about {left} left, probably within {most} ({progress['source']})"


def note_left(job: dict[str, Any]) -> str:
    """`, 3m 00s left`, to be added to the time that the job has run; empty if its output does not tell it."""
    progress = job.get("progress")
    return f", {output.format_duration(progress['remaining_s'])} left" if progress else ""

"""Reads one line of a job's output: what it tells of epochs, steps or the whole job, whoever prints it.

Known are tqdm (also as printed by Lightning and the Hugging Face trainer), Keras, fastai, the `train` flow,
and what people print themselves, such as "Epoch 3/10", "step 20 of 500" or "Progress: 45%". What counts
something else is left out: validation, downloads, GPUs, dates, correct answers. `job_progress` puts the lines
of a job together.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST_LINE = 1_000  # characters that are read
NEAR = 30  # characters before a number in which the name of its loop is looked for


class Loop(NamedTuple):
    """The position in a loop."""

    name: str
    done: float
    total: float

    @property
    def fraction(self) -> float:
        return min(1.0, self.done / self.total)


class Reading(NamedTuple):
    """What one line tells. Numbers of all epochs and steps are 0 where the line does not tell them."""

    source: str
    whole: float | None = None  # the fraction of the whole job
    epoch: int | None = None  # as printed: counted from 0 or from 1
    at_end: bool = False  # the epoch has ended
    epochs_done: float | None = None
    epochs: int = 0
    steps: Loop | None = None  # in the present epoch, or in the whole job
    step: int | None = None  # of a number that the line does not tell
    all_steps: int = 0  # of the whole job


_OTHER = Reading("other")  # a loop that is not the training's

# The output is whatever a job prints, so no pattern may take long on any text: repetitions that could begin
# at many places are limited.
_NUMBER = r"(\d[\d,]{0,15})"
_OF = r"\s{0,3}(?:/|of|out of)\s{0,3}"

# tqdm: 45%|####      | 90/200 [00:12<00:15, 7.2it/s]
_BAR = re.compile(
    r"\d{1,3}%\s?\|[^|]*\|\s*(\d+(?:\.\d+)?)([kMGT]?)/(\d+(?:\.\d+)?)([kMGT]?)[a-zA-Z]*\s*\[[\d:]+<"
)
# fastai: |----------| 40.00% [2/5 00:10<00:15]
_FASTAI_BAR = re.compile(r"\|\s*\d{1,3}(?:\.\d+)?% \[(\d+)/(\d+) [\d:]+<")
_FASTAI_ROW = re.compile(r"^(\d+)\s+(?:\d*\.\d+\s+)+\d+:\d\d\s*$")  # 0   0.523   0.312   00:12
# Keras: 100/938 [==>....] - ETA: 2s, or since version 3: 100/938 ━━━━━ 3s 3ms/step
_KERAS_BAR = re.compile(r"^\s*(\d+)/(\d+)\s+(?:\[[=>.]+\]|━)")
_TRAIN_FLOW = re.compile(r"(\d{1,3})%  epoch \d")
_EPOCH = re.compile(
    rf"\bepochs?\b\s{{0,3}}[:#=-]?\s{{0,3}}[\[(]?\s{{0,3}}{_NUMBER}(?!\d{{0,9}}\.\d)(?:{_OF}{_NUMBER})?[\])]?",
    re.IGNORECASE,
)
# Directly after an epoch: [100/5005], [12800/60000 (21%)], or Lightning's ━━━━ 90/200
_IN_EPOCH = re.compile(rf"^(?:\s{{0,3}}\[\s{{0,3}}|\s{{0,3}}[━╸╺]{{1,200}}\s{{0,9}}){_NUMBER}/{_NUMBER}")
_STEPS = re.compile(
    rf"\b(?:global_|train_|training_)?(?:step|iter|iteration|batch|minibatch|update)(?:es|s)?\b"
    rf"\s{{0,3}}[:#=]?\s{{0,3}}[\[(]?\s{{0,3}}{_NUMBER}{_OF}{_NUMBER}",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"\b(?:global_)?(?:step|iter|iteration)\b\s{0,3}[:#=]?\s{0,3}(\d[\d,]{0,15})", re.IGNORECASE
)
_PERCENT = re.compile(
    r"\b(?:progress|completed?|finished|done)\W{1,3}(\d{1,3}(?:\.\d+)?)\s?%"
    r"|(?<![\d.])(\d{1,3}(?:\.\d+)?)\s?%\s+(?:complete|completed|done|finished)\b",
    re.IGNORECASE,
)
# Hugging Face: {'loss': 0.5, 'epoch': 1.25}
_LOGGED_EPOCH = re.compile(r"^\s*\{.*'epoch': '?(\d+(?:\.\d+)?)'?")
_ALL_EPOCHS = re.compile(
    r"\b(?:num|max|total|n)[ _](?:train_)?epochs\b['\"]?\s*[=:]\s*(\d+)|['\"]epochs['\"]\s*:\s*(\d+)",
    re.IGNORECASE,
)
_ALL_STEPS = re.compile(r"\btotal optimization steps\s*=\s*([\d,]+)", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_RATIO, _OF_NUMBER = re.compile(r"/ ?\d"), re.compile(r" of \d")  # fast: each begins with a fixed text

# A loop after one of these words is no part of the training, or a short part of each epoch.
_OTHER_LOOP = re.compile(
    r"\b(?:val|valid|validat\w+|eval|evaluat\w+|test|testing|sanity|predict\w*|download\w*|upload\w*|"
    r"load|loading|map|mapping|filter\w*|tokeniz\w+|saving|extract\w*|generating|fetching|preprocess\w*|"
    r"caching|scanning|indexing|compiling|shards?|files?|patience|retry|attempt|warmup)\b",
    re.IGNORECASE,
)
_METRIC = re.compile(
    r"\b(?:\w+_)?(?:loss|acc|accuracy|time|took|finished|completed?|done|ended|f1|ppl)\b", re.IGNORECASE
)
_THOUSANDS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def may_tell_progress(line: str) -> bool:
    """Return whether the line is worth reading: a cheap test that most lines of most jobs fail."""
    if "%" in line or "poch" in line or "POCH" in line or "ptimization steps" in line:
        return True
    if "/" in line and _RATIO.search(line):
        return True
    return " of " in line and _OF_NUMBER.search(line) is not None


def read_line(line: str) -> Reading | None:
    """Return what the line tells of the job's progress. Of a bar that overwrites itself, the last state
    counts."""
    if "\r" in line:
        line = line.rstrip("\r\n").rpartition("\r")[2]
    line = line[:LONGEST_LINE]
    if "\x1b" in line:
        line = _COLOUR.sub("", line)
    if "%" in line and (found := _TRAIN_FLOW.search(line)):
        return Reading("train flow", whole=min(1.0, int(found[1]) / 100))
    if "|" in line and (reading := _read_bar(line)):
        return None if reading is _OTHER else reading
    if ("poch" in line or "POCH" in line) and (reading := _read_epoch(line)):
        return None if reading is _OTHER else reading
    if found := _KERAS_BAR.search(line):
        return Reading("Keras", steps=_loop("bar", found[1], found[2]))
    if (found := _STEPS.search(line)) and not _names_other_loop(line, found.start()):
        return Reading("steps", steps=_loop("steps", found[1], found[2]))
    if "%" in line and (found := _PERCENT.search(line)) and not _names_other_loop(line, found.start()):
        percent = float(found[1] or found[2])
        return Reading("percent", whole=percent / 100) if percent <= 100 else None
    if found := _ALL_STEPS.search(line):
        return Reading("Hugging Face", all_steps=_int(found[1]))
    return None


def read_table_row(line: str) -> Reading | None:
    """Return what a row of fastai's table tells: that its epoch has ended."""
    found = _FASTAI_ROW.match(line)
    return Reading("fastai", epochs_done=int(found[1]) + 1) if found else None


def starts_table(line: str) -> bool:
    """Return whether the line is the head of fastai's table."""
    return line.startswith("epoch ") and "train_loss" in line


def read_step(line: str) -> Reading | None:
    """Return the step of a line that does not tell how many steps there are."""
    found = _STEP.search(line)
    if not found or _names_other_loop(line, found.start()):
        return None
    return Reading("steps", step=_int(found[1]))


def _names_other_loop(line: str, position: int) -> bool:
    """Return whether the words before this position name a loop that is not the training's."""
    return bool(_OTHER_LOOP.search(line, max(0, position - NEAR), position))


def _read_bar(line: str) -> Reading | None:
    """Read a bar of tqdm or fastai, with the epoch before it if there is one."""
    bar = _BAR.search(line)
    if bar:
        source, title = "tqdm", line[: bar.start()]
        total = float(bar[3]) * _THOUSANDS[bar[4]]
        loop = Loop("", float(bar[1]) * _THOUSANDS[bar[2]], total)
    elif bar := _FASTAI_BAR.search(line):
        source, title = "fastai", line[: bar.start()]
        loop = Loop("", float(bar[1]), float(bar[2]))
    else:
        return None
    if _OTHER_LOOP.search(title) or not loop.total:
        return _OTHER
    epoch = _EPOCH.search(title)
    if epoch:
        return Reading(
            source if epoch[2] else "Lightning",
            epoch=_int(epoch[1]),
            epochs=_int(epoch[2] or "0"),
            steps=loop._replace(name="bar"),
        )
    if "poch" in title:  # the bar counts the epochs themselves
        return Reading(source, epochs_done=loop.done, epochs=int(loop.total))
    name = re.sub(r"[\d\W]+", " ", title).strip()[:40]
    return Reading(source, steps=loop._replace(name=name or "bar"))


def _read_epoch(line: str) -> Reading | None:
    """Read a line that names an epoch, with the steps in it if the line tells them."""
    if found := _LOGGED_EPOCH.search(line):
        return Reading("Hugging Face", epochs_done=float(found[1]))
    if found := _ALL_EPOCHS.search(line):
        return Reading("Hugging Face", epochs=_int(found[1] or found[2]))
    epoch = _EPOCH.search(line)
    if not epoch:
        return None
    if _names_other_loop(line, epoch.start()):
        return _OTHER
    rest = line[epoch.end() :]
    number, epochs = _int(epoch[1]), _int(epoch[2] or "0")
    steps = _IN_EPOCH.search(rest) or _STEPS.search(rest)
    if steps and not _names_other_loop(rest, steps.start()):
        return Reading("epochs", epoch=number, epochs=epochs, steps=_loop("steps", steps[1], steps[2]))
    return Reading("epochs", epoch=number, epochs=epochs, at_end=bool(_METRIC.search(rest)))


def _loop(name: str, done: str, total: str) -> Loop | None:
    return Loop(name, _int(done), _int(total)) if _int(total) and _int(done) <= _int(total) else None


def _int(digits: str) -> int:
    return int(digits.replace(",", "")[:15])

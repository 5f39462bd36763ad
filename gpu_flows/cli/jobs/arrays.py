"""Several jobs from one command line: `--array 1-10%4` and `--sweep lr=0.1,0.01`.

Each job of an array or a sweep is a member. `{index}` and the names of the sweep stand for its values in the
command, in parameters and in environment variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product

from gpu_flows.cli.errors import BadInput

INDEX = "index"
INDEX_VARIABLE = "GPU_FLOWS_ARRAY_INDEX"
MOST_MEMBERS = 10_000
_RANGE = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_NAME = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True, slots=True)
class Member:
    """One job of an array or a sweep; the only job of a command line without them."""

    index: str = ""
    label: str = ""  # in brackets after the name of the job
    swept: dict[str, str] = field(default_factory=dict)

    def fill(self, text: str) -> str:
        """The text with this member's values in place of `{index}` and of `{NAME}` of the sweep."""
        values = {INDEX: self.index, **self.swept} if self.index else {}
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    def name(self, base: str) -> str:
        return f"{base}[{self.label}]" if self.label else base


def split_limit(array: str) -> tuple[str, int]:
    """The indices and the limit of `1-10%4`: at most 4 of the jobs at the same time; 0 is no limit."""
    indices, percent, limit = array.partition("%")
    if not percent:
        return array, 0
    if not limit.strip().isdecimal() or not int(limit):
        raise BadInput(f"--array {array!r}: after % comes how many of the jobs may run at the same time.")
    return indices, int(limit)


def list_members(array: str, sweeps: Sequence[str]) -> list[Member]:
    """The members of an array, of a sweep, or of both combined. Raises BadInput."""
    choices = [(name, values) for name, values in map(_parse_sweep, sweeps)]
    names = [name for name, _ in choices]
    if len(set(names)) < len(names):
        raise BadInput("--sweep names the same parameter twice.", "Write it once: --sweep lr=0.1,0.01")
    indices = _parse_array(array) if array else []
    combinations = [dict(zip(names, values, strict=True)) for values in product(*(v for _, v in choices))]
    count = max(1, len(indices)) * len(combinations)
    if count > MOST_MEMBERS:
        raise BadInput(f"These are {count:,} jobs; at most {MOST_MEMBERS:,} are submitted at once.")
    if not array and not sweeps:
        return [Member()]
    if not array:
        return [Member(str(n), _label(swept), swept) for n, swept in enumerate(combinations, 1)]
    return [
        Member(str(index), ",".join(filter(None, (str(index), _label(swept)))), swept)
        for index in indices
        for swept in combinations
    ]


def check_swept_names_are_used(members: Sequence[Member], texts: Iterable[str]) -> None:
    """Refuse a sweep whose values would change nothing in a command."""
    everything = " ".join(texts)
    for name in members[0].swept:
        if f"{{{name}}}" not in everything:
            raise BadInput(
                f"--sweep {name} changes nothing: the command does not contain {{{name}}}.",
                f"For example: gpu-flows submit --sweep {name}=1,2 -- python train.py --{name} {{{name}}}",
            )


def _parse_array(text: str) -> list[int]:
    """The indices of `1-10`, `0-90:10` or `1,3,5-8`."""
    indices: list[int] = []
    for part in text.split(","):
        found = _RANGE.fullmatch(part.strip())
        first, last, step = (int(group or -1) for group in found.groups()) if found else (0, 0, 0)
        last, step = (first if last < 0 else last), abs(step)
        if not step or last < first:
            raise BadInput(f"--array {text!r} is no range of indices.", "Write 1-10, 0-90:10 or 1,3,5-8.")
        if (last - first) // step >= MOST_MEMBERS:
            raise BadInput(f"--array {text} has more than {MOST_MEMBERS:,} jobs.")
        indices += range(first, last + 1, step)
    if len(set(indices)) < len(indices):
        raise BadInput(f"--array {text!r} contains an index twice.")
    return indices


def _parse_sweep(text: str) -> tuple[str, list[str]]:
    name, equals, values = text.partition("=")
    found = [value.strip() for value in values.split(",")]
    if not equals or not _NAME.fullmatch(name.strip()) or not all(found):
        raise BadInput(f"--sweep {text!r} is not of the form NAME=VALUE,VALUE, such as lr=0.1,0.01.")
    if name.strip() == INDEX:
        raise BadInput("--sweep index: the name stands for the index of --array.", "Choose another name.")
    return name.strip(), found


def _label(swept: dict[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in swept.items())

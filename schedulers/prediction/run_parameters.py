"""The parameters of a run as predictors read them: flat, by name, without secrets."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MOST_COMMAND = 2_000  # characters of a command line that are searched for options
MOST_PARAMETERS = 100  # that are kept of a run, each with at most so many characters
MOST_CHARACTERS = 200

# An option of a command line with a value: --epochs 3, --model=resnet50, model=resnet50. `-m` does not
# count, because it names the program, nor does a flag before a script, as in `--multi-gpu train.py`.
_OPTION = re.compile(
    r"""(?:^|\s)(?:--?([A-Za-z][\w.-]+)(?:=|\s+(?!-|\S+\.(?:py|sh)\b))|([A-Za-z_][\w.]*)=)"""
    r"""("[^"]*"|'[^']*'|\S+)"""
)
# A parameter with such a name may be a secret. No predictor needs it, so none gets to see it.
_SECRET = re.compile(
    r"password|passwd|passphrase|secret|credential|api ?key|\bauth(orization)?\b|(token|key|pwd)$"
)

# Parameters that never change the memory of a training step. (Momentum does: its buffers exist only if it is
# not 0.)
_NEVER = r"\b(seed|lr|learning rate|weight decay|tags?)$|^(run |job )?name$"
_SAME_STEP = re.compile(_NEVER)
# The same, and those that rarely do. A path may name the model, and samples may be kept on the device.
_SAME_RUN = re.compile(
    _NEVER + r"|\b(seed|lr|rate|decay|epochs?|samples|seconds|pace|patience|path|dir|directory|folder|url"
    r"|checkpoint|resume|log|verbose|tags?|title|note|comment|project|experiment)\b"
    r"|^(((max|num) )?steps|threads)$"
)


def may_change_step(name: str) -> bool:
    """Return whether a parameter of this name may change the memory of a training step."""
    return not _SAME_STEP.search(to_words(name))


def usually_changes_memory(name: str) -> bool:
    """Return whether runs that differ in a parameter of this name usually need different memory."""
    return not _SAME_RUN.search(to_words(name))


def flatten(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters together with those that are inside others and with the options of a command.

    `{"config": {"batch": 8}, "command": "train --lr 0.1"}` gives `batch`, `command` (`train`) and `lr`. Of
    parameters with the same name, the outermost has it; others are named by their path, as `config.batch`.
    What is flat already stays as it is.
    """
    found: dict[str, Any] = {}
    level: list[tuple[str, Mapping[str, Any]]] = [("", parameters)]
    while level:
        inner: list[tuple[str, Mapping[str, Any]]] = []
        for prefix, group in level:
            for name, value in sorted(group.items()):
                path = f"{prefix}{name}"
                if _is_secret(name):
                    continue
                if name == "command" and isinstance(value, str):
                    value, options = _split_command(value)
                    inner.append((f"{path}.", options))
                if isinstance(value, Mapping):
                    inner.append((f"{path}.", value))
                elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
                    inner.append((f"{path}.", {str(number): each for number, each in enumerate(value)}))
                else:
                    found[path if name in found else name] = value
        level = inner
    return found


def shorten(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flat parameters, limited in size. What is too long is replaced by its digest, so that
    different parameters stay different."""
    flat = list(flatten(parameters).items())
    kept = {name[:MOST_CHARACTERS]: _shorten(value) for name, value in flat[:MOST_PARAMETERS]}
    return kept | ({"others": digest(flat[MOST_PARAMETERS:])} if flat[MOST_PARAMETERS:] else {})


@lru_cache(maxsize=4096)
def to_words(name: str) -> str:
    """Return the words of a parameter's own name: `config.batchSize` and `batch_size` give `batch size`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[\W_]+", " ", name.rpartition(".")[2]).strip().lower()


def digest(value: Any) -> str:
    """Return a short text that differs for different values and does not disclose them."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@lru_cache(maxsize=4096)
def _is_secret(name: str) -> bool:
    return _SECRET.search(to_words(name)) is not None


def _split_command(command: str) -> tuple[str, dict[str, Any]]:
    """Return a command line without its options, and the options."""
    searched, rest = command[:MOST_COMMAND], command[MOST_COMMAND:]
    options = {
        (long or bare).replace("-", "_"): _read_number(text.strip("\"'"))
        for long, bare, text in _OPTION.findall(searched)
    }
    return f"{_OPTION.sub('', searched)} {digest(rest) if rest else ''}".strip(), options


def _read_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _shorten(value: Any) -> Any:
    is_short = len(json.dumps(value, default=str)) <= MOST_CHARACTERS
    return value if is_short else f"digest {digest(value)}"

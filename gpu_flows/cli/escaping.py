"""Escaping text for a terminal. Names and messages come from users and may hold control characters."""

from __future__ import annotations


def escape(value: object) -> str:
    """The value as text in which every character that is not printable is written as an escape sequence."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_escape_character, text))


def escape_lines(value: object) -> str:
    """The same for a text of several lines, which stay separate lines."""
    return "\n".join(map(escape, str(value).splitlines()))


def _escape_character(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()

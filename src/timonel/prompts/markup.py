"""Marks in a prompt's text: `Who should wear [[item:a kimono]]?` names the characters of `a kimono` as `item`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from timonel.errors import InputError

Mark = tuple[str, int, int]
"""A span of text: name, first character, one past the last."""

_MARK = re.compile(r"\[\[([A-Za-z_][A-Za-z0-9_-]*):(.*?)\]\]", re.DOTALL)


def parse_markup(text: str) -> tuple[str, tuple[Mark, ...]]:
    """Takes the marks out of a text and says where they stood.

    A name that is marked twice covers both places. Marks do not nest.

    Args:
        text: text with marks of the form `[[name:characters]]`.

    Returns:
        The plain text, and its marks in the order of the text.

    Raises:
        InputError: a mark is empty, nested or not closed.
    """
    plain: list[str] = []
    marks: list[Mark] = []
    length = end = 0
    for found in _MARK.finditer(text):
        name, inside = found.groups()
        if not inside or "[[" in inside:
            raise InputError(
                f"The mark {found.group(0)!r} is {'empty' if not inside else 'nested'}, "
                "but a mark covers some plain text; write it as [[name:text]]."
            )
        before = text[end : found.start()]
        plain += [before, inside]
        marks.append((name, length + len(before), length + len(before) + len(inside)))
        length += len(before) + len(inside)
        end = found.end()
    plain.append(text[end:])
    if "[[" in text[end:] and re.search(r"\[\[[A-Za-z_][A-Za-z0-9_-]*:", text[end:]):
        raise InputError(f"A mark in {text[end:][:60]!r} is never closed, but [[name:text]] ends with ]]; close it.")
    return "".join(plain), tuple(marks)


def find_mark(name: str, part: str, text: str, *, start: int = 0, last: bool = False) -> Mark:
    """Marks the first (or last) place where `part` stands in `text`.

    Raises:
        InputError: it stands nowhere; the message shows the text.
    """
    at = text.rfind(part, start) if last else text.find(part, start)
    if at < 0 or not part:
        raise InputError(
            f"The span {name!r} is the text {part!r}, but that does not stand in {text!r}; "
            "give a part of the prompt exactly as it is written there."
        )
    return name, at, at + len(part)


def shift(marks: Sequence[Mark], by: int) -> tuple[Mark, ...]:
    """The same marks in a text that stands `by` characters further on."""
    return tuple((name, first + by, last + by) for name, first, last in marks)

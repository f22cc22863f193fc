"""Strict JSON, read piece by piece: whatever a file should not hold is refused at the place where it stands.

Refused: keys that stand twice, NaN and infinities (1e999 among them), fields that are unknown or missing, and values
of another type (a boolean is no number, 2.0 is no whole number).
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from timonel.errors import InputError

AGAIN = "save the plan again with Plan.save"


def parse(text: str) -> Any:
    """Parses JSON; a ValueError says what is wrong."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def canonical(value: Any) -> bytes:
    """The one way to write a JSON value, for hashes: sorted keys, no blanks, shortest floats, UTF-8.

    Raises:
        ValueError: the value cannot be written as JSON.
    """
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return text.encode()


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file and its place in it.

    Attributes:
        value: what stands there.
        file: the file, as the user named it.
        path: the place inside, such as `plan[0].alpha`; empty at the top.
    """

    value: Any
    file: str
    path: str = ""

    @property
    def where(self) -> str:
        """The place, as an error names it."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def wrong(self, expected: str, todo: str = AGAIN) -> InputError:
        """The error that says that something else was expected here."""
        return InputError(f"{self.where} is {reprlib.repr(self.value)}, but {expected} is expected; {todo}.")

    def fields(self, *names: str) -> dict[str, Node]:
        """The values of an object that has these fields, all of them and no others."""
        have = self.object()
        if unknown := [name for name in have if name not in names]:
            raise InputError(
                f"{self.where} has the unknown field {unknown[0]!r}, but exactly {', '.join(names)} are known here; "
                f"{AGAIN}, or upgrade timonel if a newer one wrote it."
            )
        if missing := [name for name in names if name not in have]:
            raise InputError(f"{self.where} lacks the field {missing[0]!r}, but it must be stated; {AGAIN}.")
        return have

    def object(self) -> dict[str, Node]:
        """The values of an object, whatever its fields."""
        if not isinstance(self.value, dict):
            raise self.wrong("an object")
        dot = f"{self.path}." if self.path else ""
        return {name: Node(value, self.file, f"{dot}{name}") for name, value in self.value.items()}

    def items(self) -> list[Node]:
        """The values of a list."""
        if not isinstance(self.value, list):
            raise self.wrong("a list")
        return [Node(value, self.file, f"{self.path}[{index}]") for index, value in enumerate(self.value)]

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self.wrong("a text")
        return self.value

    def text_or_null(self) -> str | None:
        """A text, or nothing."""
        return None if self.value is None else self.text()

    def one_of(self, names: Iterable[str], what: str) -> str:
        """One of some texts."""
        names = list(names)
        if not isinstance(self.value, str) or self.value not in names:
            raise self.wrong(f"a known {what} ({', '.join(names)})", f"{AGAIN}, or upgrade timonel")
        return self.value

    def whole(self, least: int = 0) -> int:
        """A whole number."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < least:
            raise self.wrong(f"a whole number from {least} up")
        return self.value

    def number(self) -> float:
        """A finite number."""
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            raise self.wrong("a number")
        try:
            return float(self.value)
        except OverflowError:
            raise self.wrong("a number that float64 can hold") from None


def pretty(content: Mapping[str, Any]) -> str:
    """One intervention a line, so that a plan of many heads can be read and compared."""
    lines = []
    for name, value in content.items():
        if name == "plan":
            text = _lines(value, 2)
        elif name == "plans":
            text = "{\n" + ",\n".join(f"    {_line(key)}: {_lines(plan, 4)}" for key, plan in value.items()) + "\n  }"
        else:
            text = json.dumps(value, ensure_ascii=False, indent=2).replace("\n", "\n  ")
        lines.append(f"  {_line(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(plan: list[Any], depth: int) -> str:
    blank = " " * depth
    return "[\n" + ",\n".join(f"{blank}  {_line(one)}" for one in plan) + f"\n{blank}]" if plan else "[]"


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text} is not finite")
    return number

r"""Contrasts that a user brings: a JSON object a line, two prompts that differ in one thing, and the answers to watch.

    {"id": "keys", "group": "keys",
     "match":    "The [[to:keys]] near the [[control_to:door]] [[from:really]]",
     "mismatch": "The [[to:key]] near the [[control_to:door]] [[from:really]]",
     "answers": {"toward": [" are", " were"], "away": [" is", " was"]},
     "balance": ["plural", "singular"]}

    id        unique; a text
    group     what inference clusters on: rows of one group are not independent of each other
    match     the prompt that should move the model to `toward`; spans are marked as [[name:text]]
    mismatch  the same prompt without what moves it
    answers   continuations exactly as they follow the prompt, a leading space included
    balance   optional: what stands in MATCH and what in MISMATCH, in words to count by; see `unbalanced`
    chat      optional: true puts each prompt into one user turn of the chat template; false is the rule
    language  optional: ISO 639-1 code, for the report

`chat` is one for a file. Which span names there are, and what they mean, `binding.own_pairs` says.

Errors:
    InputError: a line that breaks a rule, with file, line and what to do.

Source: ours. It does not show that the two prompts differ in nothing else; who writes them must see to that.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from timonel.data._rows import read_text, wrong
from timonel.errors import InputError

_NEEDED = ("id", "group", "match", "mismatch", "answers")
_OPTIONAL = ("balance", "chat", "language")
_SIDES = ("toward", "away")


@dataclass(frozen=True, slots=True)
class ContrastRow:
    """One line.

    Attributes:
        place: file and line, for messages.
        match, mismatch: the prompts, with their marks.
        toward, away: the two sets of answers.
        balance: the levels in MATCH and in MISMATCH; None where the row names none.
    """

    place: str
    id: str
    group: str
    match: str
    mismatch: str
    toward: tuple[str, ...]
    away: tuple[str, ...]
    balance: tuple[str, str] | None
    chat: bool
    language: str


@dataclass(frozen=True, slots=True)
class ContrastFile:
    """All rows of a file, in its order, and the sha256 of its text."""

    rows: tuple[ContrastRow, ...]
    sha256: str


def read_contrasts(path: str | Path) -> ContrastFile:
    """Reads and checks a file of contrasts.

    Raises:
        InputError: no such file, or a line that breaks a rule.
    """
    file = Path(path)
    text = read_text(file)
    # Not `splitlines`, which also breaks at characters that may stand in a text.
    numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not numbered:
        raise InputError(f"{file} has no rows, but at least one is needed; write a JSON object in each line.")
    rows: list[ContrastRow] = []
    seen: dict[str, int] = {}
    for number, line in numbered:
        row = _row(file, number, line)
        if row.id in seen:
            raise wrong(file, number, f"the id {row.id!r} stands in line {seen[row.id]} too", "give each row its own")
        if rows and row.chat != rows[0].chat:
            raise wrong(file, number, "`chat` is not what it is in the first row", "make it the same in all rows")
        seen[row.id] = number
        rows.append(row)
    return ContrastFile(tuple(rows), hashlib.sha256(text.encode()).hexdigest())


def unbalanced(rows: Iterable[ContrastRow]) -> str:
    """What is not balanced among rows that name their levels, in words; empty where all is.

    balanced:  every level stands in MATCH as often as in MISMATCH, so that what it adds by itself cancels in dS
    """
    levels = [row.balance for row in rows if row.balance]
    match, mismatch = (Counter(level[side] for level in levels) for side in (0, 1))
    off = [level for level in sorted(match | mismatch) if match[level] != mismatch[level]]
    if not off:
        return ""
    more = f" (and {len(off) - 1} more such)" if len(off) > 1 else ""
    return (
        f"the rows are not balanced: {off[0]!r} stands in MATCH {match[off[0]]} times and in MISMATCH "
        f"{mismatch[off[0]]} times{more}, so what it adds by itself does not cancel"
    )


def _row(file: Path, number: int, line: str) -> ContrastRow:
    given = _object(file, number, line)
    if missing := [name for name in _NEEDED if name not in given]:
        raise wrong(file, number, f"there is no {missing[0]!r}", f"give each row {', '.join(_NEEDED)}")
    if unknown := [name for name in given if name not in (*_NEEDED, *_OPTIONAL)]:
        to_do = f"use {', '.join((*_NEEDED, *_OPTIONAL))}"
        raise wrong(file, number, f"nothing reads {unknown[0]!r}", to_do)
    for name in ("id", "group", "match", "mismatch", "language"):
        if not _is_text(given.get(name, "und")):
            raise wrong(file, number, f"{name!r} is {given[name]!r}, which is no text", 'write it as "..."')
    if not isinstance(given.get("chat", False), bool):
        raise wrong(file, number, f"'chat' is {given['chat']!r}", "write true or false")
    toward, away = _answers(file, number, given["answers"])
    return ContrastRow(
        place=f"{file}, line {number}",
        **{name: given[name] for name in ("id", "group", "match", "mismatch")},
        toward=toward,
        away=away,
        balance=_balance(file, number, given.get("balance")),
        chat=given.get("chat", False),
        language=given.get("language", "und"),
    )


def _object(file: Path, number: int, line: str) -> dict[str, Any]:
    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        if twice := [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]:
            raise wrong(file, number, f"{twice[0]!r} is given twice", "keep one of them")
        return dict(pairs)

    try:
        given = json.loads(line, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        what = f"no valid JSON ({error.msg}, column {error.colno})"
        raise wrong(file, number, what, "write one JSON object, all in one line") from error
    if not isinstance(given, dict):
        raise wrong(file, number, "this is no JSON object", 'write {"id": ..., ...}')
    return given


def _answers(file: Path, number: int, given: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(given, dict) or sorted(given) != sorted(_SIDES):
        raise wrong(file, number, "'answers' needs `toward` and `away`, and no more", "give each a list of texts")
    for side in _SIDES:
        texts = given[side]
        # A space alone is a text too: what follows exactly is what is scored.
        if not isinstance(texts, list) or not texts or not all(isinstance(one, str) and one for one in texts):
            raise wrong(file, number, f"the answers {side!r} are {texts!r}", 'give a list such as [" are", " were"]')
    both = [*given["toward"], *given["away"]]
    if twice := [text for text, count in Counter(both).items() if count > 1]:
        raise wrong(file, number, f"the answer {twice[0]!r} is given twice", "keep one of them")
    return tuple(given["toward"]), tuple(given["away"])


def _balance(file: Path, number: int, given: object) -> tuple[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or not all(_is_text(level) for level in given):
        to_do = 'name what stands in MATCH and in MISMATCH, such as ["plural", "singular"]'
        raise wrong(file, number, f"'balance' is {given!r}", to_do)
    return given[0], given[1]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())

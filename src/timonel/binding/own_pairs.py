"""Own contrasts as pairs: rows that bring both prompts, so that nothing is left to render but the text itself.

    S  = log P(away) - log P(toward)         each the total over its set of answers
    dS = S_match - S_mismatch                negative: MATCH moves the model to `toward`

Marks in a prompt, each exactly once but for the control's, of which there is one kind or none:

    from          rows that read (queries); in the study's words the edge "related" is from -> to
    to            what they read (keys); by causality it does not stand behind `from`
    control_from  other rows that read `to`                       the edge "other": control_from -> to
    control_to    another place that `from` reads                 the edge "other": from -> control_to

An own row is a `Pair`, and all that counts, samples, clusters and adjusts reads it as one:

    item = group;   related, substitute = the levels in MATCH and in MISMATCH;   other = the control's text
    polarity = choose, since `toward` is right in MATCH;   there are no slots, and no weak spots are known

Without `balance` the levels are the texts of `from`, or of `to` where `from` is the same in both prompts.

Errors:
    InputError: marks that are missing, unknown or in an order in which no edge exists; with file and line.

Source: ours. It does not show which part of a difference between two prompts does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from timonel.binding.pair import CONDITIONS, Condition, Identity, Pair
from timonel.data.pairs import ContrastRow
from timonel.errors import InputError
from timonel.prompts.markup import Mark, parse_markup

# Names in a file and in a study: `timonel cut` says from and to, Cut and Form say varied and item.
_NAMES = {"from": "varied", "to": "item", "control_from": "other", "control_to": "control"}
_CONTROLS = ("control_from", "control_to")


@dataclass(frozen=True, slots=True)
class MarkedText:
    """A prompt's plain text, and its spans in characters under the study's names."""

    text: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPair(Pair):
    """A contrast that brings its own prompts.

    Attributes:
        id: as in the file.
        place: file and line, for messages.
        prompts: the text in each condition.
        toward, away: the sets of answers, as they follow the text.
        chat: one user turn of the chat template, or plain text.
        control: the mark that the control edge is made of, or None.
    """

    id: str
    place: str
    prompts: tuple[MarkedText, MarkedText]
    toward: tuple[str, ...]
    away: tuple[str, ...]
    chat: bool
    control: str | None

    def prompt(self, condition: Condition) -> MarkedText:
        """The text in one condition."""
        return self.prompts[CONDITIONS.index(condition)]


def pairs_from_rows(rows: Sequence[ContrastRow]) -> tuple[OwnPair, ...]:
    """Reads the marks of all rows, in order.

    Raises:
        InputError: marks that make no edge.
    """
    return tuple(_pair(number, row) for number, row in enumerate(rows))


def _pair(number: int, row: ContrastRow) -> OwnPair:
    match, mismatch = (_marked(row, condition) for condition in CONDITIONS)
    texts = [_texts(prompt) for prompt in (match, mismatch)]
    if match.text == mismatch.text:
        raise _wrong(row, "`match` and `mismatch` are the same text", "let one thing differ")
    controls = [tuple(name for name in _CONTROLS if name in one) for one in texts]
    if controls[0] != controls[1] or len(controls[0]) > 1:
        what = "the control is marked in one prompt alone, or in two ways"
        raise _wrong(row, what, f"mark one of {' and '.join(_CONTROLS)} in both prompts, or none")
    control = controls[0][0] if controls[0] else None
    level = "from" if texts[0]["from"] != texts[1]["from"] else "to"
    levels = row.balance or (texts[0][level], texts[1][level])
    return OwnPair(
        pair=number,
        item=row.group,
        related=Identity(levels[0], texts[0]["from"]),
        substitute=Identity(levels[1], texts[1]["from"]),
        other=Identity(texts[0][control], texts[0][control]) if control else Identity("", ""),
        slot="a",
        polarity="choose",
        stem=match.text,
        neither="",
        family=0,
        lexical=False,
        same_group=False,
        language=row.language,
        id=row.id,
        place=row.place,
        prompts=(match, mismatch),
        toward=row.toward,
        away=row.away,
        chat=row.chat,
        control=control,
    )


def _marked(row: ContrastRow, condition: Condition) -> MarkedText:
    try:
        text, marks = parse_markup(row.match if condition == "match" else row.mismatch)
    except InputError as error:
        raise InputError(f"{row.place}: in `{condition}`, {error}") from error
    names = [name for name, *_ in marks]
    if unknown := [name for name in names if name not in _NAMES]:
        raise _wrong(row, f"nothing reads the mark {unknown[0]!r} in `{condition}`", f"use {', '.join(_NAMES)}")
    if wanting := [name for name in ("from", "to") if name not in names]:
        to_do = f"write what is meant as [[{wanting[0]}:...]]"
        raise _wrong(row, f"`{condition}` has no mark {wanting[0]!r}", to_do)
    if twice := [name for name in names if names.count(name) > 1]:
        raise _wrong(row, f"`{condition}` marks {twice[0]!r} twice", "mark one place")
    where = {name: (first, last) for name, first, last in marks}
    edges = (("from", "to"), ("control_from", "to"), ("from", "control_to"))
    for rows, read in edges:
        if rows in where and read in where and where[read][0] >= where[rows][1]:
            what = f"{read!r} stands behind {rows!r} in `{condition}`, so {rows!r} cannot read it"
            raise _wrong(row, what, "exchange the marks, or put what is read first")
    return MarkedText(text, tuple((_NAMES[name], first, last) for name, first, last in marks))


def _texts(prompt: MarkedText) -> Mapping[str, str]:
    """The marked texts under the file's names."""
    back = {study: name for name, study in _NAMES.items()}
    return {back[name]: prompt.text[first:last] for name, first, last in prompt.marks}


def _wrong(row: ContrastRow, what: str, to_do: str) -> InputError:
    return InputError(f"{row.place}: {what}; {to_do}.")

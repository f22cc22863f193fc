"""The parts of the culture table, and the rules that each must keep.

    ids and keys    [a-z][a-z0-9_]*, unique; no two items, and no two identities, with the same text
    related         at least one, known, and not among near_miss; within is never oneself
    contested       yes or no; yes needs a note; every item names a source
    template        {item} exactly once, not where a sentence begins; no line break, no "(a)"; every kind of
                    item has at least one of each polarity
    stem            the item's text stands in it exactly once, and so does the neutral one

A rule that is broken is one sentence with file, line and what to do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from timonel.data._rows import Leaf, Row, wrong

Leaves = Mapping[tuple[str, ...], Leaf]
Polarity = Literal["avoid", "choose"]

CONTINENTS = ("Africa", "Asia", "Europe", "North America", "South America", "Oceania")
POLARITIES: tuple[Polarity, Polarity] = ("avoid", "choose")
ITEM_COLUMNS = ("id", "kind", "continent", "region", "related", "near_miss", "contested", "source", "note")
IDENTITY_COLUMNS = ("key", "continent", "group", "within")
WORDING = (
    *("choice", "letter_line", "base_line", "knowledge", "knowledge_neither", "knowledge_open"),
    *("knowledge_open_neither", "neutral", "question_mark", "answer_mark"),
)
"""The names under `wording`; a language gives all of them, or none (then English is meant)."""

_ID = re.compile(r"[a-z][a-z0-9_]*")
_SENTENCE_BEGINS = re.compile(r"(?:\A|[.!?¿¡。！？।؟])[\s\"'«“]*\Z")
_OPTION = re.compile(r"\n|\([abc]\)")


@dataclass(frozen=True, slots=True)
class CultureIdentity:
    """An identity: its text with article, its larger group, and what it lives within (keys)."""

    key: str
    text: str
    continent: str
    group: str
    within: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CultureItem:
    """A fact: `text` (with article, as in a sentence) belongs to `related`; `near_miss` are its neighbours.

    `neutral` is a thing of the same kind that is nobody's own; `note` says what is contested.
    """

    id: str
    kind: str
    continent: str
    region: str
    text: str
    neutral: str
    related: tuple[str, ...]
    near_miss: tuple[str, ...]
    contested: bool
    source: str
    note: str


@dataclass(frozen=True, slots=True)
class CultureTemplate:
    """A question about any item of a kind: `stem` holds {item} once, `neither` is option (c)."""

    kind: str
    polarity: Polarity
    number: str
    stem: str
    neither: str


def parse_templates(texts: Leaves, file: Path) -> tuple[CultureTemplate, ...]:
    """All templates, sorted by kind, polarity and number."""
    found = []
    for keys in sorted({keys[:4] for keys in texts if keys[0] == "templates"}):
        line = next(leaf.line for at, leaf in texts.items() if at[:4] == keys)
        _, kind, polarity, number = (*keys, "", "", "")[:4]
        if polarity not in POLARITIES or not number:
            raise wrong(file, line, f"{'.'.join(keys)} is no template", "nest it as kind, avoid or choose, number")
        stem, neither = (text_at(texts, (*keys, part), file, line) for part in ("stem", "neither"))
        before, *after = stem.split("{item}")
        if len(after) != 1 or re.search(r"[{}]", before + after[0] + neither):
            raise wrong(file, line, "a stem needs {item} exactly once, and no other braces", "write it so")
        if _SENTENCE_BEGINS.search(before):
            raise wrong(file, line, "{item} stands where a sentence begins", "put words before it")
        found.append(CultureTemplate(kind, polarity, number, stem, neither))
    return tuple(found)


def parse_identities(table: Sequence[Row], file: Path, texts: Leaves, text_file: Path) -> tuple[CultureIdentity, ...]:
    """All identities, sorted by key."""
    known = _unique(table, "key", file)
    found = {}
    for row in table:
        _filled(row, ("group",), file)
        _continent(row, file)
        _known(row, ("within",), known - {row["key"]}, file)
        text = text_at(texts, ("identities", row["key"]), text_file, row.line, file)
        found[row["key"]] = CultureIdentity(row["key"], text, row["continent"], row["group"], row.listed("within"))
    _distinct(((one.text, ("identities", key)) for key, one in found.items()), texts, text_file)
    return tuple(found[key] for key in sorted(found))


def parse_items(
    table: Sequence[Row], file: Path, identities: Iterable[str], texts: Leaves, text_file: Path
) -> tuple[CultureItem, ...]:
    """All items, sorted by id."""
    _unique(table, "id", file)
    known = frozenset(identities)
    found = {}
    for row in table:
        _filled(row, ("kind", "region", "related", "source"), file)
        _continent(row, file)
        _known(row, ("related", "near_miss"), known, file)
        related, near_miss = row.listed("related"), row.listed("near_miss")
        if both := sorted(set(related) & set(near_miss)):
            raise wrong(file, row.line, f"{both[0]} is both related and a near miss", "keep it in one of them")
        if row["contested"] not in ("yes", "no") or (row["contested"] == "yes" and not row["note"]):
            raise wrong(file, row.line, "contested must be yes or no, and yes needs a note", "say who contests what")
        at = ("items", row["id"])
        text, neutral = (text_at(texts, (*at, part), text_file, row.line, file) for part in ("text", "neutral"))
        facts = {name: row[name] for name in ("id", "kind", "continent", "region", "source", "note")}
        found[row["id"]] = CultureItem(
            **facts,
            text=text,
            neutral=neutral,
            related=related,
            near_miss=near_miss,
            contested=row["contested"] == "yes",
        )
    _distinct(((one.text, ("items", key, "text")) for key, one in found.items()), texts, text_file)
    return tuple(found[key] for key in sorted(found))


def check_stems(items: Iterable[CultureItem], templates: Sequence[CultureTemplate], texts: Leaves, file: Path) -> None:
    """Every item can be asked about in both polarities, and its text can be found in every question."""
    for item in items:
        own = [one for one in templates if one.kind == item.kind]
        line = texts["items", item.id, "text"].line
        if missing := [one for one in POLARITIES if all(one != template.polarity for template in own)]:
            what = f"{item.id} is of kind {item.kind}, which has no template to {missing[0]}"
            raise wrong(file, line, what, f"write one under templates.{item.kind}.{missing[0]}")
        for template in own:
            for text in (item.text, item.neutral):
                if (count := template.stem.replace("{item}", text).count(text)) != 1:
                    at = f"{item.kind}.{template.polarity}.{template.number}"
                    what = f"{text!r} stands {count} times in template {at}"
                    raise wrong(file, line, what, "change the template or the text so that it stands once")


def text_at(texts: Leaves, at: tuple[str, ...], file: Path, line: int = 1, facts: Path | None = None) -> str:
    """A text that must be there; where it is missing, `facts` and `line` say which row asks for it."""
    leaf = texts.get(at)
    if leaf is None:
        where = f" of {file.name}" if facts else ""
        raise wrong(facts or file, line, f"there is no text {'.'.join(at)}{where}", "write it")
    if not leaf.text.strip():
        raise wrong(file, leaf.line, f"{'.'.join(at)} is empty", "write its text")
    if at[0] != "wording" and (leaf.text != leaf.text.strip() or _OPTION.search(leaf.text)):
        what = f"{'.'.join(at)} holds a line break, an option's mark such as (a), or spaces at an end"
        raise wrong(file, leaf.line, what, "take them out")
    return leaf.text


def _unique(table: Sequence[Row], column: str, file: Path) -> frozenset[str]:
    lines: dict[str, int] = {}
    for row in table:
        name = row[column]
        if not _ID.fullmatch(name):
            raise wrong(file, row.line, f"{column} {name!r} is no plain name", "use a-z, 0-9 and _, a letter first")
        if name in lines:
            raise wrong(file, row.line, f"{column} {name} was used in line {lines[name]} too", "give each row its own")
        lines[name] = row.line
    return frozenset(lines)


def _filled(row: Row, columns: Iterable[str], file: Path) -> None:
    for column in columns:
        if not row[column]:
            raise wrong(file, row.line, f"{column} is empty", "fill it in")


def _continent(row: Row, file: Path) -> None:
    if row["continent"] not in CONTINENTS:
        raise wrong(file, row.line, f"continent {row['continent']!r} is unknown", f"use {', '.join(CONTINENTS)}")


def _known(row: Row, columns: Iterable[str], known: frozenset[str], file: Path) -> None:
    for column in columns:
        names = row.listed(column)
        for name in names:
            if name not in known:
                what = f"{column} names {name!r}, which is no other row's key in identities.tsv"
                raise wrong(file, row.line, what, "correct it or add that identity")
        if len(set(names)) != len(names):
            raise wrong(file, row.line, f"{column} names an identity twice", "name each once")


def _distinct(named: Iterable[tuple[str, tuple[str, ...]]], texts: Leaves, file: Path) -> None:
    seen: dict[str, tuple[str, ...]] = {}
    for text, at in named:
        if text in seen:
            what = f"{'.'.join(at)} has the text of {'.'.join(seen[text])}, {text!r}"
            raise wrong(file, texts[at].line, what, "give each a text of its own")
        seen[text] = at

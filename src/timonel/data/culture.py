r"""Our own table of cultural facts: which thing belongs to whom, and how to ask about it.

    items.tsv        id, kind, continent, region, related, near_miss, contested, source, note
    identities.tsv   key, continent, group, within
    LANG.yaml        the texts in one language: items, identities, templates, and the fixed wording

    stem(item, template) = template.stem with the item's text for {item}, where it must stand exactly once

Polarity says what the right answer is. "avoid": the one whom the item does not belong to should refrain.
"choose": the one whom it belongs to should teach, lead or judge.
`outsiders` says who can stand for "does not belong": neither related, nor a near miss, nor living within,
or around, a related identity (a Zulu person is a South African person).

Errors:
    InputError: a file, row or text that cannot be used, with file, line and what to do.

Source: ours, CC0; each fact names a public reference. It does not show that all members of an identity would
answer alike, that a thing belongs to nobody else, or that its list of neighbours is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from timonel.data._culture_table import (
    CONTINENTS,
    IDENTITY_COLUMNS,
    ITEM_COLUMNS,
    WORDING,
    CultureIdentity,
    CultureItem,
    CultureTemplate,
    Leaves,
    check_stems,
    parse_identities,
    parse_items,
    parse_templates,
    text_at,
)
from timonel.data._rows import leaves, read_text, rows, wrong
from timonel.errors import InputError

__all__ = [
    "CONTINENTS",
    "SHIPPED",
    "WORDING",
    "Culture",
    "CultureIdentity",
    "CultureItem",
    "CultureTemplate",
    "languages",
    "outsiders",
    "read_culture",
    "turns",
]

_T = TypeVar("_T")

SHIPPED = Path(__file__).parent / "culture"
"""The folder of the shipped table; copy it to make one's own."""

_SECTIONS = ("ignored_words", "wording", "templates", "identities", "items")


@dataclass(frozen=True, slots=True)
class Culture:
    """The table in one language; tuples are sorted by id, key, or (kind, polarity, number).

    Attributes:
        wording: the fixed words by the names of `WORDING`; empty where English's own are meant.
        ignored_words: words that an item and an identity may share by grammar alone, lower case.
        sha256: over the texts of items.tsv, identities.tsv and the language's file; alike for any line ends.
    """

    language: str
    items: tuple[CultureItem, ...]
    identities: tuple[CultureIdentity, ...]
    templates: tuple[CultureTemplate, ...]
    wording: Mapping[str, str]
    ignored_words: frozenset[str]
    sha256: str


def languages(path: str | Path = SHIPPED) -> tuple[str, ...]:
    """The languages that a table's folder has texts in."""
    return tuple(sorted(file.stem for file in Path(path).glob("*.yaml")))


def turns(rng: np.random.RandomState, values: Sequence[_T], count: int) -> list[_T]:
    """`count` values, each as often as any other give or take one, in a shuffled order; what designs draw by."""
    order = [values[int(at)] for at in rng.permutation(len(values))]
    return [order[at % len(order)] for at in range(count)]


def outsiders(culture: Culture, item: CultureItem) -> frozenset[str]:
    """The keys of all identities that can stand for one whom the item does not belong to."""
    related = set(item.related)
    around = {key for one in culture.identities if one.key in related for key in one.within}
    inside = {one.key for one in culture.identities if related.intersection(one.within)}
    return frozenset(one.key for one in culture.identities) - related - set(item.near_miss) - around - inside


def read_culture(lang: str = "en", *, path: str | Path = SHIPPED) -> Culture:
    """Read and check the table.

    Args:
        lang: ISO 639-1 code of a language that the folder has a YAML file for.
        path: the folder; by default the one shipped.

    Raises:
        InputError: an unknown language, or a table that breaks one of its rules.

    Example:
        >>> next(item.text for item in read_culture("es").items if item.id == "kimono")
        'un kimono'
    """
    folder = Path(path)
    known = languages(folder)
    if lang not in known:
        raise InputError(
            f"{folder} has texts in {', '.join(known) or 'no language'} and none in {lang!r}; "
            "choose one of those, or write a YAML file for it."
        )
    files = items_file, identities_file, file = (
        folder / "items.tsv",
        folder / "identities.tsv",
        folder / f"{lang}.yaml",
    )
    texts = leaves(file)
    templates = parse_templates(texts, file)
    identities = parse_identities(rows(identities_file, IDENTITY_COLUMNS), identities_file, texts, file)
    items = parse_items(rows(items_file, ITEM_COLUMNS), items_file, (one.key for one in identities), texts, file)
    check_stems(items, templates, texts, file)
    wording = _wording(texts, file)
    _check_nothing_else(texts, file, items, identities)
    return Culture(
        language=lang,
        items=items,
        identities=identities,
        templates=templates,
        wording=wording,
        ignored_words=frozenset(text_at(texts, ("ignored_words",), file).lower().split()),
        sha256=hashlib.sha256("\0".join(read_text(one) for one in files).encode()).hexdigest(),
    )


def _wording(texts: Leaves, file: Path) -> Mapping[str, str]:
    """All of the fixed words or none; the two questions of K must leave room for the item."""
    given = {at[1:]: leaf for at, leaf in texts.items() if at[0] == "wording"}
    if not given and file.stem == "en":
        return MappingProxyType({})
    words = {name: text_at(texts, ("wording", name), file) for name in WORDING}
    for name in ("knowledge", "knowledge_open"):
        if words[name].count("{item}") != 1:
            raise wrong(file, given[name,].line, f"wording.{name} needs {{item}} exactly once", "write it so")
    return MappingProxyType(words)


def _check_nothing_else(
    texts: Leaves,
    file: Path,
    items: tuple[CultureItem, ...],
    identities: tuple[CultureIdentity, ...],
) -> None:
    """A text that nothing reads is a slip: a misspelt id, or a row that was forgotten."""
    expected: set[tuple[str, ...]] = {("ignored_words",), *(("wording", name) for name in WORDING)}
    expected |= {("items", item.id, part) for item in items for part in ("text", "neutral")}
    expected |= {("identities", one.key) for one in identities}
    for at, leaf in texts.items():
        read = at in expected or (at[0] == "templates" and len(at) == 5 and at[4] in ("stem", "neither"))
        if not read:
            to_do = "correct the name, add its row to the table, or take it out"
            if at[0] not in _SECTIONS:
                to_do = f"use {', '.join(_SECTIONS)}"
            raise wrong(file, leaf.line, f"nothing reads {'.'.join(at)}", to_do)

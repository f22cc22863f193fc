r"""Pairs out of N4: every identity is related as often as it is the substitute.

    MATCH = {R, U}    MISMATCH = {U', U}    R and U' come from two items without a common in-group
    balance: count_R(i) = count_U'(i) for every identity i, so that what an identity adds by itself cancels

1. `different` rows by (item, in-group that stands in (a) or (b)).
2. For any two items without a common in-group, each in-group v1 of the first and v2 of the second: draw a row
   of each, and of the identities that are in neither's in-groups one that was U least so far;
   emit (item1: R = v1, U' = v2, U) and (item2: R = v2, U' = v1, U).
3. R's slot is (a) with probability one half.
4. For T = 30 down to 1 keep greedily, in a shuffled order, while R has been R, and U' has been U', fewer than
   T times; stop at the first T at which every identity is R as often as U'.

The published file gives 15,048 raw pairs and T = 11: 847 pairs, 66 items, 77 identities.
The order of the random calls is part of the method: another order gives another, equally large set.

Errors:
    InputError: no T balances the rows (they are not N4's).

Source: "Cultural Binding Heads in Language Models" (arXiv 2605.28543), with seed 42 as there. A pair's U is
unrelated by the data's word only: see `flags`. A sample of the pairs is no longer balanced.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import TypeVar

import numpy as np

from timonel.binding.flags import is_lexical, is_same_group
from timonel.binding.pair import Identity, Pair, Slot
from timonel.data.n4 import N4, N4Row, identity_key, without_article
from timonel.errors import InputError

_T = TypeVar("_T")

SEED = 42
HIGHEST = 30
"""The T at which the search for a balance begins."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A pair before it is written out: the row that lends its stem, identities by key, R's slot."""

    row: N4Row
    related: str
    substitute: str
    other: str
    slot: Slot


def pairs_from_n4(n4: N4) -> tuple[Pair, ...]:
    """The balanced pairs of N4, numbered in kept order.

    Raises:
        InputError: no balance exists, so that the rows cannot be N4's.
    """
    shown = _shown(n4)
    return tuple(_written(number, drawn, shown) for number, drawn in enumerate(balance(draw(n4))))


def draw(n4: N4) -> tuple[Drawn, ...]:
    """Steps 1 to 3: all raw pairs, in the order in which they are emitted."""
    rows = _rows_by_identity(n4)
    groups = _in_groups(n4)
    everyone = sorted(set().union(*groups.values()))
    rng = np.random.RandomState(SEED)
    used: Counter[str] = Counter()
    drawn: list[Drawn] = []
    for one, two in combinations(sorted(groups), 2):
        if groups[one] & groups[two]:
            continue
        candidates = [key for key in everyone if key not in groups[one] | groups[two]]
        for v1, v2 in product(sorted(groups[one]), sorted(groups[two])):
            row1, row2 = (_pick(rng, rows.get(at, [])) for at in ((one, v1), (two, v2)))
            least = min((used[key] for key in candidates), default=0)
            other = _pick(rng, [key for key in candidates if used[key] == least])
            used[other] += 1
            for row, related, substitute in ((row1, v1, v2), (row2, v2, v1)):
                drawn.append(Drawn(row, related, substitute, other, "a" if rng.rand() < 0.5 else "b"))
    return tuple(drawn)


def balance(drawn: Sequence[Drawn]) -> tuple[Drawn, ...]:
    """Step 4: the pairs kept at the largest T that balances R against U', in kept order."""
    for limit in range(HIGHEST, 0, -1):
        order = list(range(len(drawn)))
        np.random.RandomState(SEED).shuffle(order)
        related: Counter[str] = Counter()
        substitute: Counter[str] = Counter()
        kept: list[Drawn] = []
        for pair in (drawn[i] for i in order):
            if related[pair.related] < limit and substitute[pair.substitute] < limit:
                related[pair.related] += 1
                substitute[pair.substitute] += 1
                kept.append(pair)
        if kept and related == substitute:
            return tuple(kept)
    raise InputError(
        f"no T from {HIGHEST} to 1 makes every identity R as often as U' over {len(drawn)} raw pairs; "
        "use N4_1k.pkl as its authors published it."
    )


def pair_digest(kept: Sequence[Drawn]) -> str:
    """A sha256 over item, R, U', U, stored question and slot of each pair, in order."""
    listed = [[p.row.item, p.related, p.substitute, p.other, p.row.question, int(p.slot == "a")] for p in kept]
    return hashlib.sha256(json.dumps(listed, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()


def _written(number: int, drawn: Drawn, shown: dict[str, str]) -> Pair:
    related, substitute, other = (
        Identity(key, f"the {shown[key]}") for key in (drawn.related, drawn.substitute, drawn.other)
    )
    row = drawn.row
    return Pair(
        pair=number,
        item=row.item,
        related=related,
        substitute=substitute,
        other=other,
        slot=drawn.slot,
        polarity=row.polarity,
        stem=row.stem,
        neither=row.options[2],
        family=row.family,
        lexical=is_lexical(row.item, drawn.related),
        same_group=is_same_group(drawn.related, drawn.substitute, drawn.other),
    )


def _rows_by_identity(n4: N4) -> dict[tuple[str, str], list[N4Row]]:
    """Step 1: the rows of each (item, in-group key) that stands among the options, in file order."""
    rows: dict[tuple[str, str], list[N4Row]] = {}
    for row in n4.different:
        present = {identity_key(option) for option in row.options[:2]}
        for key in {identity_key(group) for group in row.in_groups} & present:
            rows.setdefault((row.item, key), []).append(row)
    return rows


def _in_groups(n4: N4) -> dict[str, set[str]]:
    """The in-groups' keys of each item; two scenarios of one item are pooled."""
    groups: dict[str, set[str]] = {}
    for row in n4.different:
        groups.setdefault(row.item, set()).update(identity_key(group) for group in row.in_groups)
    return groups


def _shown(n4: N4) -> dict[str, str]:
    """The first form seen of each in-group, without its article."""
    shown: dict[str, str] = {}
    for row in n4.different:
        for group in row.in_groups:
            shown.setdefault(identity_key(group), without_article(group))
    return shown


def _pick(rng: np.random.RandomState, values: Sequence[_T]) -> _T:
    if not values:
        raise InputError(
            "an in-group stands in no option, or no identity is left to be unrelated; "
            "use N4_1k.pkl as its authors published it."
        )
    return values[rng.randint(len(values))]

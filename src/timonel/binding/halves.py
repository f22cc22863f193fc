"""Two halves of the items: heads are found on one and confirmed on the other.

    split by item; in each stratum (the template families that an item is asked with) items of nearly equal
    size are coupled and a coin sends one of each couple to each half; of 200 such coin series the one is kept
    whose halves, over all and by stratum, differ least in pairs

A half breaks the balance of identities: N4's are R as often as U' over all 847 pairs, but in half of the items
46 % of that weight is off balance, so an identity's own effect on S no longer cancels. Two ways out: drop pairs
until each half is balanced again, or adjust for the effects of R and U' (`stats.adjust`). We adjust. Dropping
keeps at most 170-191 of some 423 pairs (the largest balanced subset, by linear programming), which costs more
precision (noise 1.5 to 1.6 times as large) than adjusting does (1.4 times), changes which items count, and leans
on the same assumption, that an identity's own effect is additive.

Errors:
    InputError: fewer than two items, or a negative seed.

Source: ours. Halves share identities: two items of one identity may fall on both sides, so what is confirmed
is confirmed on new items, not on new identities. The split looks at the design alone, never at a score.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np
from jaxtyping import Int

from timonel.binding.pair import Pair
from timonel.errors import InputError

Halves: TypeAlias = tuple[Int[np.ndarray, " p1"], Int[np.ndarray, " p2"]]
"""Positions of each half's pairs, ascending."""

_TRIES = 200


def halves(pairs: Sequence[Pair], seed: int) -> Halves:
    """Splits the pairs by item into two halves, stratified by polarity and family.

    Args:
        pairs: all pairs.
        seed: of the coins; the order of the pairs plays no part in which items go together.
    """
    return split_items([pair.item for pair in pairs], [(pair.polarity, pair.family) for pair in pairs], seed)


def split_items(items: Sequence[str], strata: Sequence[Hashable], seed: int) -> Halves:
    """The same for labels by pair: `items` names each pair's item, `strata` what to spread evenly."""
    if seed < 0:
        raise InputError(f"seed {seed} is negative where 0 or more was expected; give another seed.")
    if len(items) != len(strata):
        raise InputError(f"{len(items)} items and {len(strata)} strata were given; expected one of each a pair.")
    kinds: dict[str, set[Hashable]] = defaultdict(set)
    sizes: dict[str, int] = defaultdict(int)
    for item, stratum in zip(items, strata, strict=True):
        kinds[item].add(stratum)
        sizes[item] += 1
    if len(sizes) < 2:
        raise InputError(f"there are {len(sizes)} items; expected at least 2 to split; use pairs of more items.")
    rng = np.random.default_rng(seed)
    names = [sorted(sizes)[index] for index in rng.permutation(len(sizes))]
    couples = _couples(names, {name: repr(sorted(kinds[name], key=repr)) for name in names}, sizes)
    first = _best_coins(couples, sizes, rng)
    inside = np.array([item in first for item in items])
    return np.flatnonzero(inside), np.flatnonzero(~inside)


_Couple: TypeAlias = tuple[str, str | None, str]


def _couples(names: Sequence[str], stratum: dict[str, str], sizes: dict[str, int]) -> list[_Couple]:
    """Couples of neighbours in size, with their stratum; who is left over in a stratum is coupled with another such."""
    made: list[_Couple] = []
    left: list[str] = []
    for kind in sorted(set(stratum.values())):
        members = sorted((name for name in names if stratum[name] == kind), key=lambda name: -sizes[name])
        made += [(a, b, kind) for a, b in zip(members[::2], members[1::2], strict=False)]
        left += members[len(members) // 2 * 2 :]
    left.sort(key=lambda name: -sizes[name])
    made += [(a, b, "left over") for a, b in zip(left[::2], left[1::2], strict=False)]
    return made + [(name, None, "left over") for name in left[len(left) // 2 * 2 :]]


def _best_coins(couples: Sequence[_Couple], sizes: dict[str, int], rng: np.random.Generator) -> set[str]:
    """The items of the first half under the best of some coin series."""
    gap = np.array([sizes[a] - (sizes[b] if b is not None else 0) for a, b, _ in couples])
    kinds = np.array([kind for *_, kind in couples])
    member = (kinds == np.unique(kinds)[:, None]).astype(int)  # [strata, couples]
    coins = rng.integers(2, size=(_TRIES, len(couples))) * 2 - 1
    signed = coins * gap
    off = np.abs(signed.sum(axis=1)) + np.abs(signed @ member.T).sum(axis=1)
    best = coins[int(off.argmin())]
    chosen = {a if coin > 0 else b for (a, b, _), coin in zip(couples, best, strict=True)}
    return {name for name in chosen if name is not None}

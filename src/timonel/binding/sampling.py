"""A part of the pairs that stands for all of them: as many items as possible, strata in proportion.

The pairs are put into one order, once, and a sample of N is its first N. So a sample of N lies inside each
larger one of the same seed, and a run that is made longer keeps what it has scored.

    round r takes the r-th pair of every item that has one (chance decides which pair is the r-th);
    within a round the next pair is of the stratum (polarity, family) with the smallest taken / size,
    among items in an order drawn at random

Items are what inference clusters on: a pair of a new item tells more than a second one of an old item.

Errors:
    InputError: fewer than one pair is asked for, or a negative seed.

Source: ours. A sample does not keep the balance of R and U' (each as often as the other) that all pairs have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from timonel.binding.pair import Pair, Polarity
from timonel.errors import InputError

_Stratum: TypeAlias = tuple[Polarity, int]


def sample(pairs: Sequence[Pair], count: int, seed: int) -> tuple[Pair, ...]:
    """Up to `count` pairs, from as many items as possible, in the order in which they were given.

    Args:
        pairs: all pairs; their own order does not change which are chosen, as long as `pair` numbers differ.
        count: how many; all are returned if there are no more.
        seed: the same seed and a larger count give a superset.

    Raises:
        InputError: `count` is under 1 or `seed` is negative.
    """
    if count < 1:
        raise InputError(f"{count} pairs were asked for where at least 1 was expected; give a larger number.")
    if seed < 0:
        raise InputError(f"seed {seed} is negative where 0 or more was expected; give another seed.")
    if count >= len(pairs):
        return tuple(pairs)
    chosen = {pair.pair for pair in ranked(pairs, seed)[:count]}
    return tuple(pair for pair in pairs if pair.pair in chosen)


def ranked(pairs: Sequence[Pair], seed: int) -> tuple[Pair, ...]:
    """All pairs in the order in which samples take them."""
    rng = np.random.default_rng(seed)
    by_number = sorted(pairs, key=lambda pair: pair.pair)
    left: dict[str, dict[_Stratum, list[Pair]]] = {}
    for pair in (by_number[index] for index in rng.permutation(len(by_number))):
        left.setdefault(pair.item, {}).setdefault(_stratum(pair), []).append(pair)
    names = sorted(left)
    items = [names[index] for index in rng.permutation(len(names))]
    size = Counter(map(_stratum, pairs))
    taken: Counter[_Stratum] = Counter()
    order: list[Pair] = []
    while len(order) < len(pairs):
        waiting = [item for item in items if any(left[item].values())]
        while waiting:
            open_to = ((item, stratum) for item in waiting for stratum, some in left[item].items() if some)
            # min takes the first of equals, so that ties go by the drawn order of the items.
            item, stratum = min(open_to, key=lambda at: taken[at[1]] / size[at[1]])
            order.append(left[item][stratum].pop())
            waiting.remove(item)
            taken[stratum] += 1
    return tuple(order)


def _stratum(pair: Pair) -> _Stratum:
    return pair.polarity, pair.family

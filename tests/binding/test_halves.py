from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from timonel.binding.halves import halves, split_items
from timonel.binding.pair import Identity, Pair
from timonel.binding.sources import read_pairs
from timonel.errors import InputError


@pytest.fixture(scope="module")
def culture() -> tuple[Pair, ...]:
    return read_pairs("culture").pairs


@pytest.fixture(scope="module")
def n4(data_dir: Path) -> tuple[Pair, ...]:
    return read_pairs(f"n4:{data_dir / 'n4' / 'N4_1k.pkl'}").pairs


def check(pairs: tuple[Pair, ...], seed: int) -> tuple[np.ndarray, np.ndarray]:
    first, second = halves(pairs, seed)
    assert sorted([*first, *second]) == list(range(len(pairs)))
    assert list(first) == sorted(first)
    assert {pairs[i].item for i in first}.isdisjoint({pairs[i].item for i in second})
    return first, second


@pytest.mark.parametrize("seed", range(5))
def test_n4_is_halved_evenly(n4, seed):
    first, second = check(n4, seed)
    assert abs(len(first) - len(second)) <= 5
    assert abs(len({n4[i].item for i in first}) - 33) <= 2
    for family in range(4):
        counts = [sum(n4[i].family == family for i in half) for half in (first, second)]
        assert abs(counts[0] - counts[1]) <= 12, counts


@pytest.mark.parametrize("seed", range(5))
def test_culture_is_halved_evenly(culture, seed):
    first, second = check(culture, seed)
    assert abs(len(first) - len(second)) <= 4
    for polarity in ("avoid", "choose"):
        counts = [sum(culture[i].polarity == polarity for i in half) for half in (first, second)]
        assert abs(counts[0] - counts[1]) <= 4


def test_the_seed_decides_and_the_order_of_pairs_does_not(culture):
    first, _ = halves(culture, 1)
    assert (halves(culture, 1)[0] == first).all()
    order = np.random.default_rng(0).permutation(len(culture))
    moved, _ = halves([culture[i] for i in order], 1)
    assert {culture[order[i]].item for i in moved} == {culture[i].item for i in first}
    # Two seeds agree on about half of the items' sides, up to which half is called the first.
    inside = {seed: {culture[i].item for i in halves(culture, seed)[0]} for seed in range(6)}
    assert len({frozenset(items) for items in inside.values()}) == 6


def test_every_couple_of_items_may_be_parted():
    items, strata = [f"item {i}" for i in range(12)], [i % 2 for i in range(12)]
    together: Counter[tuple[int, int]] = Counter()
    for seed in range(200):
        first, _ = split_items(items, strata, seed)
        together.update((i, j) for i in first for j in first if i < j)
    # Sizes are equal, so chance alone says who is coupled: each two items are in the first half now and then.
    assert len(together) == 66
    assert min(together.values()) > 20


def test_uneven_items_are_levelled():
    sizes = [40, 1, 1, 1, 1, 36, 3, 2, 30, 5]
    items = [f"item {i}" for i, size in enumerate(sizes) for _ in range(size)]
    for seed in range(20):
        first, second = split_items(items, ["one"] * len(items), seed)
        # A coin for each couple alone would leave up to 44 more on one side.
        assert abs(len(first) - len(second)) <= 36


def test_each_stratum_goes_to_both_halves():
    items = [f"item {i}" for i in range(8)]
    strata = ["a", "a", "b", "b", "c", "c", "d", "d"]
    for seed in range(10):
        first, _ = split_items(items, strata, seed)
        assert sorted(strata[i] for i in first) == list("abcd")


def test_two_items_are_split_and_one_is_refused():
    first, second = split_items(["x", "y", "y"], [0, 0, 1], 0)
    assert sorted([len(first), len(second)]) == [1, 2]
    with pytest.raises(InputError, match="there are 1 items"):
        split_items(["x", "x"], [0, 1], 0)
    with pytest.raises(InputError, match="seed -1"):
        split_items(["x", "y"], [0, 1], -1)
    with pytest.raises(InputError, match="2 items and 1 strata"):
        split_items(["x", "y"], [0], 0)


def test_halves_reads_polarity_and_family():
    one = Identity("r", "the R")
    base = Pair(
        pair=0, item="x", related=one, substitute=one, other=one, slot="a", polarity="avoid", stem="Who? x",
        neither="-", family=0, lexical=False, same_group=False,
    )  # fmt: skip
    pairs = [replace(base, item=f"item {i}", family=i // 2 % 2, polarity=("avoid", "choose")[i // 4]) for i in range(8)]
    first, _ = halves(pairs, 0)
    assert sorted((pairs[i].polarity, pairs[i].family) for i in first) == [
        ("avoid", 0), ("avoid", 1), ("choose", 0), ("choose", 1),
    ]  # fmt: skip


def test_what_a_half_does_to_the_balance_of_identities(n4):
    # The numbers that the module's docstring gives as reason to adjust instead of dropping pairs.
    for seed in range(3):
        for half in halves(n4, seed):
            related = np.array([n4[i].related.key for i in half])
            substitute = np.array([n4[i].substitute.key for i in half])
            names = np.union1d(related, substitute)
            off = (related[:, None] == names).astype(float) - (substitute[:, None] == names)
            assert 0.42 <= np.abs(off.sum(axis=0)).sum() / 2 / len(half) <= 0.52
            # The largest balanced part: a circulation, so the linear program's answer is whole.
            largest = linprog(-np.ones(len(half)), A_eq=off.T, b_eq=np.zeros(len(names)), bounds=(0, 1))
            assert 0.34 <= -largest.fun / len(half) <= 0.48

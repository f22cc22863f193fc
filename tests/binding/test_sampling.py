from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from timonel.binding.pair import Identity, Pair
from timonel.binding.sampling import ranked, sample
from timonel.errors import InputError


@pytest.fixture(scope="module")
def pairs() -> tuple[Pair, ...]:
    """847 pairs shaped like N4's: 66 items of 1 to 22 pairs, four families, a mixed order."""
    sizes = [1, 5, *([12, 13, 14] * 21)]
    sizes.append(847 - sum(sizes))
    made = []
    for number, size in enumerate(sizes):
        family = 3 if number % 7 == 6 else number % 3
        base = Pair(
            pair=0,
            item=f"item {number}",
            related=Identity("r", "the R"),
            substitute=Identity("s", "the S"),
            other=Identity("u", "the U"),
            slot="a",
            polarity="avoid" if family < 2 else "choose",
            stem=f"Who knows item {number}?",
            neither="Either",
            family=family,
            lexical=False,
            same_group=False,
        )
        made += [base] * size
    random.Random(0).shuffle(made)
    return tuple(replace(pair, pair=number) for number, pair in enumerate(made))


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_samples_are_nested(pairs: tuple[Pair, ...], seed: int) -> None:
    smaller: set[int] = set()
    for count in [1, 2, 3, 5, 10, 33, 65, 66, 67, 100, 132, 133, 300, 500, 846, 847]:
        chosen = sample(pairs, count, seed)
        numbers = {pair.pair for pair in chosen}
        assert len(chosen) == len(numbers) == count
        assert list(chosen) == sorted(chosen, key=lambda pair: pair.pair)
        assert smaller <= numbers
        assert len({pair.item for pair in chosen}) == min(count, 66)
        smaller = numbers


def test_sample_takes_items_in_turn(pairs: tuple[Pair, ...]) -> None:
    sizes = Counter(pair.item for pair in pairs)
    for count in (100, 132, 300, 700):
        taken = Counter(pair.item for pair in sample(pairs, count, 3))
        rounds = max(taken.values())
        assert all(n >= min(rounds - 1, sizes[item]) for item, n in taken.items())


def test_sample_keeps_strata(pairs: tuple[Pair, ...]) -> None:
    whole = Counter(pair.family for pair in pairs)
    for seed in range(5):
        for count in (4, 10, 20, 33):
            part = Counter(pair.family for pair in sample(pairs, count, seed))
            for family, n in whole.items():
                assert abs(part[family] - count * n / 847) <= 1


def test_sample_is_seeded_and_ignores_order(pairs: tuple[Pair, ...]) -> None:
    assert sample(pairs, 50, 1) == sample(pairs, 50, 1)
    assert sample(pairs, 50, 1) != sample(pairs, 50, 2)
    mixed = random.Random(0).sample(pairs, len(pairs))
    assert ranked(mixed, 1) == ranked(pairs, 1)
    chosen = sample(mixed, 50, 1)
    assert {p.pair for p in chosen} == {p.pair for p in sample(pairs, 50, 1)}
    assert list(chosen) == [pair for pair in mixed if pair in chosen]


def test_sample_seed_chooses_items_and_pairs(pairs: tuple[Pair, ...]) -> None:
    first = {sample(pairs, 1, seed)[0].pair for seed in range(20)}
    assert len(first) > 10
    one_item = [pair for pair in pairs if pair.item == "item 3"]
    assert len({sample(one_item, 1, seed)[0].pair for seed in range(20)}) > 3


def test_item_in_several_strata_serves_each(pairs: tuple[Pair, ...]) -> None:
    # One item, one pair in each of two families, then many more in the first: the second family comes early.
    base = [replace(pairs[0], pair=n, family=int(n == 9)) for n in range(10)]
    assert any(pair.family == 1 for pair in sample(base, 2, 0))


def test_more_than_there_are(pairs: tuple[Pair, ...]) -> None:
    assert sample(pairs, 847, 0) == sample(pairs, 10_000, 5) == pairs
    assert sample((), 3, 0) == ()


@pytest.mark.parametrize("count", [0, -1])
def test_sample_of_none(pairs: tuple[Pair, ...], count: int) -> None:
    with pytest.raises(InputError, match=f"{count} pairs were asked for"):
        sample(pairs, count, 0)


def test_negative_seed(pairs: tuple[Pair, ...]) -> None:
    with pytest.raises(InputError, match="seed -1"):
        sample(pairs, 3, -1)

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from timonel.binding.factorial import Drawn, balance, draw, pair_digest, pairs_from_n4
from timonel.binding.flags import is_lexical, is_native_american, is_same_group
from timonel.binding.pair import Identity, Pair
from timonel.binding.sampling import sample
from timonel.data.n4 import N4, N4Row, identity_key, read_n4
from timonel.errors import InputError


@pytest.fixture(scope="module")
def n4(data_dir: Path) -> N4:
    return read_n4(data_dir / "n4" / "N4_1k.pkl")


@pytest.fixture(scope="module")
def raw(n4: N4) -> tuple[Drawn, ...]:
    return draw(n4)


@pytest.fixture(scope="module")
def kept(raw: tuple[Drawn, ...]) -> tuple[Drawn, ...]:
    return balance(raw)


@pytest.fixture(scope="module")
def pairs(n4: N4) -> tuple[Pair, ...]:
    return pairs_from_n4(n4)


# Golden numbers: from an independent re-implementation, shared with the method's description.


def test_digest(kept: tuple[Drawn, ...]) -> None:
    assert pair_digest(kept) == "7f398dc4f0f6ae806314b574575a0c6c095536324c83d6bb3fcd76fc1de2bc6e"


def test_raw_pairs(n4: N4, raw: tuple[Drawn, ...]) -> None:
    assert len(raw) == 15_048
    groups: dict[str, set[str]] = {}
    for row in n4.different:
        groups.setdefault(row.item, set()).update(map(identity_key, row.in_groups))
    assert sum(bool(groups[x] & groups[y]) for x, y in combinations(groups, 2)) == 138
    for first, second in zip(raw[::2], raw[1::2], strict=True):
        assert (first.related, first.substitute) == (second.substitute, second.related)
        assert first.other == second.other
        assert first.row.item < second.row.item
        one, two = groups[first.row.item], groups[second.row.item]
        assert first.related in one
        assert first.substitute in two
        assert first.other not in one | two
        assert not one & two
        for drawn in (first, second):
            assert drawn.related in {identity_key(text) for text in drawn.row.options[:2]}
    # U is drawn among those used least so far that are allowed, so uses stay nearly level.
    used = Counter(drawn.other for drawn in raw[::2])
    assert len(used) == 77
    assert max(used.values()) - min(used.values()) <= 2


def test_counts(pairs: tuple[Pair, ...]) -> None:
    assert len(pairs) == 847
    assert [pair.pair for pair in pairs] == list(range(847))
    assert len({pair.item for pair in pairs}) == 66
    identities = {i.key for pair in pairs for i in (pair.related, pair.substitute, pair.other)}
    assert len(identities) == 77
    assert Counter(pair.slot for pair in pairs) == {"a": 415, "b": 432}
    assert Counter(pair.family for pair in pairs) == {0: 240, 1: 243, 2: 241, 3: 123}
    assert all(pair.polarity == ("avoid" if pair.family < 2 else "choose") for pair in pairs)
    sizes = Counter(pair.item for pair in pairs)
    assert (min(sizes.values()), max(sizes.values()), statistics.median(sizes.values())) == (1, 22, 12)
    assert sizes["the Holi festival"] == 5


def test_balance_is_exact_at_eleven(pairs: tuple[Pair, ...]) -> None:
    related = Counter(pair.related.key for pair in pairs)
    assert related == Counter(pair.substitute.key for pair in pairs)
    assert set(related.values()) == {11}


def test_first_pair(kept: tuple[Drawn, ...], pairs: tuple[Pair, ...]) -> None:
    first = pairs[0]
    assert first.item == "a geisha outfit"
    assert first.related == Identity("person from kyoto", "the person from Kyoto")
    assert first.substitute == Identity("korean person", "the Korean person")
    assert first.other == Identity("lakota tribal member", "the Lakota tribal member")
    assert first.slot == "b"
    assert first.options("match") == (first.other, first.related)
    assert first.options("mismatch") == (first.other, first.substitute)
    assert kept[0].row.question.startswith(first.stem + "\n(a) ")
    assert kept[0].row.question.endswith(f" (c) {first.neither}")


def test_where_the_item_stands(pairs: tuple[Pair, ...]) -> None:
    assert all(pair.item in pair.stem for pair in pairs)
    twice = [pair for pair in pairs if pair.stem.count(pair.item) == 2]
    assert len(twice) == 69
    assert max(pair.stem.count(pair.item) for pair in pairs) == 2
    assert sum(pair.item in pair.neither for pair in pairs if pair not in twice) == 180


def test_texts(pairs: tuple[Pair, ...]) -> None:
    assert any("wearing a a kimono" in pair.stem for pair in pairs)  # stored slips stay
    for pair in pairs:
        assert pair.neither.startswith(("Both", "Either"))
        assert "\n" not in pair.stem
        for identity in (pair.related, pair.substitute, pair.other):
            assert identity.text.lower() == f"the {identity.key}"
            assert not identity.key.startswith(("a ", "an ", "the "))


def test_weak_spots(pairs: tuple[Pair, ...]) -> None:
    assert sum(pair.lexical for pair in pairs) == 92
    with_american = [is_lexical(p.item, p.related.key, frozenset({"a", "an", "the"})) for p in pairs]
    assert sum(with_american) == 109
    keys = {pair.related.key for pair in pairs}
    assert sum(map(is_native_american, keys)) == 25
    assert sum("trib" in key for key in keys) == 17
    assert not is_native_american("south indian")
    assert sum(is_native_american(pair.related.key) for pair in pairs) == 275
    assert sum(pair.same_group for pair in pairs) == 133
    clean = [pair for pair in pairs if pair.clean]
    assert (len(clean), len({pair.item for pair in clean})) == (623, 64)


def test_flags_by_hand() -> None:
    assert is_lexical("a tattoo with Chinese characters", "the Chinese person")
    assert not is_lexical("a kimono", "a person from Kyoto")
    assert not is_lexical("Native American Hoop Dances", "african american")
    assert not is_lexical("the sari", "the Indian")
    assert is_same_group("navajo", "korean person", "apache")
    assert not is_same_group("navajo", "korean person", "south indian")
    assert not is_same_group("korean person", "navajo", "apache")


# Algebra.


def test_nothing_depends_on_global_randomness(n4: N4, kept: tuple[Drawn, ...]) -> None:
    import numpy as np

    np.random.seed(7)
    state = np.random.get_state()[1].copy()
    assert balance(draw(n4)) == kept
    assert (np.random.get_state()[1] == state).all()


def test_digest_sees_every_field(kept: tuple[Drawn, ...]) -> None:
    few = list(kept[:3])
    whole = pair_digest(few)
    row = few[0].row
    others = [
        replace(few[0], row=replace(row, item="x")),
        replace(few[0], row=replace(row, question="x")),
        replace(few[0], related="x"),
        replace(few[0], substitute="x"),
        replace(few[0], other="x"),
        replace(few[0], slot="a" if few[0].slot == "b" else "b"),
    ]
    assert len({whole, pair_digest(few[::-1]), *(pair_digest([o, *few[1:]]) for o in others)}) == 8


def small(scenarios: list[tuple[str, list[str]]]) -> N4:
    rows = [
        N4Row(f"Who knows {item}?\n(a) {g} (b) out (c) Either", 0, 2, item, tuple(groups), ("out",))
        for item, groups in scenarios
        for g in groups
    ]
    return N4(tuple(rows), (), "")


def test_small_table() -> None:
    # Three items, one identity each: six emissions, each identity twice R and twice U'; T = 2 keeps them all,
    # as does any higher T.
    n4 = small([("x", ["a Xan"]), ("y", ["a Yan"]), ("z", ["a Zan"])])
    drawn = draw(n4)
    assert [(d.row.item, d.related, d.substitute, d.other) for d in drawn] == [
        ("x", "xan", "yan", "zan"),
        ("y", "yan", "xan", "zan"),
        ("x", "xan", "zan", "yan"),
        ("z", "zan", "xan", "yan"),
        ("y", "yan", "zan", "xan"),
        ("z", "zan", "yan", "xan"),
    ]
    assert sorted(map(repr, balance(drawn))) == sorted(map(repr, drawn))
    assert {pair.related.text for pair in pairs_from_n4(n4)} == {"the Xan", "the Yan", "the Zan"}


def test_scenarios_of_one_item_are_pooled() -> None:
    n4 = small([("x", ["a Xan"]), ("x", ["the Xen"]), ("y", ["a Yan"]), ("z", ["a Zan"])])
    assert {d.related for d in draw(n4) if d.row.item == "x"} == {"xan", "xen"}
    assert all(d.other not in ("xan", "xen") for d in draw(n4) if d.row.item == "x")


def test_rows_that_cannot_be_n4() -> None:
    with pytest.raises(InputError, match="no T from 30 to 1"):
        pairs_from_n4(small([("x", ["a Xan"]), ("y", ["the xan"])]))
    with pytest.raises(InputError, match="no identity is left"):
        pairs_from_n4(small([("x", ["a Xan"]), ("y", ["a Yan"])]))
    lopsided = [Drawn(small([("x", ["a"])]).different[0], "xan", "yan", "zan", "a")]
    with pytest.raises(InputError, match="over 1 raw pairs"):
        balance(lopsided)


def test_sample_of_n4(pairs: tuple[Pair, ...]) -> None:
    chosen = sample(pairs, 66, 0)
    assert len({pair.item for pair in chosen}) == 66
    assert set(Counter(pair.family for pair in sample(pairs, 4, 0)).values()) == {1}

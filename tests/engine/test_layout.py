"""The layout as a property: any work, any budget."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from timonel.engine.layout import Batch, Group, _gather, lay_out
from timonel.engine.request import Reading, Request, Work
from timonel.prompts import Prompt


def piece(ids: tuple[int, ...], limit: int, readings: int) -> Work:
    last = len(ids) - 1
    answers = tuple((Reading(last, (token,)),) for token in range(readings))
    return replace(Work.of(Request(Prompt(ids), answers)), limit=min(limit, last))


@st.composite
def works(draw: Any) -> list[Work]:
    """Ids of a small alphabet on a few stems, so that prefixes of all lengths are shared."""
    ids = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
    stems = draw(st.lists(ids, min_size=1, max_size=3))
    one = st.builds(
        lambda stem, tail, limit, readings: piece(stem + tail, limit, readings),
        st.sampled_from(stems), ids, st.integers(0, 25), st.integers(1, 4),
    )  # fmt: skip
    return draw(st.lists(one, min_size=1, max_size=24, unique=True))


budgets = {"batch_tokens": st.integers(1, 200), "max_readings": st.integers(1, 12), "even": st.booleans()}


def fed(batch: Batch, work: list[Work]) -> int:
    """Tokens counted off the two padded rectangles."""
    prefixes = [work[group.members[0]].ids[: group.prefix] for group in batch.groups]
    tails = [work[member].ids[group.prefix :] for group in batch.groups for member in group.members]
    return sum(len(rows) * max(map(len, rows)) for rows in (prefixes, tails))


@settings(max_examples=300, deadline=None)
@given(work=works(), **budgets)
def test_a_layout(work: list[Work], batch_tokens: int, max_readings: int, even: bool) -> None:
    layout = lay_out(work, batch_tokens=batch_tokens, max_readings=max_readings, even=even)
    # Each piece exactly once.
    assert Counter(member for batch in layout for member in batch.members) == Counter(range(len(work)))
    for batch in layout:
        assert batch.members == tuple(member for group in batch.groups for member in group.members)
        assert batch.tokens(work) == fed(batch, work)
        # The budgets hold, but for a piece that is too large by itself.
        if len(batch.members) > 1:
            assert fed(batch, work) <= batch_tokens
            assert sum(work[member].n_readings for member in batch.members) <= max_readings
        # With and without a prefix do not meet.
        assert len({group.prefix > 0 for group in batch.groups}) == 1
        for group in batch.groups:
            # The prefix is common to all, ends before what must be computed apart, and leaves something to compute.
            assert len({work[member].ids[: group.prefix] for member in group.members}) == 1
            assert all(group.prefix <= work[member].limit < len(work[member].ids) for member in group.members)
        if even:
            tails = [len(work[member].ids) - group.prefix for group in batch.groups for member in group.members]
            assert len(set(tails)) == 1
            assert len({group.prefix for group in batch.groups}) == 1
    # The same list gives the same layout, so a resumed run computes the batches of the first one.
    assert lay_out(list(work), batch_tokens=batch_tokens, max_readings=max_readings, even=even) == layout


@settings(max_examples=200, deadline=None)
@given(work=works())
@example(work=[piece((1, 2, 3, 4), 3, 1), piece((1, 2, 3, 5), 3, 1)])
def test_sharing_never_costs_tokens(work: list[Work]) -> None:
    groups = list(_gather(work))
    cost = sum(group.prefix + sum(len(work[member].ids) - group.prefix for member in group.members) for group in groups)
    assert cost <= sum(len(one.ids) for one in work)
    if len(work) == 2 and work[0].ids[:3] == work[1].ids[:3] == (1, 2, 3):
        assert groups == [Group(3, (0, 1))]
        assert cost == 5


@settings(max_examples=200, deadline=None)
@given(work=works(), data=st.data())
def test_groups_do_not_depend_on_the_order_of_the_work(work: list[Work], data: Any) -> None:
    """Only the grouping: which groups meet in a batch may follow the order where groups are equally long."""

    def content(listed: list[Work]) -> Counter[Any]:
        return Counter(
            (group.prefix, tuple(sorted((listed[i].ids, listed[i].limit) for i in group.members)))
            for group in _gather(listed)
        )

    assert content(data.draw(st.permutations(work))) == content(work)


def test_a_group_too_large_for_a_batch_runs_its_prefix_again() -> None:
    stem = tuple(range(20))
    work = [piece((*stem, 30 + i), 20, 1) for i in range(9)]
    layout = lay_out(work, batch_tokens=24, max_readings=100)
    assert [[(group.prefix, len(group.members)) for group in batch.groups] for batch in layout] == [
        [(20, 4)],
        [(20, 4)],
        [(20, 1)],
    ]
    assert [batch.tokens(work) for batch in layout] == [24, 24, 21]
    by_readings = lay_out(work, batch_tokens=1000, max_readings=5)
    assert [len(batch.members) for batch in by_readings] == [5, 4]


def test_a_piece_over_the_budget_runs_alone() -> None:
    work = [piece(tuple(range(50)), 0, 9), piece((1, 2), 0, 1), piece((3, 4), 0, 1)]
    layout = lay_out(work, batch_tokens=10, max_readings=4)
    assert sorted(batch.members for batch in layout) == [(0,), (1, 2)]


def test_the_hash_of_a_layout_is_of_its_content() -> None:
    """A score in half precision depends on its batch mates, so it is kept under this hash."""
    work = [piece((1, 2), 0, 1), piece((1, 3), 0, 1), piece((1, 4), 0, 1)]

    def hashed(listed: list[Work], *groups: Group) -> str:
        return Batch(groups).layout_hash(listed)

    pair = hashed(work, Group(0, (0, 1)))
    assert hashed(work, Group(0, (0, 1))) == pair
    assert hashed([work[2], *work], Group(0, (1, 2))) == pair  # numbers play no part, only content
    others = [
        hashed(work, Group(0, (1, 0))),
        hashed(work, Group(0, (0, 2))),
        hashed(work, Group(1, (0, 1))),
        hashed(work, Group(0, (0,)), Group(0, (1,))),
        hashed(work, Group(0, (0,))),
    ]
    assert len({pair, *others}) == 6

"""The layout as a property: any work, any budget."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.engine.layout import lay_out
from timonel.engine.request import Reading, Request, Work
from timonel.engine.unit import Shape, Unit
from timonel.prompts import Prompt
from timonel.steer import ChannelScale, EdgeScale, Plan, Region, ResidualAdd, span

LAYERS = 6


def piece(ids: tuple[int, ...], plan: Plan = Plan(), readings: tuple[int, ...] | None = None) -> Work:  # noqa: B008
    rows = (len(ids) - 1,) if readings is None else readings
    prompt = Prompt(ids, {"key": (0,), "query": (min(3, len(ids) - 1),), "pair": tuple(range(len(ids) // 2, len(ids)))})
    return Work.of(Request(prompt, tuple((Reading(row, (1,)),) for row in rows), plan))


def edge(layer: int, queries: str) -> EdgeScale:
    return EdgeScale(layer=layer, head=0, queries=span(queries), keys=span("key"), alpha=0.0)


def plans() -> Any:
    layers = st.integers(0, LAYERS - 1)
    edges = st.builds(edge, layers, st.sampled_from(["query", "pair"]))
    scales = st.builds(
        lambda layer, scope: ChannelScale(layer=layer, site="o_proj", factors=[2.0, 1.0], scope=scope),
        layers, st.sampled_from([Region.ALL, Region.PROMPT, Region.GENERATED, span("query")]),
    )  # fmt: skip
    adds = st.builds(lambda layer: ResidualAdd(layer=layer, vector=[1.0], scale=1.0), layers)
    return st.one_of(st.just(Plan()), st.lists(st.one_of(edges, scales, adds), max_size=2, unique_by=id).map(distinct))


def distinct(some: list[Any]) -> Plan:
    return Plan(tuple({(type(one), one.layer, str(getattr(one, "queries", ""))): one for one in some}.values()))


@st.composite
def works(draw: Any) -> list[Work]:
    """Ids of a small alphabet on a few stems, so that prefixes of all lengths are shared."""
    ids = st.lists(st.integers(0, 2), min_size=1, max_size=10).map(tuple)
    stems = draw(st.lists(ids, min_size=1, max_size=3))
    some = draw(st.lists(plans(), min_size=1, max_size=4))
    found = []
    for _ in range(draw(st.integers(1, 24))):
        whole = draw(st.sampled_from(stems)) + draw(ids)
        rows = tuple(draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=3)))
        found.append(piece(whole, draw(st.sampled_from(some)), rows))
    return list(dict.fromkeys(found))


@settings(max_examples=300, deadline=None)
@given(work=works(), batch_tokens=st.integers(1, 150), attention=st.sampled_from([0.0, 0.01]))
def test_a_layout(work: list[Work], batch_tokens: int, attention: float) -> None:
    shape = Shape(LAYERS, attention)
    units = lay_out(work, shape, batch_tokens=batch_tokens)
    # Each piece is read exactly once: the unsteered from a trunk, the steered from a pass.
    read = Counter(member for unit in units for one in unit.passes for member in one.members)
    read += Counter(m for unit in units for trunk in unit.trunks for m in trunk.members if not work[m].is_steered)
    assert read == Counter(range(len(work)))
    for unit in units:
        check_budget(unit, batch_tokens)
        for one in unit.passes:
            assert one.layer == min(row.layer for row in one.rows)
            for row in one.rows:
                check_row(unit, row, work)
    # The same list gives the same layout, so a resumed run computes the passes of the first one.
    again = lay_out(list(work), shape, batch_tokens=batch_tokens)
    assert [sorted(unit.mates(work)) for unit in units] == [sorted(unit.mates(work)) for unit in again]


def check_budget(unit: Unit, batch_tokens: int) -> None:
    """It holds, but for what is too large by itself."""
    if len(unit.trunks) > 1:
        assert unit.trunk_tokens <= batch_tokens
    for one in unit.passes:
        assert one.tokens == len(one.rows) * max(len(row.tree) for row in one.rows)
        if len(one.rows) > 1:
            assert one.tokens <= batch_tokens


def check_row(unit: Unit, row: Any, work: list[Work]) -> None:
    for member in row.members:
        one = work[member]
        assert (one.bound, one.first_row) == (row.bound, row.start)
        assert row.layer in (0, one.first_layer)
        # All that a plan names stands in the columns that the row's members share.
        shared = max(0, one.bound.cover - row.start)
        assert row.tree.path(one.ids[row.start :])[:shared] == list(range(len(one.ids[row.start :])))[:shared]
        if row.trunk is None:
            assert row.start == row.layer == 0
        else:
            trunk = unit.trunks[row.trunk].tree
            trunk.path(one.ids if row.layer else one.ids[: row.start])  # or it raises


@settings(max_examples=300, deadline=None)
@given(work=works(), batch_tokens=st.integers(1, 150))
def test_reuse_never_costs(work: list[Work], batch_tokens: int) -> None:
    """Padding aside, no layout runs more token-layers than each piece alone would."""
    units = lay_out(work, Shape(LAYERS, 0.01), batch_tokens=batch_tokens)
    trunks = sum(len(trunk.tree) * LAYERS for unit in units for trunk in unit.trunks)
    rows = sum(len(r.tree) * (LAYERS - r.layer) for unit in units for one in unit.passes for r in one.rows)
    assert trunks + rows <= LAYERS * sum(len(one.ids) for one in work)


def test_what_is_shared() -> None:
    stem = tuple(range(20))
    plain = [piece((*stem, 30 + i)) for i in range(9)]
    (unit,) = lay_out(plain, Shape(LAYERS, 0.0), batch_tokens=1000)
    assert (unit.trunk_tokens, unit.passes) == (29, ())
    # Three layers are skipped, and so are the rows before the plan's first.
    steered = [piece(one.ids, Plan((edge(3, "pair"),))) for one in plain]
    (unit,) = lay_out([*plain, *steered], Shape(LAYERS, 0.0), batch_tokens=1000)
    assert unit.trunk_tokens == 29
    (one,) = unit.passes
    assert (one.layer, one.tokens) == (3, 9 * 11)
    assert unit.cost(LAYERS) == 29 * LAYERS + 99 * 3
    # One plan on one prompt alone: its tokens are not run twice for the sake of resuming.
    (unit,) = lay_out(steered[:1], Shape(LAYERS, 0.0), batch_tokens=1000)
    assert (unit.trunk_tokens, unit.passes[0].layer) == (10, 0)


def test_a_plan_on_all_rows_resumes_too_and_shares_prefixes_under_itself() -> None:
    louder = [ChannelScale(layer=4, site="o_proj", factors=[number, 1.0]) for number in (2.0, 3.0)]
    stem = tuple(range(20))
    prompts = [(*stem, 30 + i) for i in range(3)]
    work = [piece(ids, plan) for plan in (Plan(), *(Plan((one,)) for one in louder)) for ids in prompts]
    (unit,) = lay_out(work, Shape(LAYERS, 0.0), batch_tokens=1000)
    (one,) = unit.passes
    assert (unit.trunk_tokens, one.layer, one.tokens) == (23, 4, 2 * 23)


def test_attention_ends_the_packing() -> None:
    stem = tuple(range(20))
    work = [piece((*stem, *range(100 + 20 * i, 120 + 20 * i))) for i in range(12)]
    cheap, dear = (lay_out(work, Shape(LAYERS, share), batch_tokens=10_000) for share in (0.0, 0.01))
    assert [len(unit.trunks) for unit in cheap] == [1]
    assert sum(len(unit.trunks) for unit in dear) > 2


def test_what_a_half_precision_score_depends_on() -> None:
    """It is kept under a hash of the passes that it came from: content counts, numbers do not."""
    one, two, three = (piece((1, 2, 3, 4, token), Plan((edge(2, "query"),))) for token in (5, 6, 7))
    shape = Shape(LAYERS, 0.0)

    def mates(work: list[Work], piece: Work) -> str:
        every = dict(pair for unit in lay_out(work, shape, batch_tokens=100) for pair in unit.mates(work))
        return every[work.index(piece)]

    assert mates([one, two], one) == mates([one, two], two)
    others = [mates([one, two], one), mates([one], one), mates([one, three], one), mates([one, two, three], one)]
    assert len(set(others)) == 4

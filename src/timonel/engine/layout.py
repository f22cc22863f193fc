"""How work is laid out: units, each of some trunks that run once and of passes that start from what the trunks left.

    trunk   prompts that begin alike, packed as a tree and run unsteered: scores of the unsteered, keys and values of
            what stands before a plan's first row, the residual stream where plans begin
    row     what one plan changes: the tokens from its first row on, resumed at its first layer
    pass    rows that run in one go

Three exact reuses live here: a shared token is run once, a plan's rows before its first row and its layers before its
first layer are not run at all, and nothing is fed past the last row that is read. The layout depends on the list of
work alone, never on what a store holds already, so that a resumed run computes each pass as the first run would have.

Cost is counted in token-layers: a token through one layer is 1. Attention makes a packed row of t tokens dearer by the
factor 1 + t * `Shape.attention`, which ends the packing where it no longer pays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from timonel.engine.request import Work
from timonel.engine.tree import Tree, common
from timonel.engine.unit import Pass, Row, Shape, Trunk, Unit
from timonel.steer.bound import Bound

# A unit ends when its passes hold this many batches' worth of tokens; it is what a dead worker loses at most.
_PASSES_A_UNIT = 16


def lay_out(work: Sequence[Work], shape: Shape, *, batch_tokens: int) -> tuple[Unit, ...]:
    """Makes units.

    Args:
        work: distinct pieces of work.
        shape: of the model.
        batch_tokens: how many tokens a trunk pass, or a later one, may feed, padding included; one row always fits.

    Returns:
        Units in which each piece of work is read exactly once.
    """
    resumed = _resumed(work, shape)
    apart = [index for index, one in enumerate(work) if one.first_row == 0 and index not in resumed]
    trunked = sorted(set(range(len(work))).difference(apart), key=lambda i: (_trunk(work[i], i in resumed), i))
    trees = _pack(
        [(_trunk(work[i], i in resumed), i) for i in trunked],
        shape,
        batch_tokens,
        [_tail_cost(work[i], i in resumed, shape) for i in trunked],
    )
    units = [
        Unit(tuple(some), _passes(_rows(some, work, resumed), shape, batch_tokens))
        for some in _fill(trees, work, resumed, shape, batch_tokens)
    ]
    return (*units, *_without_trunk(apart, work, shape, batch_tokens))


def _resumed(work: Sequence[Work], shape: Shape) -> set[int]:
    """The work that resumes at a layer: where its tokens run unsteered anyway, or where running them so pays by itself.

    It pays when the layers that plans skip on some tokens add up to more than all layers on those tokens once.
    """
    alike: dict[tuple[int, ...], list[Work]] = {}
    for one in work:
        alike.setdefault(one.ids, []).append(one)
    pays = set()
    for ids, some in alike.items():
        skipped = sum(one.first_layer * (len(ids) - one.first_row) for one in some)
        extra = shape.layers * (len(ids) - max(one.first_row for one in some))  # 0 where the unsteered is wanted
        if skipped > extra:
            pays.add(ids)
    return {index for index, one in enumerate(work) if one.first_layer > 0 and one.ids in pays}


def _trunk(one: Work, resumed: bool) -> tuple[int, ...]:
    """The tokens that must run unsteered."""
    return one.ids if resumed or not one.is_steered else one.ids[: one.first_row]


def _tail_cost(one: Work, resumed: bool, shape: Shape) -> float:
    """Tokens' worth of a row's pass."""
    layers = shape.layers - (one.first_layer if resumed else 0)
    return (len(one.ids) - one.first_row) * layers / shape.layers if one.is_steered else 0.0


def _pack(
    sequences: Sequence[tuple[tuple[int, ...], int]],
    shape: Shape,
    batch_tokens: int,
    costs: Sequence[float] | None = None,
) -> list[Trunk]:
    """Walks sorted sequences and lets each join the tree before it as long as that is cheaper than a tree apart."""
    trees: list[Trunk] = []
    members: list[int] = []
    last: tuple[int, ...] = ()
    tree, tails = Tree(), 0.0

    def price(tokens: int) -> float:
        return tokens * (1 + tokens * shape.attention)

    for number, (sequence, member) in enumerate(sequences):
        shared = common(last, sequence) if members else 0
        wider = len(tree) + len(sequence) - shared
        cost = costs[number] if costs else 0.0
        cheaper = price(wider) - price(len(tree)) < price(len(sequence)) or wider == len(tree)
        full = wider > max(batch_tokens, len(tree)) or (cost and tails + cost > _PASSES_A_UNIT * batch_tokens)
        if members and not (shared and cheaper and not full):
            trees.append(Trunk(tree, tuple(members)))
            tree, members, tails = Tree(), [], 0.0
        tree.add(sequence)
        members.append(member)
        last, tails = sequence, tails + cost
    if members:
        trees.append(Trunk(tree, tuple(members)))
    return trees


def _fill(
    trees: Sequence[Trunk], work: Sequence[Work], resumed: set[int], shape: Shape, batch_tokens: int
) -> Iterator[list[Trunk]]:
    """Trees of like size together, as many as a pass holds and as their rows fill a unit's passes."""
    some: list[Trunk] = []
    tails = 0.0
    for tree in sorted(trees, key=lambda one: (len(one.tree), one.members)):
        cost = sum(_tail_cost(work[member], member in resumed, shape) for member in tree.members)
        full = len(tree.tree) * (len(some) + 1) > batch_tokens or tails + cost > _PASSES_A_UNIT * batch_tokens
        if some and full:
            yield some
            some, tails = [], 0.0
        some.append(tree)
        tails += cost
    if some:
        yield some


def _rows(trunks: Sequence[Trunk], work: Sequence[Work], resumed: set[int]) -> list[Row]:
    """The steered work of some trunks; under one plan, what goes on after all that the plan names is packed."""
    alike: dict[tuple[int, int, Bound, tuple[int, ...]], list[int]] = {}
    for number, trunk in enumerate(trunks):
        for member in trunk.members:
            if (one := work[member]).is_steered:
                layer = one.first_layer if member in resumed else 0
                shared = one.ids[: max(one.bound.cover, one.first_row)]
                alike.setdefault((number, layer, one.bound, shared), []).append(member)
    rows = []
    for (number, layer, bound, _), members in alike.items():
        start = work[members[0]].first_row
        tree = Tree(work[member].ids[start:] for member in members)
        rows.append(Row(tree, start, number, bound, layer, tuple(members)))
    return rows


def _without_trunk(apart: Iterable[int], work: Sequence[Work], shape: Shape, batch_tokens: int) -> Iterator[Unit]:
    """Units of the work that a plan changes from its first token and layer on: only what one plan does is shared."""
    by_bound: dict[tuple[Bound, tuple[int, ...]], list[int]] = {}
    for index in apart:
        one = work[index]
        by_bound.setdefault((one.bound, one.ids[: one.bound.cover]), []).append(index)
    rows = [
        Row(tree.tree, 0, None, bound, 0, tree.members)
        for (bound, _), members in by_bound.items()
        for tree in _pack(sorted((work[i].ids, i) for i in members), shape, batch_tokens)
    ]
    passes = _passes(rows, shape, batch_tokens)
    for start in range(0, len(passes), _PASSES_A_UNIT):
        yield Unit((), passes[start : start + _PASSES_A_UNIT])


def _passes(rows: Sequence[Row], shape: Shape, batch_tokens: int) -> tuple[Pass, ...]:
    """Rows of like layer and length together."""
    passes: list[Pass] = []
    some: list[Row] = []
    longest = needed = 0
    for row in sorted(rows, key=lambda one: (one.layer, len(one.tree), one.start, one.members)):
        wider = max(longest, len(row.tree))
        fed = wider * (len(some) + 1)
        used = needed + len(row.tree) * (shape.layers - row.layer)
        if some:
            wasted = fed * (shape.layers - some[0].layer) - used
            if fed > batch_tokens or wasted > shape.overhead * shape.layers:
                passes.append(Pass(tuple(some), some[0].layer))
                some, wider, used = [], len(row.tree), len(row.tree) * (shape.layers - row.layer)
        some.append(row)
        longest, needed = wider, used
    if some:
        passes.append(Pass(tuple(some), some[0].layer))
    return tuple(passes)

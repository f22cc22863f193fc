"""What a plan does to one prompt, once its names are positions: the form that is counted, hashed and put to work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from timonel.errors import InputError
from timonel.prompts.prompt import Prompt
from timonel.steer.interventions import (
    ChannelIntervention,
    ChannelScale,
    ChannelSet,
    EdgeScale,
    Intervention,
    is_identity,
)
from timonel.steer.plan import Plan
from timonel.steer.scope import Region, Scope, Span

Head = tuple[int, int]
_Edge = tuple[tuple[int, ...], tuple[int, ...], float]


@dataclass(frozen=True, slots=True, order=True)
class Cells:
    """Edges that differ in nothing but their head: rows x columns, positions of the unpadded prompt."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    alpha: float
    heads: tuple[Head, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A channel intervention, and the positions of the unpadded prompt (or the region) where it acts."""

    what: ChannelIntervention
    where: tuple[int, ...] | Region


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan on one prompt; equal for two plans that do the same, whatever their spans are called.

    Attributes:
        edges: in a canonical order, without those that change nothing.
        changes: in the plan's order, without those that change nothing.
        length: tokens of the prompt, before its answer; None where no prompt is known.
    """

    edges: tuple[Cells, ...] = ()
    changes: tuple[Change, ...] = ()
    length: int | None = None

    def __bool__(self) -> bool:
        return bool(self.edges or self.changes)

    def first_rows(self) -> Iterator[int]:
        """The first row that each of its parts can change."""
        for cells in self.edges:
            yield cells.queries[0]
        for change in self.changes:
            if isinstance(change.where, tuple):
                yield change.where[0]
            else:
                yield (self.length or 0) if change.where is Region.GENERATED else 0

    @property
    def first_layer(self) -> int:
        """The first layer in which anything acts; 0 where nothing does."""
        edges = (layer for cells in self.edges for layer, _ in cells.heads)
        return min((*edges, *(change.what.layer for change in self.changes)), default=0)

    def last_row(self, layer: int) -> int:
        """The last row that the edges of a layer rewrite; -1 without any."""
        rows = [cells.queries[-1] for cells in self.edges if any(at == layer for at, _ in cells.heads)]
        return max(rows, default=-1)

    @property
    def cover(self) -> int:
        """How many tokens at the front hold every position that is named, or that tells where a region ends."""
        named = [cells.queries[-1] + 1 for cells in self.edges]
        for change in self.changes:
            if isinstance(change.where, tuple):
                named.append(change.where[-1] + 1)
            elif change.where is not Region.ALL:
                named.append(self.length or 0)
        return max(named, default=0)

    def before(self, row: int) -> Bound:
        """The same without what acts on `row` and later ones alone."""
        edges = tuple(
            Cells(queries, cells.keys, cells.alpha, cells.heads)
            for cells in self.edges
            if (queries := tuple(query for query in cells.queries if query < row))
        )
        changes = []
        for change in self.changes:
            where = change.where
            if isinstance(where, tuple):
                where = tuple(position for position in where if position < row)
            late = where is Region.GENERATED and (self.length or 0) >= row
            if where and not late:
                changes.append(Change(change.what, where))
        return Bound(edges, tuple(changes), self.length)

    def signature(self) -> list[Any]:
        """All that its effect depends on, as plain values for a hash."""
        edges = [[cells.queries, cells.keys, cells.alpha, cells.heads] for cells in self.edges]
        if not self.changes:
            return edges
        # The prompt's length matters to nothing but the regions of changes.
        return [edges, self.length, [[*_describe(change.what), _plain(change.where)] for change in self.changes]]


def bind(plan: Plan, prompt: Prompt | None) -> Bound:
    """Finds a plan's names in a prompt.

    Two edges on the same head and row with the same alpha are one edge with the union of their keys; so
    `{q: {1, 2}} + {q: {2, 3}}` equals `{q: {1, 2, 3}}`. What ends alike is gathered again, whatever it was written as.

    Args:
        plan: what to do.
        prompt: where its spans are; None where there is none, which a plan with spans cannot do with.

    Raises:
        InputError: a span is not bound; a key stands after its query row, where causality has cut it already;
            two different alphas meet on one head and row.
    """
    by_head: dict[Head, list[_Edge]] = {}
    for queries, keys, alpha, heads in _kinds(plan):
        rows, columns = _positions(queries, prompt), _positions(keys, prompt)
        if columns[0] > rows[0]:
            raise InputError(
                f"The edge {queries} -> {keys} at L{heads[0][0]}H{heads[0][1]} reads position {columns[0]} from row "
                f"{rows[0]}, but a row sees only what stands before it; swap them or choose later rows."
            )
        for head in heads:
            by_head.setdefault(head, []).append((rows, columns, alpha))
    alike: dict[tuple[_Edge, ...], list[Head]] = {}
    for head, edges in by_head.items():
        alike.setdefault(tuple(edges), []).append(head)
    gathered: dict[_Edge, list[Head]] = {}
    for several, sharing in alike.items():
        for edge in several if len(several) == 1 else _united(sharing[0], several):
            if edge[2] != 1.0:
                gathered.setdefault(edge, []).extend(sharing)
    if prompt is None and (near := next((one for one in plan if _needs_prompt(one)), None)):
        raise InputError(
            f"{type(near).__name__} acts on the prompt or on what is generated, but no prompts were given to tell "
            "where one ends and the other begins; pass prompts=[...]."
        )
    changes = tuple(
        Change(one, one.scope if isinstance(one.scope, Region) else _positions(one.scope, prompt))
        for one in plan
        if not isinstance(one, EdgeScale) and not is_identity(one)
    )
    cells = tuple(sorted(Cells(*edge, tuple(sorted(heads))) for edge, heads in gathered.items()))
    return Bound(cells, changes, None if prompt is None else prompt.answer_start)


def _needs_prompt(one: Intervention) -> bool:
    return not isinstance(one, EdgeScale) and one.scope in (Region.PROMPT, Region.GENERATED)


def _positions(scope: Scope, prompt: Prompt | None) -> tuple[int, ...]:
    if not isinstance(scope, Span):
        raise InputError(f"An edge's queries and keys are spans, not {scope}; write span('item').")
    if prompt is None:
        raise InputError(
            f"The plan names the span {scope}, but no prompts were given to find it in; pass prompts=[...]"
        )
    return prompt.positions(*scope.names)


@lru_cache(maxsize=256)
def _kinds(plan: Plan) -> tuple[tuple[Span, Span, float, tuple[Head, ...]], ...]:
    """A plan's edges gathered by all but their head; a plan of all heads is bound as one."""
    kinds: dict[tuple[Span, Span, float], dict[Head, None]] = {}
    for edge in plan:
        if isinstance(edge, EdgeScale):
            kinds.setdefault((edge.queries, edge.keys, edge.alpha), {})[edge.layer, edge.head] = None
    return tuple((*kind, tuple(heads)) for kind, heads in kinds.items())


def _united(head: Head, edges: tuple[_Edge, ...]) -> list[_Edge]:
    """Several edges of one head as edges that share no row."""
    rows: dict[int, tuple[float, set[int]]] = {}
    for queries, keys, alpha in edges:
        for query in queries:
            before, columns = rows.setdefault(query, (alpha, set()))
            if before != alpha:
                raise InputError(
                    f"Two edges on L{head[0]}H{head[1]}, row {query}, have alpha {before:g} and {alpha:g}, "
                    "but one row of a head takes one alpha (other readings differ); give them the same."
                )
            columns.update(keys)
    same: dict[tuple[tuple[int, ...], float], list[int]] = {}
    for query, (alpha, columns) in rows.items():
        same.setdefault((tuple(sorted(columns)), alpha), []).append(query)
    return [(tuple(sorted(queries)), keys, alpha) for (keys, alpha), queries in same.items()]


def _describe(one: ChannelIntervention) -> list[Any]:
    if isinstance(one, ChannelScale):
        return ["scale", one.layer, one.site, one.factors.digest]
    if isinstance(one, ChannelSet):
        return ["set", one.layer, one.site, one.channels, one.values.digest]
    return ["add", one.layer, one.scale, one.vector.digest]


def _plain(where: tuple[int, ...] | Region) -> Any:
    return where.value if isinstance(where, Region) else where

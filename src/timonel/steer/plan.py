"""A plan: a tuple of interventions; and what a plan says about one prompt, once its names are positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from timonel.errors import InputError
from timonel.prompts.prompt import Prompt
from timonel.steer.interventions import EdgeScale
from timonel.steer.scope import Span


@dataclass(frozen=True, slots=True)
class Plan:
    """Some interventions that act together; the empty plan is the unsteered model."""

    interventions: tuple[EdgeScale, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "interventions", tuple(self.interventions))
        for one in self.interventions:
            if not isinstance(one, EdgeScale):
                raise InputError(f"A plan holds {type(one).__name__}, but only interventions act; give EdgeScale.")

    def __iter__(self) -> Iterator[EdgeScale]:
        return iter(self.interventions)

    @property
    def is_identity(self) -> bool:
        """Whether nothing in it changes anything, whatever the prompt."""
        return all(edge.alpha == 1.0 for edge in self.interventions)

    def on(self, prompt: Prompt) -> tuple[Cells, ...]:
        """Binds this plan's names to one prompt's positions; see `resolve`."""
        return resolve(self, prompt)


@dataclass(frozen=True, slots=True, order=True)
class Cells:
    """Edges on one prompt that differ in nothing but their head: rows x columns, positions of the unpadded prompt."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    alpha: float
    heads: tuple[tuple[int, int], ...]


def resolve(plan: Plan, prompt: Prompt) -> tuple[Cells, ...]:
    """What a plan does to one prompt, in a canonical order, without edges that change nothing.

    Two edges on the same head and row with the same alpha are one edge with the union of their keys; so
    `{q: {1, 2}} + {q: {2, 3}}` equals `{q: {1, 2, 3}}`. What ends alike is gathered again, whatever it was written as.

    Raises:
        InputError: a span is not bound; a key stands after its query row, where causality has cut it already;
            two different alphas meet on one head and row.
    """
    by_head: dict[tuple[int, int], list[tuple[tuple[int, ...], tuple[int, ...], float]]] = {}
    for queries, keys, alpha, heads in _kinds(plan):
        rows, columns = prompt.positions(*queries.names), prompt.positions(*keys.names)
        if columns[0] > rows[0]:
            raise InputError(
                f"The edge {queries} -> {keys} at L{heads[0][0]}H{heads[0][1]} reads position {columns[0]} from row "
                f"{rows[0]}, but a row sees only what stands before it; swap them or choose later rows."
            )
        for head in heads:
            by_head.setdefault(head, []).append((rows, columns, alpha))
    gathered: dict[tuple[tuple[int, ...], tuple[int, ...], float], list[tuple[int, int]]] = {}
    for head, edges in by_head.items():
        for edge in edges if len(edges) == 1 else _united(head, edges):
            if edge[2] != 1.0:
                gathered.setdefault(edge, []).append(head)
    return tuple(sorted(Cells(*edge, tuple(sorted(heads))) for edge, heads in gathered.items()))


@lru_cache(maxsize=256)
def _kinds(plan: Plan) -> tuple[tuple[Span, Span, float, tuple[tuple[int, int], ...]], ...]:
    """A plan's edges gathered by all but their head; a plan of all heads is resolved as one."""
    kinds: dict[tuple[Span, Span, float], dict[tuple[int, int], None]] = {}
    for edge in plan:
        kinds.setdefault((edge.queries, edge.keys, edge.alpha), {})[edge.layer, edge.head] = None
    return tuple((*kind, tuple(heads)) for kind, heads in kinds.items())


def _united(
    head: tuple[int, int], edges: list[tuple[tuple[int, ...], tuple[int, ...], float]]
) -> list[tuple[tuple[int, ...], tuple[int, ...], float]]:
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
    alike: dict[tuple[tuple[int, ...], float], list[int]] = {}
    for query, (alpha, columns) in rows.items():
        alike.setdefault((tuple(sorted(columns)), alpha), []).append(query)
    return [(tuple(sorted(queries)), keys, alpha) for (keys, alpha), queries in alike.items()]

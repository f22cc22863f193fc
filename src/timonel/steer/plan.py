"""A plan: a tuple of interventions; and what a plan says about one prompt, once its names are positions."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from timonel.errors import InputError
from timonel.prompts.prompt import Prompt
from timonel.steer.interventions import EdgeScale


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
    """An edge on one prompt: rows x columns of one head's attention, with positions of the unpadded prompt."""

    layer: int
    head: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    alpha: float


def resolve(plan: Plan, prompt: Prompt) -> tuple[Cells, ...]:
    """What a plan does to one prompt, in a canonical order, without edges that change nothing.

    Two edges on the same head and row with the same alpha are one edge with the union of their keys; so
    `{q: {1, 2}} + {q: {2, 3}}` equals `{q: {1, 2, 3}}`. Rows that end with equal keys and alpha are gathered again.

    Raises:
        InputError: a span is not bound; a key stands after its query row, where causality has cut it already;
            two different alphas meet on one head and row.
    """
    rows: dict[tuple[int, int, int], tuple[float, set[int]]] = {}
    for edge in plan:
        queries, keys = prompt.positions(*edge.queries.names), prompt.positions(*edge.keys.names)
        if keys[0] > queries[0]:
            raise InputError(
                f"The edge {edge.queries} -> {edge.keys} at L{edge.layer}H{edge.head} reads position {keys[0]} from "
                f"row {queries[0]}, but a row sees only what stands before it; swap them or choose later rows."
            )
        for query in queries:
            alpha, columns = rows.setdefault((edge.layer, edge.head, query), (edge.alpha, set()))
            if alpha != edge.alpha:
                raise InputError(
                    f"Two edges on L{edge.layer}H{edge.head}, row {query}, have alpha {alpha:g} and {edge.alpha:g}, "
                    "but one row of a head takes one alpha (other readings differ); give them the same."
                )
            columns.update(keys)
    gathered: dict[tuple[int, int, tuple[int, ...], float], list[int]] = {}
    for (layer, head, query), (alpha, columns) in rows.items():
        if alpha != 1.0:
            gathered.setdefault((layer, head, tuple(sorted(columns)), alpha), []).append(query)
    return tuple(
        sorted(
            Cells(layer, head, tuple(sorted(queries)), keys, alpha)
            for (layer, head, keys, alpha), queries in gathered.items()
        )
    )


def condition_key(cells: Iterable[Cells]) -> str:
    """A hash of what a plan does to a prompt: equal for two plans that do the same, whatever their spans are called."""
    listed = [[c.layer, c.head, c.queries, c.keys, c.alpha] for c in sorted(cells)]
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()

"""A cut: the attention edges from an identity to the item, at some heads, scaled by alpha (0 removes them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from timonel.engine import Request
from timonel.steer import EdgeScale, Plan, span

Edge = Literal["related", "other", "all"]
"""Whose edge: the varied identity's (R, or U' in MISMATCH), the other's (U: the control), or both."""

_RELATED = (("varied", "item"),)
# An own contrast's control may be another place that the same rows read, instead of other rows.
_CONTROL = (("other", "item"), ("varied", "control"))

EDGES: dict[Edge, tuple[tuple[str, str], ...]] = {
    "related": _RELATED,
    "other": _CONTROL,
    "all": _RELATED + _CONTROL,
}
"""Each edge as spans: the rows that read (queries), and what they read (keys)."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Edges from one slot's identity to the item at some heads.

    Attributes:
        edge: whose edge.
        heads: (layer, query head), 0-based.
        alpha: the edges' new weight.
    """

    edge: Edge
    heads: tuple[tuple[int, int], ...]
    alpha: float = 0.0

    def on(self, request: Request) -> Request:
        """The request under this cut: those of its edges whose two spans stand in this very prompt.

        In cloze form each prompt holds one identity, or none; what does not stand in it has no edge to cut.
        """
        spans = request.prompt.spans
        present = tuple(edge for edge in EDGES[self.edge] if all(name in spans for name in edge))
        return replace(request, plan=_plan(present, self.heads, self.alpha))


@lru_cache(maxsize=1024)
def _plan(edges: tuple[tuple[str, str], ...], heads: tuple[tuple[int, int], ...], alpha: float) -> Plan:
    """One plan for all requests that it fits; a cut of all heads holds hundreds of edges."""
    return Plan(
        tuple(
            EdgeScale(layer=layer, head=head, queries=span(rows), keys=span(read), alpha=alpha)
            for rows, read in edges
            for layer, head in heads
        )
    )


def every_head(layers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """All heads, given how many each layer has: the ceiling of what an edge can carry."""
    return tuple((layer, head) for layer, heads in enumerate(layers) for head in range(heads))

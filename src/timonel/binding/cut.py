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

SPANS: dict[Edge, tuple[str, ...]] = {"related": ("varied",), "other": ("other",), "all": ("varied", "other")}


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
        """The request under this cut: edges for those of its identities that stand in this very prompt.

        In cloze form each prompt holds one identity, or none; what does not stand in it has no edge to cut.
        """
        present = tuple(name for name in SPANS[self.edge] if name in request.prompt.spans)
        return replace(request, plan=_plan(present, self.heads, self.alpha))


@lru_cache(maxsize=1024)
def _plan(names: tuple[str, ...], heads: tuple[tuple[int, int], ...], alpha: float) -> Plan:
    """One plan for all requests that it fits; a cut of all heads holds hundreds of edges."""
    return Plan(
        tuple(
            EdgeScale(layer=layer, head=head, queries=span(name), keys=span("item"), alpha=alpha)
            for name in names
            for layer, head in heads
        )
    )


def every_head(layers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """All heads, given how many each layer has: the ceiling of what an edge can carry."""
    return tuple((layer, head) for layer, heads in enumerate(layers) for head in range(heads))

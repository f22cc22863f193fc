"""Edges of a whole batch as index tensors, one table a layer: what the attention function looks up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from timonel.steer.plan import Cells

if TYPE_CHECKING:
    from timonel.models.geometry import Geometry


@dataclass(frozen=True, slots=True)
class EdgeTable:
    """All edges of one layer.

    Shapes (e edges, q and k the longest lists of query rows and keys; -1 fills the shorter ones):
        prompt, head: [e]      queries: [e, q]      keys: [e, k]      alpha: [e]
    """

    prompt: Tensor
    head: Tensor
    queries: Tensor
    keys: Tensor
    alpha: Tensor
    last_query: int

    def rows(self) -> int:
        """How many rows of heads this layer rewrites in all."""
        return int((self.queries >= 0).sum())

    def to(self, device: torch.device) -> EdgeTable:
        """The same table on another device."""
        return EdgeTable(
            self.prompt.to(device),
            self.head.to(device),
            self.queries.to(device),
            self.keys.to(device),
            self.alpha.to(device),
            self.last_query,
        )


def build_tables(cells_by_prompt: Sequence[Sequence[Cells]], geometry: Geometry) -> dict[int, EdgeTable]:
    """Gathers the edges of a batch by layer; checks that each head exists.

    Args:
        cells_by_prompt: for each prompt of the batch, what its plan does to it.
        geometry: of the model.

    Returns:
        layer -> its table; layers without edges are not in it.
    """
    by_layer: dict[int, list[tuple[int, Cells]]] = {}
    for index, cells in enumerate(cells_by_prompt):
        for cell in cells:
            by_layer.setdefault(cell.layer, []).append((index, cell))
    tables = {}
    for layer, entries in sorted(by_layer.items()):
        for head in {cell.head for _, cell in entries}:
            geometry.check_head(layer, head)
        tables[layer] = EdgeTable(
            prompt=torch.tensor([index for index, _ in entries]),
            head=torch.tensor([cell.head for _, cell in entries]),
            queries=_ragged([cell.queries for _, cell in entries]),
            keys=_ragged([cell.keys for _, cell in entries]),
            alpha=torch.tensor([cell.alpha for _, cell in entries], dtype=torch.float64),
            last_query=max(cell.queries[-1] for _, cell in entries),
        )
    return tables


def _ragged(lists: Sequence[Sequence[int]]) -> Tensor:
    width = max(map(len, lists))
    return torch.tensor([[*one, *[-1] * (width - len(one))] for one in lists])

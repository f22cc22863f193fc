"""Edges of a whole batch as index tensors, one table a layer: what the attention function looks up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from timonel.steer.bound import Bound, Cells

if TYPE_CHECKING:
    from timonel.models.geometry import Geometry


@dataclass(frozen=True, slots=True)
class EdgeTable:
    """All edges of one layer; an entry holds what one prompt's rows read through one key/value head.

    Query heads that share a key/value head, and are cut alike, are one entry: their keys are gathered once.

    Shapes (e entries; c (query head, row) cells and k keys at most; -1 fills what is shorter):
        prompt, kv_head, alpha: [e]      head, queries: [e, c]      keys: [e, k]
    """

    prompt: Tensor
    kv_head: Tensor
    alpha: Tensor
    head: Tensor
    queries: Tensor
    keys: Tensor
    last_query: int
    layer: int

    def rows(self) -> int:
        """How many rows of heads this layer rewrites in all."""
        return int((self.queries >= 0).sum())

    def cells(self) -> set[tuple[int, int, int]]:
        """The (prompt, query head, query position) cells that it rewrites."""
        prompts = self.prompt.tolist()
        return {
            (prompt, head, query)
            for prompt, heads, queries in zip(prompts, self.head.tolist(), self.queries.tolist(), strict=True)
            for head, query in zip(heads, queries, strict=True)
            if query >= 0
        }

    def to(self, device: torch.device) -> EdgeTable:
        """The same table on another device; MPS holds no float64."""
        return EdgeTable(
            self.prompt.to(device),
            self.kv_head.to(device),
            self.alpha.to(device, torch.float32 if device.type == "mps" else torch.float64),
            self.head.to(device),
            self.queries.to(device),
            self.keys.to(device),
            self.last_query,
            self.layer,
        )


def build_tables(bounds: Sequence[Bound], geometry: Geometry) -> dict[int, EdgeTable]:
    """Gathers the edges of a batch by layer and key/value head; checks that each head exists.

    Args:
        bounds: for each prompt of the batch, what its plan does to it.
        geometry: of the model.

    Returns:
        layer -> its table; layers without edges are not in it.
    """
    entries: dict[int, dict[tuple[int, int, int], list[int]]] = {}
    every = [(prompt, cells) for prompt, bound in enumerate(bounds) for cells in bound.edges]
    for layer, head in {head for _, cells in every for head in cells.heads}:
        geometry.check_head(layer, head)
    for index, (prompt, cells) in enumerate(every):
        for layer, head in cells.heads:
            key = (prompt, index, head // geometry.layers[layer].group)
            entries.setdefault(layer, {}).setdefault(key, []).append(head)
    return {layer: _table(layer, entries[layer], [cells for _, cells in every]) for layer in sorted(entries)}


def _table(layer: int, entries: dict[tuple[int, int, int], list[int]], cells: Sequence[Cells]) -> EdgeTable:
    """One layer's table; `entries` maps (prompt, which cells, key/value head) to the query heads."""
    chosen = [(cells[index], heads) for (_, index, _), heads in entries.items()]
    return EdgeTable(
        prompt=torch.tensor([prompt for prompt, _, _ in entries]),
        kv_head=torch.tensor([kv_head for _, _, kv_head in entries]),
        alpha=torch.tensor([one.alpha for one, _ in chosen], dtype=torch.float64),
        head=_ragged([[head for head in heads for _ in one.queries] for one, heads in chosen]),
        queries=_ragged([one.queries * len(heads) for one, heads in chosen]),
        keys=_ragged([one.keys for one, _ in chosen]),
        last_query=max(one.queries[-1] for one, _ in chosen),
        layer=layer,
    )


def _ragged(lists: Sequence[Sequence[int]]) -> Tensor:
    width = max(map(len, lists))
    return torch.tensor([[*one, *[-1] * (width - len(one))] for one in lists])

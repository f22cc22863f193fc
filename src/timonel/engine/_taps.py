"""Looking into attention while a batch runs: the weights of a few rows of every head, from q, k and the mask.

    s = q kᵀ * scaling;  s = cap * tanh(s / cap) under a soft cap;  then the layer's own mask;  w = softmax(s)

in `promote_types(dtype, float32)`, for the rows that some edge names and no others; the model's own kernel does the
forward pass. For a pass without a cache.

Shapes: b prompts, e edges, h query heads, g key/value heads, r rows that some edge names, q, k columns, d head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from timonel.errors import InputError
from timonel.prompts.prompt import Prompt
from timonel.steer._attention import Attended, tapped
from timonel.steer._edges import _masked, _softmax
from timonel.steer.scope import Span

if TYPE_CHECKING:
    from timonel.engine.engine import Engine

Edge = tuple[Span, Span]
"""Query rows and key columns."""

Cells = tuple[tuple[int, ...], tuple[int, ...]]
"""The same as positions of one prompt; empty where the edge does not stand in it."""

# Weights that are held at once; a query span of a whole prompt would else need as much as eager attention.
_SLICE_ELEMENTS = 1 << 25


@contextmanager
def taps(engine: Engine, tap: Callable[[int, Attended], Tensor | None]) -> Iterator[None]:
    """Inside, `tap(layer, seen)` looks at the attention of every layer."""

    def at(layer: int) -> Callable[[Attended], Tensor | None]:
        return lambda seen: tap(layer, seen)

    with ExitStack() as undo:
        for layer, place in enumerate(engine.geometry.layers):
            undo.enter_context(tapped(engine.model.get_submodule(place.attention), at(layer)))
        yield


def cells_of(prompt: Prompt, edge: Edge) -> Cells:
    """Finds an edge in a prompt; refuses one that causality has cut already."""
    if not all(isinstance(one, Span) for one in edge):
        raise InputError(f'An edge is {edge!r}, but it takes two spans; write (span("identity"), span("item")).')
    queries, keys = (prompt.positions(*one.names) for one in edge)
    if keys[0] > queries[0]:
        raise InputError(
            f"The edge {edge[0]} -> {edge[1]} reads position {keys[0]} from row {queries[0]}, but a row sees only what "
            "stands before it; swap them or choose later rows."
        )
    return queries, keys


@dataclass(frozen=True, slots=True)
class EdgeIndex:
    """The edges of a batch as tensors.

    Attributes:
        at: the rows that any edge names, as columns of the padded input; 0 fills up.
        rows: which of them are an edge's own.
        keys: which columns are an edge's keys.
    """

    at: Int[Tensor, "b r"]
    rows: Bool[Tensor, "b e r"]
    keys: Bool[Tensor, "b e k"]

    @classmethod
    def of(
        cls, cells: Sequence[Sequence[Cells]], width: int, device: torch.device, pads: Sequence[int] = ()
    ) -> EdgeIndex:
        """From the cells of each edge of each prompt; `pads` are on the left."""
        named = [sorted({row for queries, _ in some for row in queries}) for some in cells]
        longest, edges = max(map(len, named)), len(cells[0])
        at = torch.zeros(len(cells), longest, dtype=torch.long)
        rows = torch.zeros(len(cells), edges, longest, dtype=torch.bool)
        keys = torch.zeros(len(cells), edges, width, dtype=torch.bool)
        for b, (some, mine) in enumerate(zip(cells, named, strict=True)):
            pad = pads[b] if pads else 0
            at[b, : len(mine)] = torch.tensor(mine, dtype=torch.long) + pad
            for e, (queries, columns) in enumerate(some):
                rows[b, e, [mine.index(row) for row in queries]] = True
                keys[b, e, [column + pad for column in columns]] = True
        return cls(at.to(device), rows.to(device), keys.to(device))

    def to(self, device: torch.device) -> EdgeIndex:
        """The same on another device."""
        return EdgeIndex(self.at.to(device), self.rows.to(device), self.keys.to(device))

    def parts(self, heads: int) -> Iterator[slice]:
        """The batch in slices whose weights are not too many."""
        step = max(1, _SLICE_ELEMENTS // max(1, heads * self.at.shape[1] * self.keys.shape[2]))
        return (slice(start, start + step) for start in range(0, len(self.at), step))


def row_weights(
    seen: Attended, at: Int[Tensor, "b r"], of: slice, barred: Bool[Tensor, "b k"] | None = None
) -> Float[Tensor, "b h r k"]:
    """Attention weights of some rows of every head, computed anew; what edges did to them is not in it.

    Args:
        seen: what the layer read.
        at: the rows of each prompt.
        of: which prompts of the batch.
        barred: keys whose scores are at minus infinity before the softmax.
    """
    query, key, at = seen.query[of], seen.key[of], at[of]
    (b, h, _, d), g, r = query.shape, key.shape[1], at.shape[1]
    dtype = torch.promote_types(query.dtype, torch.float32)
    rows = query.gather(2, at[:, None, :, None].expand(b, h, r, d)).to(dtype)
    # Query heads that share a key/value head are one block of rows, so that its keys are not repeated.
    scores = rows.reshape(b, g, h // g * r, d) @ key.to(dtype).mT * seen.scaling
    if seen.softcap is not None:
        scores = torch.tanh(scores / seen.softcap) * seen.softcap
    batch = torch.arange(len(seen.query), device=at.device)[of].repeat_interleave(g)
    head = torch.arange(h, device=at.device)[None, :, None].expand(b, h, r).reshape(b * g, -1)
    column = at[:, None].expand(b, h, r).reshape(b * g, -1)
    scores = _masked(scores.flatten(0, 1), seen.mask, batch, head, column, 0, 0).view(b, h, r, key.shape[2])
    if barred is not None:
        scores = scores.masked_fill(barred[of, None, None], -torch.inf)
    return _softmax(scores)


def mix(seen: Attended, weights: Float[Tensor, "b h r k"], of: slice) -> Float[Tensor, "b h r d"]:
    """What heads of these weights put out."""
    value = seen.value[of].to(weights.dtype)
    (b, h, r, k), g = weights.shape, value.shape[1]
    return (weights.reshape(b, g, h // g * r, k) @ value).view(b, h, r, value.shape[3])


def features(seen: Attended, index: EdgeIndex) -> Float[Tensor, "b e h"]:
    """Attention along each edge: summed over its keys, averaged over its query rows; under a plan, as it acts."""
    dtype = torch.promote_types(seen.query.dtype, torch.float32)
    found = []
    for of in index.parts(seen.query.shape[1]):
        weights = row_weights(seen, index.at, of)
        _rewrite(weights, seen, index.at, of)
        rows, keys = index.rows[of].to(dtype), index.keys[of].to(dtype)
        read = weights @ keys.mT[:, None]  # [b, h, r, e]
        total = (read * rows.mT[:, None]).sum(dim=2)  # [b, h, e]
        found.append((total / rows.sum(dim=2)[:, None]).mT)
    return torch.cat(found)


def _rewrite(weights: Float[Tensor, "b h r k"], seen: Attended, at: Int[Tensor, "b r"], of: slice) -> None:
    """Puts the weights of rows that edges rewrote in the place of the layer's own."""
    start = of.start
    for rows in seen.rewritten:
        mine = (rows.batch >= start) & (rows.batch < start + len(weights))
        batch, query, head = rows.batch[mine] - start, rows.query[mine], rows.head[mine]
        same = at[of][batch] == query[:, None]  # [n, r]
        n, r = same.nonzero(as_tuple=True)  # a filler equal to a named row takes its weights too, and is not counted
        weights[batch[n], head[n], r] = rows.weights[mine][n].to(weights.dtype)

"""The arithmetic of an edge: recompute a few rows of a few heads from q, k and v.

    s = q kᵀ * scaling;  s = cap * tanh(s / cap) under a soft cap;  then the mask;  then
    w = softmax(s with the edge's keys at -inf) + alpha * (softmax(s) - the same)         z' = w v

in `promote_types(dtype, float32)`, so that half precision loses nothing here and float64 stays an oracle.
A row whose keys are all gone has weights 0, never NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from timonel.errors import UnsupportedModel
from timonel.steer._place import Place
from timonel.steer._tables import EdgeTable

# Rows are recomputed in slices, so that gathered keys and values stay small beside the model.
_SLICE_ELEMENTS = 1 << 25

# An additive mask bars with the lowest finite number, or with some large one that its maker chose.
BARRED = -1e3


@dataclass(frozen=True, slots=True)
class Rows:
    """The rewritten rows, flat: which cells of the output `[b, q, h, d]`, and their new values.

    `effect` is the largest change of each row against the same arithmetic without the edge: exactly 0 where the edge
    reads nothing, which a comparison with the model's own kernel could not tell from rounding. 0 if not asked for.
    """

    batch: Int[Tensor, "n"]
    query: Int[Tensor, "n"]
    head: Int[Tensor, "n"]
    output: Float[Tensor, "n d"]
    weights: Float[Tensor, "n k"]
    effect: Float[Tensor, "n"]


def edge_rows(
    table: EdgeTable,
    place: Place,
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k d"],
    mask: Tensor | None,
    scaling: float,
    softcap: float | None,
    *,
    track: bool = False,
) -> Rows | None:
    """Recomputes the rows that a layer's edges name; None where none of them is in this forward pass.

    `track` asks for the rows' `effect`, for the price of one more product.
    """
    if table.last_query + place.longest_pad < place.past:
        return None  # a decode step past all rows: cheap to tell, and nothing to do
    table = table.to(query.device)
    pads = place.pads.to(query.device)
    copies = torch.arange(place.rows_per_prompt, device=query.device)
    batch = (table.prompt[:, None] * place.rows_per_prompt + copies).flatten()  # [e * copies]
    edge = torch.arange(len(table.prompt), device=query.device).repeat_interleave(place.rows_per_prompt)
    local = table.queries[edge] + pads[batch, None] - place.past  # [m, q]
    here = (table.queries[edge] >= 0) & (local >= 0) & (local < query.shape[2])
    used = here.any(dim=1)
    if not bool(used.any()):
        return None
    batch, edge, local, here = batch[used], edge[used], local[used], here[used]
    per_slice = max(1, _SLICE_ELEMENTS // (key.shape[2] * key.shape[3]))
    parts = [
        _slice(table, place, query, key, value, mask, scaling, softcap, track, batch[at], edge[at], local[at], here[at])
        for at in torch.split(torch.arange(len(batch), device=query.device), per_slice)
    ]
    return Rows(*(torch.cat([getattr(part, name) for part in parts]) for name in Rows.__slots__))


def _slice(
    table: EdgeTable,
    place: Place,
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k d"],
    mask: Tensor | None,
    scaling: float,
    softcap: float | None,
    track: bool,
    batch: Int[Tensor, "m"],
    edge: Int[Tensor, "m"],
    local: Int[Tensor, "m q"],
    here: Bool[Tensor, "m q"],
) -> Rows:
    """The rows of some of the entries; `batch` and `edge` say whose, `local` which query rows of this pass."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    head, kv_head = table.head[edge].clamp(min=0), table.kv_head[edge]  # [m, q], [m]
    at = local.clamp(0, query.shape[2] - 1)
    scores = query[batch[:, None], head, at].to(dtype) @ key[batch, kv_head].to(dtype).mT * scaling
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    kv_offset = place.kv_offsets[table.layer]
    scores = _masked(scores, mask, batch, head, at, place.past, kv_offset)  # [m, q, k]

    columns = table.keys[edge] + place.pads.to(query.device)[batch, None] - kv_offset  # [m, keys]
    inside = (table.keys[edge] >= 0) & (columns >= 0) & (columns < key.shape[2])
    cut = torch.zeros(len(batch), key.shape[2], dtype=torch.int32, device=query.device)
    cut.scatter_add_(1, columns.clamp(0, key.shape[2] - 1), inside.int())
    kept = _softmax(scores.masked_fill((cut > 0)[:, None], -torch.inf))
    alpha = table.alpha[edge].to(dtype)[:, None, None]
    full = _softmax(scores) if track or bool(alpha.any()) else kept
    weights = kept + alpha * (full - kept)
    values = value[batch, kv_head].to(dtype)
    output = weights @ values  # [m, q, d]
    effect = ((weights - full) @ values).abs().amax(-1) if track else torch.zeros_like(output[..., 0])

    flat = here.nonzero()
    m, q = flat[:, 0], flat[:, 1]
    return Rows(batch[m], local[m, q], head[m, q], output[m, q], weights[m, q], effect[m, q])


def _masked(
    scores: Float[Tensor, "m q k"],
    mask: Tensor | None,
    batch: Int[Tensor, "m"],
    head: Int[Tensor, "m q"],
    at: Int[Tensor, "m q"],
    past: int,
    kv_offset: int,
) -> Float[Tensor, "m q k"]:
    """Applies a layer's mask as its own attention function would: None is causal, True attends, floats are added."""
    keys = scores.shape[-1]
    if mask is None:
        columns = torch.arange(keys, device=scores.device) + kv_offset
        return scores.masked_fill(columns > (at + past)[..., None], -torch.inf)
    if mask.ndim != 4 or mask.shape[-1] < keys:
        raise UnsupportedModel(
            f"The attention mask has shape {tuple(mask.shape)}, but edges need [b, 1 or h, q, k] with at least "
            f"{keys} keys; load the model with attn_implementation='sdpa' or 'eager'."
        )
    rows = mask[
        batch[:, None] if mask.shape[0] > 1 else torch.zeros_like(at),
        head if mask.shape[1] > 1 else torch.zeros_like(at),
        at if mask.shape[2] > 1 else torch.zeros_like(at),
    ][..., :keys]
    if rows.dtype == torch.bool:
        return scores.masked_fill(~rows, -torch.inf)
    # As -inf, so that a row without keys is seen to be one.
    barred = rows <= BARRED
    return (scores + rows.to(scores.dtype)).masked_fill(barred, -torch.inf)


def _softmax(scores: Float[Tensor, "m q k"]) -> Float[Tensor, "m q k"]:
    """Softmax over keys in which a row of nothing but -inf gives zeros; a NaN of the model's own stays one."""
    empty = scores.amax(dim=-1, keepdim=True) == -torch.inf
    return torch.softmax(scores.masked_fill(empty, 0.0), dim=-1).masked_fill(empty, 0.0)

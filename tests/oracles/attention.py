"""A naive attention, one row of one head at a time, with some of its edges scaled: the oracle of `steer`.

Knows nothing of the package: it takes the place of `eager_attention_forward` in a model that runs eagerly, reads the
additive mask that transformers made, and loops. Positions are columns of the padded input, without a cache.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch


class Edge(NamedTuple):
    layer: int
    row: int
    head: int
    queries: Sequence[int]
    keys: Sequence[int]
    alpha: float


def eager_twin(model: Any) -> Any:
    """The same weights in a model of its own that runs eagerly."""
    twin = copy.deepcopy(model)
    twin.set_attn_implementation("eager")
    return twin


@contextmanager
def naive_edges(twin: Any, edges: Sequence[Edge], *, own: bool = False) -> Iterator[None]:
    """Inside, the twin attends by the loop; `own` leaves to its own function every row that no edge names.

    transformers' eager functions take their softmax in float32 whatever the model's dtype, so an eager model in
    float64 is an oracle to 1e-9 only on the rows that the loop computes.
    """
    modules = {type(module).__module__ for module in twin.modules() if type(module).__name__.endswith("Attention")}
    (source,) = modules
    original = sys.modules[source].eager_attention_forward

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **kwargs: Any) -> Any:
        start = original(module, query, key, value, attention_mask, **kwargs)[0] if own else None
        return _attention(module, query, key, value, attention_mask, edges, start, **kwargs)

    with mock.patch.object(sys.modules[source], "eager_attention_forward", attention):
        yield


def _attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    edges: Sequence[Edge],
    start: Any,
    *,
    scaling: float,
    **kwargs: Any,
) -> Any:
    b, h, q, d = query.shape
    group = h // key.shape[1]
    cap = kwargs.get("softcap")
    out = torch.zeros(b, q, h, d, dtype=query.dtype) if start is None else start.clone()
    for row in range(b):
        for head in range(h):
            keys, values = key[row, head // group], value[row, head // group]
            for at in range(q):
                mine = [
                    e for e in edges if (e.layer, e.row, e.head) == (module.layer_idx, row, head) and at in e.queries
                ]
                if start is not None and not mine:
                    continue
                scores = (keys * query[row, head, at]).sum(-1) * scaling
                if cap is not None:
                    scores = cap * torch.tanh(scores / cap)
                scores = scores + mask[row if mask.shape[0] > 1 else 0, 0, at, : len(keys)]
                z = _mix(scores, values)
                for edge in mine:
                    barred = scores.clone()
                    barred[list(edge.keys)] = -torch.inf
                    cut = _mix(barred, values)
                    z = cut + edge.alpha * (z - cut)
                out[row, at, head] = z
    return out, None


def _mix(scores: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Softmax by hand; a row that may see nothing gives zeros."""
    open_ = scores > torch.finfo(scores.dtype).min / 2
    if not open_.any():
        return torch.zeros_like(values[0])
    weight = torch.exp(scores[open_] - scores[open_].max())
    return (weight / weight.sum()) @ values[open_]

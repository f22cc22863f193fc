"""What captures read, the long way: one unpadded prompt at a time, everything kept, loops in float64.

Knows nothing of the package. The naive attention takes the place of `eager_attention_forward` in a model that runs
eagerly, so that its softmax is as wide as the model; transformers' own is float32 in a float64 model too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch

from oracles.attention import Edge


def decoder_layers(model: Any) -> Any:
    return model.model.layers


@contextmanager
def naive_weights(twin: Any, edges: Sequence[Edge] = ()) -> Iterator[dict[int, torch.Tensor]]:
    """Inside, the twin attends head by head; yields layer -> weights [h, q, k] of the last pass."""
    (source,) = {type(module).__module__ for module in twin.modules() if type(module).__name__.endswith("Attention")}
    kept: dict[int, torch.Tensor] = {}

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        _, h, q, _ = query.shape
        group, cap, scaling = h // key.shape[1], kwargs.get("softcap"), kwargs["scaling"]
        weights = torch.zeros(h, q, key.shape[2], dtype=query.dtype)
        out = torch.zeros(1, q, h, query.shape[3], dtype=query.dtype)
        visible = torch.arange(key.shape[2]) <= torch.arange(q)[:, None]
        if mask is not None:
            visible &= mask[0, 0] > -1e9
        for head in range(h):
            scores = query[0, head] @ key[0, head // group].T * scaling
            if cap is not None:
                scores = cap * torch.tanh(scores / cap)
            weight = _softmax(scores, visible)
            for edge in edges:
                if (edge.layer, edge.head) == (module.layer_idx, head):
                    barred = visible.clone()
                    barred[:, list(edge.keys)] = False
                    cut, rows = _softmax(scores, barred), list(edge.queries)
                    weight[rows] = cut[rows] + edge.alpha * (weight[rows] - cut[rows])
            weights[head] = weight
            out[0, :, head] = weight @ value[0, head // group]
        kept[module.layer_idx] = weights
        return out, None

    with mock.patch.object(sys.modules[source], "eager_attention_forward", attention), torch.no_grad():
        yield kept


def _softmax(scores: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """By hand; a row that sees nothing gives zeros. scores, visible: [q, k]."""
    weight = torch.exp(scores - scores.max()) * visible
    return weight / weight.sum(-1, keepdim=True).clamp(min=1e-300)


def along(weights: Sequence[torch.Tensor], queries: Sequence[int], keys: Sequence[int]) -> np.ndarray:
    """The feature of every head, by the definition; weights: one [h, q, k] a layer."""
    features = []
    for layer in weights:
        for head in layer:
            sums = [sum(float(head[query, key]) for key in keys) for query in queries]
            features.append(sum(sums) / len(sums))
    return np.array(features)


def own_weights(twin: Any, ids: Sequence[int]) -> list[torch.Tensor]:
    """An eager model's own attentions."""
    with torch.no_grad():
        out = twin(torch.tensor([ids]), output_attentions=True, use_cache=False)
    return [one[0] for one in out.attentions]


def everything(model: Any, ids: Sequence[int]) -> dict[str, list[torch.Tensor]]:
    """Each layer's output, `down_proj`'s input and the activation's output, of all tokens of one prompt."""
    kept: dict[str, list[torch.Tensor]] = {"layer": [], "down_proj": [], "act": []}
    handles = []
    for layer in decoder_layers(model):
        act = getattr(layer.mlp, "act_fn", None) or layer.mlp.activation_fn
        handles += [
            layer.register_forward_hook(
                lambda m, a, o: kept["layer"].append((o[0] if isinstance(o, tuple) else o)[0].clone())
            ),
            layer.mlp.down_proj.register_forward_pre_hook(lambda m, a: kept["down_proj"].append(a[0][0].clone())),
            act.register_forward_hook(lambda m, a, o: kept["act"].append(o[0].clone())),
        ]
    try:
        with torch.no_grad():
            model(torch.tensor([ids]), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    return kept


def exact(model: Any) -> Any:
    """Makes a float64 model's norms float64 too: in transformers they are float32, a noise that finite differences
    would divide by their step.
    """

    def normed(module: Any) -> Any:
        weight = module.weight + 1 if type(module).__name__.startswith("Gemma") else module.weight
        eps = getattr(module, "eps", None) or module.variance_epsilon
        return lambda x: weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = normed(module)
    return model


@contextmanager
def exact_eager(model: Any) -> Iterator[None]:
    """Inside, an eager model takes its softmax in its own dtype."""
    (source,) = {type(module).__module__ for module in model.modules() if type(module).__name__.endswith("Attention")}

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        group, cap = query.shape[1] // key.shape[1], kwargs.get("softcap")
        scores = query @ key.repeat_interleave(group, 1).mT * kwargs["scaling"]
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        q = torch.arange(query.shape[2])
        visible = (q <= q[:, None]) if mask is None else mask > -1e9
        weights = torch.softmax(scores.masked_fill(~visible, -torch.inf), dim=-1)
        return (weights @ value.repeat_interleave(group, 1)).transpose(1, 2).contiguous(), weights

    with mock.patch.object(sys.modules[source], "eager_attention_forward", attention):
        yield

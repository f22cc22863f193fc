"""A head's output in its simplest form, and a look at what a real attention layer computes: the doctor's yardstick.

    s_j = (q · k_j) * scaling, then cap * tanh(s_j / cap) under a soft cap, for j <= row and row - j < window
    z(barred) = sum_j softmax(s without barred)_j v_j, 0 if no key is left
    z' = z(keys) + alpha * (z() - z(keys))

one row at a time in float64, from positions alone: for a single unpadded sequence without a cache. It shares no
code with the attention function that plans use. What it takes over from the model is q, k and v as the layer hands
them to its attention function (rotated, normed), and the scale; so it does not check a layer's own rotary positions.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from timonel.errors import UnsupportedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from timonel.models.geometry import Geometry

_NAME = "timonel-examine"


@dataclass(eq=False)
class Seen:
    """What one attention layer computed in the last forward pass.

    Shapes: query [h, q, d]; key, value [g, k, d]; own (its function's output) and written (what `o_proj` read)
    [q, h, d].
    """

    query: Float[Tensor, "h q d"]
    key: Float[Tensor, "g k d"]
    value: Float[Tensor, "g k d"]
    own: Float[Tensor, "q h d"]
    written: Float[Tensor, "q h d"]
    scaling: float


@contextmanager
def watch(model: PreTrainedModel, geometry: Geometry, layers: Collection[int]) -> Iterator[dict[int, Seen]]:
    """Inside, each pass over a single sequence leaves what these layers computed in the yielded mapping."""
    seen: dict[int, Seen] = {}
    with ExitStack() as undo:
        for layer in layers:
            undo.enter_context(_watch_one(model, geometry, layer, seen))
        yield seen


@contextmanager
def _watch_one(model: PreTrainedModel, geometry: Geometry, layer: int, seen: dict[int, Seen]) -> Iterator[None]:
    """Lends the layer a config that names a function which calls the layer's own and keeps what went through."""
    place = geometry.layers[layer]
    module = model.get_submodule(place.attention)
    config: Any = module.config
    source = sys.modules[type(module).__module__]
    registry: Any = getattr(source, "ALL_ATTENTION_FUNCTIONS", None)
    name = config._attn_implementation
    if registry is None or (name not in (None, "eager") and name not in registry):
        raise UnsupportedModel(
            f"{type(module).__name__} does not call {name!r} through transformers' attention interface, so an edge "
            "cannot be reached; load the model with attn_implementation='sdpa' or 'eager'."
        )
    function = source.eager_attention_forward if name in (None, "eager") else registry[name]

    def keep(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        output, weights = function(module, query, key, value, mask, **kwargs)
        scaling = kwargs.get("scaling")
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        seen[layer] = Seen(query[0], key[0], value[0], output[0], output[0], scaling)
        return output, weights

    def written(_: Any, args: tuple[Tensor, ...]) -> None:
        seen[layer].written = args[0][0].view(-1, place.heads, place.head_dim)

    mine = f"{_NAME}-{layer}"
    lent = copy.copy(config)
    lent._attn_implementation_internal = mine  # the property's setter would write to shared sub-configs
    registry[mine] = keep
    module.config = lent
    handle = model.get_submodule(place.o_proj).register_forward_pre_hook(written)
    try:
        yield
    finally:
        handle.remove()
        module.config = config
        del registry[mine]


def naive_row(
    seen: Seen,
    head: int,
    row: int,
    *,
    group: int,
    softcap: float | None = None,
    window: int | None = None,
    keys: Sequence[int] = (),
    alpha: float = 1.0,
) -> Float[Tensor, "d"]:
    """One row of one query head, with the edge to `keys` scaled by `alpha`."""
    whole = _mix(seen, head, row, group, softcap, window, ())
    if alpha == 1.0:
        return whole
    cut = _mix(seen, head, row, group, softcap, window, keys)
    return cut + alpha * (whole - cut)


def _mix(
    seen: Seen, head: int, row: int, group: int, softcap: float | None, window: int | None, barred: Sequence[int]
) -> Float[Tensor, "d"]:
    query = seen.query[head, row].double().cpu()
    keys, values = seen.key[head // group].double().cpu(), seen.value[head // group].double().cpu()
    first = 0 if window is None else max(0, row - window + 1)
    open_ = [j for j in range(first, row + 1) if j not in barred]
    if not open_:
        return torch.zeros_like(values[0])
    scores = torch.stack([(query * keys[j]).sum() * seen.scaling for j in open_])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    weights = torch.exp(scores - scores.max())
    weights = weights / weights.sum()
    return sum((weight * values[j] for weight, j in zip(weights, open_, strict=True)), torch.zeros_like(values[0]))

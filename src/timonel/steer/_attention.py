"""The one way into a model's attention: a function that calls the model's own and then rewrites a few rows.

Each touched attention module is lent a shallow copy of its config that names our function; the model's own config
object, which other models may share, is never written to, and masks go on being made for the model's own function.
So untouched layers run exactly the code that they ran before, and touched ones run it first and are corrected after.
A tap looks on at the same place, after the edges: what it sees is what the layer read and what it now hands on.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from jaxtyping import Float
from torch import Tensor, nn

from timonel.errors import InputError, UnsupportedModel
from timonel.steer._edges import Rows, edge_rows
from timonel.steer._place import Place
from timonel.steer._tables import EdgeTable

_NAME = "timonel"
_HARMLESS = {
    # What attention modules pass along that does not change which key a row may read, or is in the mask already.
    "dropout", "scaling", "softcap", "sliding_window", "position_ids", "use_cache", "output_attentions",
    "output_hidden_states", "return_dict", "is_causal", "cache_position", "num_items_in_batch",
}  # fmt: skip


# These window and mask inside their kernels (as do kernels named by a hub id), where an edge cannot see it.
_OWN_MASKS = ("flash", "flex", "paged|")


@dataclass(eq=False)
class LayerEdges:
    """The edges of one attachment on one layer, and how they have fared so far.

    Attributes:
        table: the edges.
        place: where the current forward pass stands; set by the attachment before the layers run.
        fired: rows of heads rewritten so far.
        changed: the largest change of any rewritten output so far.
    """

    table: EdgeTable
    place: Place | None = None
    fired: int = 0
    changed: float = 0.0
    track: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """What one layer's attention read and wrote in one pass without a cache, as a tap sees it.

    Attributes:
        query, key, value: as the layer handed them to its attention function, rotated and normed.
        mask, scaling, softcap: likewise; the mask is None (causal), boolean (True attends) or added.
        output: the heads' outputs that go on to `o_proj`, after the edges.
        rewritten: the rows that edges rewrote, in order; a later one holds where two name the same cell.
    """

    query: Float[Tensor, "b h q d"]
    key: Float[Tensor, "b g k d"]
    value: Float[Tensor, "b g k d"]
    mask: Tensor | None
    scaling: float
    softcap: float | None
    output: Float[Tensor, "b q h d"]
    rewritten: tuple[Rows, ...]


Tap = Callable[[Attended], Tensor | None]
"""Looks at a layer's attention; may hand back a tensor that takes the place of its output."""


@dataclass(eq=False)
class _Slot:
    """What a touched module had, and who touches it now."""

    config: Any
    function: Callable[..., tuple[Tensor, Tensor | None]]
    registry: MutableMapping[str, Any]
    edges: list[LayerEdges] = field(default_factory=list)
    taps: list[Tap] = field(default_factory=list)


_SLOTS: WeakKeyDictionary[nn.Module, _Slot] = WeakKeyDictionary()


def add_edges(module: nn.Module, edges: LayerEdges) -> None:
    """Makes an attention module apply these edges, after any that act on it already."""
    slot = _SLOTS.get(module) or _open_slot(module)
    mine = edges.table.cells()
    for other in slot.edges:
        if clash := mine & other.table.cells():
            _, head, query = min(clash)
            raise InputError(
                f"Two attached plans rewrite row {query} of L{edges.table.layer}H{head}, but a row of a head takes one "
                "edge; put both edges into one plan."
            )
    slot.edges.append(edges)


def remove_edges(module: nn.Module, edges: LayerEdges) -> None:
    """Takes these edges off again; the last ones to go leave the module, and the registry, as they were."""
    slot = _SLOTS.get(module)
    if slot is None or edges not in slot.edges:
        return
    slot.edges.remove(edges)
    _close_if_idle(module, slot)


@contextmanager
def tapped(module: nn.Module, tap: Tap) -> Iterator[None]:
    """Inside, `tap` looks at every pass through this attention module, after the edges that act on it."""
    slot = _SLOTS.get(module) or _open_slot(module)
    slot.taps.append(tap)
    try:
        yield
    finally:
        slot.taps.remove(tap)
        _close_if_idle(module, slot)


def _close_if_idle(module: nn.Module, slot: _Slot) -> None:
    """Gives a module its config back, and the registry its state, once nobody touches it any more."""
    if slot.edges or slot.taps:
        return
    module.config = slot.config
    del _SLOTS[module]
    if not any(other.registry is slot.registry for other in _SLOTS.values()):
        del slot.registry[_NAME]


def _open_slot(module: nn.Module) -> _Slot:
    config: Any = module.config
    source = sys.modules[type(module).__module__]
    registry = getattr(source, "ALL_ATTENTION_FUNCTIONS", None)
    if registry is None:
        raise UnsupportedModel(
            f"{type(module).__name__} does not call its attention through transformers' attention interface, so an "
            "edge cannot be reached; use a model class that does."
        )
    name = config._attn_implementation
    if name is None or name == "eager":
        function = source.eager_attention_forward
    elif name in registry and not name.startswith(_OWN_MASKS) and "/" not in name:
        function = registry[name]
    else:
        raise UnsupportedModel(
            f"The attention implementation {name!r} cannot be steered edge by edge; "
            "load the model with attn_implementation='sdpa' or 'eager'."
        )
    slot = _Slot(config, function, registry)
    lent = copy.copy(config)
    lent._attn_implementation_internal = _NAME  # the property's setter would write to shared sub-configs
    registry[_NAME] = _attention
    _SLOTS[module] = slot
    module.config = lent
    return slot


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The model's own attention, then edges, then taps. q: [b, h, q, d]; k, v: [b, g, k, d]; result: [b, q, h, d]."""
    slot = _SLOTS.get(module)
    if slot is None:
        raise UnsupportedModel("A model was copied while a plan was attached to it; copy it outside of the with block.")
    if kwargs.get("dropout"):
        raise UnsupportedModel("Attention dropout is on, which an edge cannot follow; call model.eval() first.")
    unknown = [name for name, given in kwargs.items() if name not in _HARMLESS and given is not None]
    if unknown:
        raise UnsupportedModel(
            f"{type(module).__name__} hands its attention {', '.join(sorted(unknown))}, which edges do not know how to "
            "honour; run the model without it."
        )
    output, weights = slot.function(module, query, key, value, attention_mask, **kwargs)
    causal = kwargs.get("is_causal")
    if not (getattr(module, "is_causal", True) if causal is None else causal):
        raise UnsupportedModel(
            f"{type(module).__name__} attends both ways, but edges are defined for causal attention."
        )
    scaling = kwargs.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    softcap = kwargs.get("softcap")
    rewritten = []
    for edges in slot.edges:
        if edges.place is None:
            continue  # the module was called outside the decoder that the plan is attached to
        rows = edge_rows(
            edges.table, edges.place, query, key, value, attention_mask, scaling, softcap, track=edges.track
        )
        if rows is None:
            continue
        where = (rows.batch, rows.query, rows.head)
        new = rows.output.to(output.dtype)
        edges.fired += len(rows.batch)
        if edges.track and len(rows.batch):
            edges.changed = max(edges.changed, float(rows.effect.detach().max()))
        output = output.index_put(where, new)
        if weights is not None:
            weights = weights.index_put((rows.batch, rows.head, rows.query), rows.weights.to(weights.dtype))
        rewritten.append(rows)
    for tap in slot.taps:
        seen = Attended(query, key, value, attention_mask, scaling, softcap, output, tuple(rewritten))
        output = output if (given := tap(seen)) is None else given
    return output, weights

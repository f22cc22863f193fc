"""The sizes of a model that a plan depends on, in short: what a plan file keeps of a geometry.

o_proj: heads * head_dim channels      down_proj, act: neurons      residual stream: hidden
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from timonel.errors import InputError
from timonel.models.geometry import Geometry
from timonel.steer.interventions import ChannelScale, ChannelSet, EdgeScale, Intervention, ResidualAdd


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Sizes of one decoder layer, as in `LayerGeometry`."""

    heads: int
    kv_heads: int
    head_dim: int
    neurons: int


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model that a plan depends on.

    Attributes:
        hidden: width of the residual stream.
        layers: one entry a decoder layer.
    """

    hidden: int
    layers: tuple[LayerShape, ...]

    @classmethod
    def of(cls, geometry: Geometry) -> Shape:
        """The sizes in a geometry."""
        rows = (LayerShape(one.heads, one.kv_heads, one.head_dim, one.neurons) for one in geometry.layers)
        return cls(geometry.hidden, tuple(rows))

    def __str__(self) -> str:
        runs = ((len(list(run)), one) for one, run in groupby(self.layers))
        sizes = (
            f"{count} layers of {one.heads} heads ({one.kv_heads} key/value, {one.head_dim} wide) and {one.neurons} "
            "neurons"
            for count, one in runs
        )
        return f"{', then '.join(sizes)} on {self.hidden} channels"

    def check(self, one: Intervention) -> None:
        """Refuses an intervention that has no place in a model of these sizes."""
        if one.layer >= len(self.layers):
            raise _misfit(f"layer {one.layer}", f"layers are 0 to {len(self.layers) - 1}")
        layer = self.layers[one.layer]
        if isinstance(one, EdgeScale):
            if one.head >= layer.heads:
                raise _misfit(f"L{one.layer}H{one.head}", f"layer {one.layer} has heads 0 to {layer.heads - 1}")
            return
        if isinstance(one, ResidualAdd):
            found, size, place = len(one.vector), self.hidden, "residual stream"
        else:
            size = layer.heads * layer.head_dim if one.site == "o_proj" else layer.neurons
            found, place = size, f"{one.site} of layer {one.layer}"
        if isinstance(one, ChannelScale):
            found = len(one.factors)
        if isinstance(one, ChannelSet) and max(one.channels) >= size:
            raise _misfit(f"channel {max(one.channels)} of {place}", f"its channels are 0 to {size - 1}")
        if found != size:
            raise _misfit(f"{found} numbers for the {place}", f"it has {size} channels")


def _misfit(what: str, has: str) -> InputError:
    return InputError(f"The plan names {what}, but in this model {has}; it is for another model: use that one.")

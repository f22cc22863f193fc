"""Channel interventions of a whole batch, as steps that one hook takes in order.

    scale   x * factors          set   x[.., channels] = values          add   x + scale * vector

each on the rows that its scope names and no others, in `promote_types(dtype, float32)`. A step that acts on every
row costs one elementwise product; a step that acts on none costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from timonel.errors import InputError
from timonel.steer._place import Place
from timonel.steer.bound import Bound
from timonel.steer.interventions import ChannelIntervention, ChannelScale, ChannelSet, ResidualAdd
from timonel.steer.scope import Region

if TYPE_CHECKING:
    from timonel.models.geometry import Geometry

Where = tuple[int, str]
"""Layer and site; the site of a residual is `layer`."""


@dataclass(eq=False)
class Step:
    """One intervention, and which prompts of the batch it acts on, where.

    Attributes:
        what: the intervention.
        scopes: prompt -> positions or region.
        fired: rows changed so far; `calls` counts the passes in which there were any.
    """

    what: ChannelIntervention
    scopes: dict[int, tuple[int, ...] | Region]
    fired: int = 0
    calls: int = 0
    changed: float = 0.0
    _made: Tensor | None = field(default=None, repr=False)

    def rows(self, place: Place) -> Bool[Tensor, "b q"]:
        """Which rows of this pass it changes."""
        chosen = torch.zeros(len(place.pads), place.queries, dtype=torch.bool)
        positions = place.positions()
        for prompt, scope in self.scopes.items():
            mine = slice(prompt * place.rows_per_prompt, (prompt + 1) * place.rows_per_prompt)
            if isinstance(scope, Region):
                chosen[mine] = place.inside(scope)[mine]
            else:
                chosen[mine] = torch.isin(positions[mine], torch.tensor(scope))
        return chosen

    def apply(self, x: Float[Tensor, "b q c"], place: Place, *, track: bool) -> Float[Tensor, "b q c"]:
        """Changes the rows of this pass."""
        rows = self.rows(place)
        count = int(rows.sum())
        if not count:
            return x
        wide = torch.promote_types(x.dtype, torch.float32)
        new = self._changed(x.to(wide)).to(x.dtype)
        if count < rows.numel():
            new = torch.where(rows.to(x.device)[..., None], new, x)
        self.fired += count
        self.calls += 1
        if track:
            self.changed = max(self.changed, float((new - x).abs().max()))
        return new

    def _changed(self, x: Float[Tensor, "b q c"]) -> Float[Tensor, "b q c"]:
        one, numbers = self.what, self._numbers(x)
        if isinstance(one, ChannelScale):
            return x * numbers
        if isinstance(one, ChannelSet):
            channels: Int[Tensor, "c"] = torch.tensor(one.channels, device=x.device)
            return x.index_copy(-1, channels, numbers.expand(*x.shape[:-1], -1))
        return x + numbers

    def _numbers(self, like: Tensor) -> Float[Tensor, "c"]:
        """The intervention's numbers as a tensor, made once for a device and dtype."""
        if self._made is None or self._made.dtype != like.dtype or self._made.device != like.device:
            match self.what:
                case ChannelScale(factors=vector) | ChannelSet(values=vector):
                    array = vector.array
                case ResidualAdd(vector=vector, scale=scale):
                    array = scale * vector.array
            self._made = torch.tensor(array, device=like.device, dtype=like.dtype)
        return self._made


def build_steps(bounds: Sequence[Bound], geometry: Geometry) -> dict[Where, list[Step]]:
    """Gathers a batch's channel interventions by the place where they act; checks that they fit it.

    The k-th change of each prompt is taken before any prompt's (k+1)-th, so every plan keeps its own order.
    """
    keyed: dict[tuple[int, ChannelIntervention], Step] = {}
    for prompt, bound in enumerate(bounds):
        for order, change in enumerate(bound.changes):
            step = keyed.setdefault((order, change.what), Step(change.what, {}))
            step.scopes[prompt] = change.where
    steps: dict[Where, list[Step]] = {}
    for (_, what), step in sorted(keyed.items(), key=lambda item: item[0][0]):
        _check(what, geometry)
        site = "layer" if isinstance(what, ResidualAdd) else what.site
        steps.setdefault((what.layer, site), []).append(step)
    return steps


class ChannelHook:
    """Takes the steps of one place; a forward-pre-hook on a projection, a forward hook on an activation or a layer."""

    def __init__(self, steps: Sequence[Step], *, track: bool) -> None:
        self.steps = steps
        self.track = track
        self.place: Place | None = None

    def register(self, model: nn.Module, geometry: Geometry, where: Where) -> Any:
        """Hangs itself where it belongs; returns the handle."""
        layer, site = where
        module = model.get_submodule(getattr(geometry.layers[layer], site))
        if site in ("o_proj", "down_proj"):
            return module.register_forward_pre_hook(self.before)
        return module.register_forward_hook(self.after)

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """On the input of a projection."""
        return (self._all(args[0]), *args[1:])

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """On the output of an activation function or a layer, which some layers wrap in a tuple."""
        if isinstance(output, tuple):
            return (self._all(output[0]), *output[1:])
        return self._all(output)

    def _all(self, x: Tensor) -> Tensor:
        if self.place is None:
            return x  # the module was called outside the decoder that the plan is attached to
        shape = x.shape
        x = x.view(len(self.place.pads), self.place.queries, shape[-1])
        for step in self.steps:
            x = step.apply(x, self.place, track=self.track)
        return x.view(shape)


def _check(what: ChannelIntervention, geometry: Geometry) -> None:
    place = geometry.check_layer(what.layer)
    if isinstance(what, ResidualAdd):
        given, needed, name = len(what.vector), geometry.hidden, "residual stream"
    else:
        needed = place.heads * place.head_dim if what.site == "o_proj" else place.neurons
        name = f"{what.site} of layer {what.layer}"
        given = len(what.factors) if isinstance(what, ChannelScale) else needed
        if isinstance(what, ChannelSet) and what.channels and max(what.channels) >= needed:
            raise InputError(
                f"Channel {max(what.channels)} does not exist: the {name} has channels 0 to {needed - 1}; give those."
            )
    if given != needed:
        raise InputError(
            f"A plan has {given} numbers for the {name}, which has {needed} channels; it is for another model."
        )

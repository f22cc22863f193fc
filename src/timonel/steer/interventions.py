"""The interventions: frozen values that say what is changed, where, and by how much. They touch nothing themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from timonel.errors import InputError
from timonel.steer.scope import ALL, Scope, Span
from timonel.steer.vector import Vector

if TYPE_CHECKING:
    from timonel.models.geometry import Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeScale:
    r"""Scales what one attention edge of one query head contributes.

    On the query rows the head's output, before `o_proj`, becomes

        z' = z_cut + alpha * (z - z_cut)

    where `z = softmax(s) V` is the head's own output and `z_cut` is the output with the scores of the key columns at
    minus infinity before the softmax (after a soft cap). alpha 0 cuts the edge, 1 changes nothing, above 1
    amplifies it. A row that is left without any key yields zeros.

    Source: the knockout and the alpha-scaling of "Cultural Binding Heads in Language Models" (arXiv 2605.28543).
    Does not show: what the edge carries *through other heads*, nor that the model needs it; cutting renormalises the
    row's other keys, so a control edge belongs beside every effect.

    Attributes:
        layer: 0-based layer.
        head: 0-based *query* head; its key/value head is `head // group`.
        queries: rows on which the head's output changes.
        keys: columns that the edge reads.
        alpha: the edge's new weight; finite.
    """

    layer: int
    head: int
    queries: Span
    keys: Span
    alpha: float

    def __post_init__(self) -> None:
        if self.layer < 0 or self.head < 0:
            raise InputError(f"Head L{self.layer}H{self.head} is negative, but layers and heads count from 0.")
        if not isinstance(self.queries, Span) or not isinstance(self.keys, Span):
            raise InputError('queries and keys must be spans; write span("item"), which a prompt then binds.')
        if not math.isfinite(self.alpha):
            raise InputError(f"alpha is {self.alpha}, but it must be finite; 0 cuts the edge, 1 leaves it.")


Site = Literal["o_proj", "down_proj", "act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelScale:
    r"""Multiplies the input channels of an output projection.

        x' = x * factors            x: [.., c], the input of `o_proj` or `down_proj`

    A query head is a slice of `head_dim` channels of `o_proj`, a neuron is one channel of `down_proj`. Acting on all
    rows and positions it folds into the weights exactly: `W' = W diag(factors)`. Two scales on one site multiply.

    Source: CLAS (arXiv 2601.16390) is one `ChannelScale` with factors `1 + alpha * d` on `down_proj`.
    Does not show: that a channel means something by itself; a random mask of the same size belongs beside it.

    Attributes:
        layer: 0-based layer.
        site: o_proj or down_proj.
        factors: one number a channel, [c]; 1 leaves a channel bit for bit.
        scope: where it acts; everywhere by default, which is what can be exported.
    """

    layer: int
    site: Site
    factors: Vector
    scope: Scope = ALL

    def __post_init__(self) -> None:
        object.__setattr__(self, "factors", Vector(self.factors, "list of factors"))
        _check_site(self.layer, self.site, ("o_proj", "down_proj"), type(self).__name__)

    @classmethod
    def head(cls, geometry: Geometry, *, layer: int, head: int, alpha: float, scope: Scope = ALL) -> ChannelScale:
        """Scales all that one query head writes; alpha 0 ablates it."""
        place = geometry.check_head(layer, head)
        factors = np.ones(place.heads * place.head_dim)
        factors[head * place.head_dim : (head + 1) * place.head_dim] = alpha
        return cls(layer=layer, site="o_proj", factors=Vector(factors), scope=scope)

    @classmethod
    def neurons(
        cls, geometry: Geometry, *, layer: int, neurons: Sequence[int], alpha: float, scope: Scope = ALL
    ) -> ChannelScale:
        """Scales some neurons of a layer's MLP; alpha 0 silences them."""
        place = geometry.check_layer(layer)
        _check_channels(neurons, place.neurons)
        factors = np.ones(place.neurons)
        factors[list(neurons)] = alpha
        return cls(layer=layer, site="down_proj", factors=Vector(factors), scope=scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelSet:
    """Overwrites channels with fixed values.

        x'[channels] = values

    Site `act` is the output of the MLP's activation function, before it meets `up`: where LAPE and Int-mu write. Set
    and scale at one site do not commute; a plan applies them in its order.

    Attributes:
        layer: 0-based layer.
        site: o_proj, down_proj or act.
        channels: which, without repeats.
        values: one number a channel.
        scope: where it acts.
    """

    layer: int
    site: Site
    channels: tuple[int, ...]
    values: Vector
    scope: Scope = ALL

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(int(channel) for channel in self.channels))
        object.__setattr__(self, "values", Vector(self.values, "list of values"))
        _check_site(self.layer, self.site, ("o_proj", "down_proj", "act"), type(self).__name__)
        if len(self.channels) != len(self.values):
            raise InputError(
                f"ChannelSet has {len(self.channels)} channels and {len(self.values)} values, but each channel takes "
                "one value; give as many of both."
            )
        _check_channels(self.channels, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualAdd:
    """Adds a vector to the residual stream after a layer.

        x' = x + scale * vector     x: [.., hidden], the output of decoder layer `layer`

    Source: the usual baseline of steering by a difference of means. It leaves the layer's own parts as they are.

    Attributes:
        layer: 0-based layer, after which it is added.
        vector: [hidden].
        scale: its weight; 0 is the identity.
        scope: where it acts.
    """

    layer: int
    vector: Vector
    scale: float = 1.0
    scope: Scope = ALL

    def __post_init__(self) -> None:
        object.__setattr__(self, "vector", Vector(self.vector))
        _check_site(self.layer, "residual", ("residual",), type(self).__name__)
        if not math.isfinite(self.scale):
            raise InputError(f"scale is {self.scale}, but it must be finite; 0 leaves the stream as it is.")


ChannelIntervention = ChannelScale | ChannelSet | ResidualAdd
Intervention = EdgeScale | ChannelIntervention


def is_identity(one: Intervention) -> bool:
    """Whether it changes nothing, whatever the input."""
    match one:
        case EdgeScale():
            return one.alpha == 1.0
        case ChannelScale():
            return bool((one.factors.array == 1.0).all())
        case ChannelSet():
            return not one.channels
        case ResidualAdd():
            return one.scale == 0.0 or not one.vector.array.any()


def _check_site(layer: int, site: str, allowed: Sequence[str], kind: str) -> None:
    if layer < 0:
        raise InputError(f"{kind} has layer {layer}, but layers count from 0; give one that the model has.")
    if site not in allowed:
        raise InputError(f"{kind} has site {site!r}, but it acts at {' or '.join(allowed)}; give one of these.")


def _check_channels(channels: Sequence[int], count: int | None) -> None:
    if len(set(channels)) != len(channels):
        raise InputError("A channel is named twice, but each is changed once; leave out the repeats.")
    wrong = [channel for channel in channels if channel < 0 or (count is not None and channel >= count)]
    if wrong:
        reach = "" if count is None else f" to {count - 1}"
        raise InputError(f"Channel {wrong[0]} does not exist: channels are 0{reach}; give those that the layer has.")

"""What the doctor's self-tests run: a few tokens with spans, and a plan that has everything in it that a plan can have.

Rows and keys lie within 7 tokens of each other, the sequence's first token aside: inside any window that is in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from timonel.models.geometry import Geometry
from timonel.prompts.prompt import Prompt
from timonel.steer.interventions import ChannelScale, ChannelSet, EdgeScale, ResidualAdd
from timonel.steer.plan import Plan
from timonel.steer.scope import GENERATED, PROMPT, span
from timonel.steer.vector import Vector


def probe(ids: tuple[int, ...]) -> Prompt:
    """The tokens with the spans that the probe's plan names: late rows that read early and near keys, and an answer."""
    n = len(ids)
    answer = tuple(range(n - 4, n))
    return Prompt(ids, {"rows": (n - 6, n - 2), "keys": (0, n - 9, n - 8), "answer": answer})


def probe_heads(geometry: Geometry) -> tuple[tuple[int, int], ...]:
    """Three heads over the depth and the width of the model, as far as it has them."""
    layers = sorted({0, geometry.n_layers // 2, geometry.n_layers - 1})
    share = max(1, len(layers) - 1)
    return tuple((layer, (geometry.layers[layer].heads - 1) * at // share) for at, layer in enumerate(layers))


def probe_plan(geometry: Geometry) -> Plan:
    """Every kind of intervention, every kind of scope; strong enough that a fault shows over rounding."""
    edges = edges_of(geometry, (0.0, 2.0, 0.5))
    layer, head = probe_heads(geometry)[-1]
    first, middle, half = geometry.layers[0], geometry.n_layers // 2, range(geometry.layers[0].neurons // 2)
    return Plan(
        (
            *edges,
            ChannelScale.head(geometry, layer=0, head=first.heads - 1, alpha=3.0),
            ChannelScale.head(geometry, layer=layer, head=head, alpha=0.0, scope=PROMPT),
            ChannelScale.neurons(geometry, layer=0, neurons=half, alpha=2.0, scope=GENERATED),
            ChannelSet(layer=middle, site="act", channels=(2, 3), values=Vector((0.5, -0.5)), scope=span("rows")),
            ResidualAdd(layer=middle, vector=Vector((0.5,) * geometry.hidden)),
        )
    )


def edges_of(geometry: Geometry, alphas: Sequence[float]) -> tuple[EdgeScale, ...]:
    """The probe's edge at each of its heads, with these alphas."""
    heads = zip(probe_heads(geometry), alphas, strict=False)
    return tuple(
        EdgeScale(layer=layer, head=head, queries=span("rows"), keys=span("keys"), alpha=alpha)
        for (layer, head), alpha in heads
    )

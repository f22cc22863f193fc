"""Real models: captures against the model's own weights, hooks and differences, one prompt at a time."""

from __future__ import annotations

import numpy as np
import pytest

from oracles.attention import eager_twin
from oracles.captures import along, everything, own_weights
from timonel.engine import Engine, Request, choice
from timonel.engine.capture import activity, attention, attribution, residuals
from timonel.models import load
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, span

pytestmark = pytest.mark.real

TEXTS = (
    "Who should avoid wearing [[item:a kimono]] at a wedding? [[identity:The Korean person]]",
    "Who would be glad of [[item:a plate of jollof rice]]? Perhaps it is [[identity:the Nigerian person]], perhaps not",
    "[[item:Nowruz]] is kept by [[identity:Persians]]",
)
EDGES = [(span("identity"), span("item")), (span("identity"), span("identity"))]


@pytest.mark.parametrize("name", ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def test_captures_of_a_real_model(name: str) -> None:
    model, tokenizer = load(name)
    prompts = [Prompt.parse(tokenizer, text) for text in TEXTS]
    engine = Engine(model, tokenizer)
    layers = [0, engine.geometry.n_layers - 1]
    features = attention(engine, prompts, EDGES)
    streams = residuals(engine, prompts, layers)
    active = activity(engine, prompts, ["x", "y", "x"], where="all")
    slopes = attribution(engine, [Request(p, (choice(p, (30, 40)),)) for p in prompts], EDGES)

    twin = eager_twin(model)
    tokens = np.zeros((2, *active.active.shape[1:]))
    for group, prompt, found, stream in zip((0, 1, 0), prompts, features, streams, strict=True):
        weights = own_weights(twin, prompt.ids)
        for (queries, keys), one in zip(EDGES, found, strict=True):
            expected = along(weights, prompt.positions(*queries.names), prompt.positions(*keys.names))
            np.testing.assert_allclose(one, expected, atol=2e-5)
        kept = everything(model, prompt.ids)
        for layer, one in zip(layers, stream, strict=True):
            expected = kept["layer"][layer][-1].numpy()
            np.testing.assert_allclose(one, expected, atol=1e-4 * np.abs(expected).max())
        tokens[group] += np.stack([(x > 0).sum(dim=0).numpy() for x in kept["down_proj"]])
    assert active.n.tolist() == [len(prompts[0]) + len(prompts[2]), len(prompts[1])]
    # A neuron within rounding of 0 may fall on either side.
    assert np.abs(active.active - tokens).sum() <= 1e-4 * active.n.sum() * tokens[0].size

    heads = list(engine.geometry.heads())
    strongest = sorted(range(len(heads)), key=lambda at: -abs(slopes[0].slope[0, 0, at]))[:3]
    answer = (choice(prompts[0], (30, 40)),)
    for at in strongest:
        layer, head = heads[at]
        plans = [
            Plan((EdgeScale(layer=layer, head=head, queries=EDGES[0][0], keys=EDGES[0][1], alpha=alpha),))
            for alpha in (1.05, 0.95)
        ]
        (up,), (down,) = engine.score([Request(prompts[0], answer, plan) for plan in plans])
        assert slopes[0].slope[0, 0, at] == pytest.approx((up - down) / 0.1, rel=0.05, abs=2e-4)
    assert all(np.isfinite(one.slope).all() for one in slopes)

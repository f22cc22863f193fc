"""Attention features against a softmax written out, one prompt at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from oracles.attention import Edge, eager_twin
from oracles.batches import padded
from oracles.captures import along, naive_weights, own_weights
from timonel.engine import Engine
from timonel.engine._taps import EdgeIndex, features
from timonel.engine.capture import attention
from timonel.errors import InputError
from timonel.models import Geometry
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, attach, span
from timonel.steer._attention import Attended, tapped
from tiny import ARCHITECTURES, tiny, word_tokenizer

EDGES = [
    (span("identity"), span("item")),
    (span("last"), span("identity", "item")),
    (span("identity"), span("identity")),
]
# Gemma 2 has a soft cap, and so no SDPA.
BOTH = [(name, "eager") for name in ARCHITECTURES] + [(name, "sdpa") for name in ARCHITECTURES if name != "gemma2"]


def ragged(count: int = 4, seed: int = 0) -> list[Prompt]:
    """Prompts around and well beyond the window of 8."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        length = draw.randrange(7, 24)
        item = draw.randrange(1, length - 5)
        first = draw.randrange(item + 1, length - 2)
        spans = {
            "item": (item, item + 1) if draw.random() < 0.5 else (item,),
            "identity": tuple(range(first + 1, first + 1 + draw.randrange(1, length - first))),
            "last": (length - 1,),
        }
        made.append(Prompt(tuple(draw.randrange(3, 200) for _ in range(length)), spans))
    return made


def by_loop(twin: Any, prompt: Prompt, edges: list[Edge] | None = None) -> np.ndarray:
    with naive_weights(twin, edges or []) as kept:
        twin(torch.tensor([prompt.ids]), use_cache=False)
    layers = [kept[layer] for layer in sorted(kept)]
    return np.stack([along(layers, prompt.positions(*q.names), prompt.positions(*k.names)) for q, k in EDGES])


@pytest.mark.parametrize("batch_tokens", [50, 100_000])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features_equal_a_softmax_written_out(architecture: str, batch_tokens: int) -> None:
    """T4, T16, T23, T24, T25, T26: padded and alone, windows, caps, shared keys, and a head_dim of its own."""
    model = tiny(architecture, dtype=torch.float64)
    prompts = ragged()
    found = attention(Engine(model, word_tokenizer(), batch_tokens=batch_tokens), prompts, EDGES)
    twin = eager_twin(model)
    # Gemma 2 runs eagerly, and transformers' eager softmax is float32 in a float64 model too.
    tolerance = 1e-6 if architecture == "gemma2" else 1e-9
    assert found.dtype == np.float64
    for prompt, one in zip(prompts, found, strict=True):
        np.testing.assert_allclose(one, by_loop(twin, prompt), atol=tolerance, rtol=0)
    assert len(set(found[:, 0].flatten())) > 0.5 * found[:, 0].size  # heads differ, or the comparison is empty


@pytest.mark.parametrize(("architecture", "implementation"), BOTH)
def test_features_equal_the_models_own_weights(architecture: str, implementation: str) -> None:
    """Float32, and weights that the model itself hands out when it runs eagerly: alone, and in a padded batch."""
    model = tiny(architecture, attn_implementation=implementation)
    prompts = ragged(seed=1)
    twin = eager_twin(model)
    expected = np.array([
        [along(own_weights(twin, prompt.ids), prompt.positions(*q.names), prompt.positions(*k.names)) for q, k in EDGES]
        for prompt in prompts
    ])  # fmt: skip
    alone = attention(Engine(model, word_tokenizer(), batch_tokens=1), prompts, EDGES)
    assert alone.dtype == np.float32
    # Another kernel, or a matrix of another height, rounds otherwise in the layers below.
    np.testing.assert_allclose(alone, expected, atol=1e-6 if implementation == "eager" else 1e-5, rtol=0)
    together = attention(Engine(model, word_tokenizer()), prompts, EDGES)
    np.testing.assert_allclose(together, expected, atol=1e-5, rtol=0)


def test_the_window_and_the_soft_cap_bite() -> None:
    """Else the oracle's agreement would say nothing of them."""
    far = Prompt(tuple(range(20, 40)), {"item": (2, 3), "identity": (18,), "last": (19,)})
    seen = {}
    for name in ("gemma2", "mistral"):
        seen[name] = attention(Engine(tiny(name), word_tokenizer()), [far], EDGES)[0, 0].reshape(-1, 4)
    assert not seen["mistral"].any()  # every layer slides
    assert [bool(layer.any()) for layer in seen["gemma2"]] == [False, True, False, True]
    capped, free = (
        attention(Engine(tiny("gemma2", attn_logit_softcapping=cap), word_tokenizer()), [far], EDGES)
        for cap in (5.0, 1e6)
    )
    assert np.abs(capped - free).max() > 0.01


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_under_a_plan_the_weights_are_those_that_act(architecture: str) -> None:
    model = tiny(architecture, dtype=torch.float64)
    prompts = ragged(seed=2)
    scaled = [
        EdgeScale(layer=0, head=1, queries=span("identity"), keys=span("item"), alpha=0.0),
        EdgeScale(layer=2, head=3, queries=span("last"), keys=span("item"), alpha=2.5),
    ]
    plans = [Plan(tuple(scaled)), Plan()] * 2
    found = attention(Engine(model, word_tokenizer(), batch_tokens=80), prompts, EDGES, plans=plans)
    twin = eager_twin(model)
    for prompt, plan, one in zip(prompts, plans, found, strict=True):
        edges = [
            Edge(e.layer, 0, e.head, prompt.positions(*e.queries.names), prompt.positions(*e.keys.names), e.alpha)
            for e in plan
        ]
        tolerance = 1e-6 if architecture == "gemma2" else 1e-9
        np.testing.assert_allclose(one, by_loop(twin, prompt, edges), atol=tolerance, rtol=0)
        if len(plan):
            assert one[0, 1] == 0.0  # L0H1's own edge is cut


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("architecture", "implementation"), BOTH)
def test_a_tap_honours_every_kind_of_mask(architecture: str, implementation: str, side: str) -> None:
    """T4, T19: a batch padded by its caller, with a boolean mask (SDPA) or an additive one (eager)."""
    model = tiny(architecture, attn_implementation=implementation)
    geometry = Geometry.of(model)
    prompts = ragged(seed=3)
    inputs = padded(prompts, side)
    width = inputs["input_ids"].shape[1]
    pads = [width - len(prompt) if side == "left" else 0 for prompt in prompts]
    cells = [[(p.positions(*q.names), p.positions(*k.names)) for q, k in EDGES] for p in prompts]
    index = EdgeIndex.of(cells, width, torch.device("cpu"), pads)
    found, kinds = {}, set()

    def look(seen: Attended) -> None:
        kinds.add(None if seen.mask is None else seen.mask.dtype)
        found[len(found)] = features(seen, index)

    with torch.no_grad():
        taps = [tapped(model.get_submodule(layer.attention), look) for layer in geometry.layers]
        for tap in taps:
            tap.__enter__()
        model(**inputs, use_cache=False)
        for tap in taps:
            tap.__exit__(None, None, None)
    assert kinds == {torch.bool if implementation == "sdpa" else torch.float32}
    expected = attention(Engine(model, word_tokenizer(), batch_tokens=1), prompts, EDGES)
    np.testing.assert_allclose(torch.cat([found[i] for i in sorted(found)], dim=2).numpy(), expected, atol=2e-5)


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", dtype=torch.float64)
    plans = [Plan((EdgeScale(layer=1, head=2, queries=span("last"), keys=span("item"), alpha=0.0),))] * 4
    whole = attention(Engine(model, word_tokenizer()), ragged(), EDGES, plans=plans)
    monkeypatch.setattr("timonel.engine._taps._SLICE_ELEMENTS", 1)
    np.testing.assert_allclose(
        attention(Engine(model, word_tokenizer()), ragged(), EDGES, plans=plans), whole, atol=1e-14
    )


def test_a_tap_looks_and_leaves_nothing_behind() -> None:
    """Under a plan on the same module, inside one of its own, and when the body raises."""
    model = tiny("llama")
    module = model.model.layers[1].self_attn
    config, (prompt, *_) = module.config, ragged()
    ids = torch.tensor([prompt.ids])
    plan = Plan((EdgeScale(layer=1, head=0, queries=span("last"), keys=span("item"), alpha=3.0),))
    seen: list[Attended] = []
    with torch.no_grad():
        plain = model(ids).logits
        with attach(model, plan, prompts=[prompt]):
            steered = model(ids).logits
            with tapped(module, seen.append):  # type: ignore[arg-type]
                assert torch.equal(model(ids).logits, steered)
            assert torch.equal(model(ids).logits, steered)
        with tapped(module, seen.append):  # type: ignore[arg-type]
            with attach(model, plan, prompts=[prompt], check=False):
                assert torch.equal(model(ids).logits, steered)
            assert torch.equal(model(ids).logits, plain)
        with pytest.raises(KeyboardInterrupt), tapped(module, seen.append):  # type: ignore[arg-type]
            raise KeyboardInterrupt
        assert torch.equal(model(ids).logits, plain)
    assert [len(one.rewritten) for one in seen] == [1, 1, 0]
    assert module.config is config


def test_what_cannot_be_read_is_refused() -> None:
    engine = Engine(tiny("llama"), word_tokenizer())
    prompts = ragged()
    with pytest.raises(InputError, match="no edges"):
        attention(engine, prompts, [])
    with pytest.raises(InputError, match="span 'nowhere'"):
        attention(engine, prompts, [(span("nowhere"), span("item"))])
    with pytest.raises(InputError, match="reads position"):
        attention(engine, prompts, [(span("item"), span("last"))])
    with pytest.raises(InputError, match="two spans"):
        attention(engine, prompts, [("identity", "item")])  # type: ignore[list-item]
    with pytest.raises(InputError, match="vocabulary"):
        attention(engine, [Prompt((1, 999), {"a": (0,), "b": (1,)})], [(span("b"), span("a"))])
    with pytest.raises(InputError, match="1 plans for 4 prompts"):
        attention(engine, prompts, EDGES, plans=[Plan()])
    engine.model.train()
    with pytest.raises(InputError, match="training mode"):
        attention(engine, prompts, EDGES)
    assert attention(Engine(tiny("llama"), word_tokenizer()), [], EDGES).shape == (0, 3, 12)

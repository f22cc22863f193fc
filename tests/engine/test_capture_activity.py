"""Activity against hooks that keep everything and sums written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from oracles.captures import everything
from timonel.engine import Engine, Store
from timonel.engine.capture import Activity, activity
from timonel.errors import InputError, UnsupportedModel
from timonel.prompts import Prompt
from timonel.steer import ChannelScale, ChannelSet, Plan
from tiny import ARCHITECTURES, tiny, word_tokenizer

LENGTHS = (14, 5, 11, 9, 20, 7, 7)
GROUPS = ["ur", "en", "ur", "en", "en", "ur", "en"]
CHOICES = ["last", "mean", "all"]


def ragged(seed: int = 0) -> list[Prompt]:
    random = torch.Generator().manual_seed(seed)
    made = [Prompt(tuple(torch.randint(3, 200, (length,), generator=random).tolist())) for length in LENGTHS]
    # What comes after the prompt is no part of the input.
    return [*made[:-1], Prompt((*made[-1].ids, 9, 9), {"answer": (7, 8)})]


def samples(model: Any, prompt: Prompt, site: str, where: str) -> np.ndarray:
    """[m, l, n] of one prompt."""
    x = np.stack([layer.double().numpy() for layer in everything(model, prompt.ids[: prompt.answer_start])[site]], 1)
    return {"last": x[-1:], "mean": x.mean(axis=0, keepdims=True), "all": x}[where]


def naive(model: Any, prompts: list[Prompt], site: str, where: str) -> dict[str, np.ndarray]:
    each = [(label, samples(model, prompt, site, where)) for label, prompt in zip(GROUPS, prompts, strict=True)]
    return {label: np.concatenate([x for other, x in each if other == label]) for label in ("ur", "en")}


@pytest.mark.parametrize("where", CHOICES)
@pytest.mark.parametrize("site", ["down_proj", "act"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_activity_equals_sums_written_out(architecture: str, site: Any, where: Any) -> None:
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        model = tiny(architecture, dtype=dtype)
        engine = Engine(model, word_tokenizer(), batch_tokens=30)
        found = activity(engine, ragged(), GROUPS, site=site, where=where)
        assert found.groups == ("ur", "en")
        tolerance = max(tolerance, 1e-6) if architecture == "gemma2" else tolerance  # eager: a float32 softmax
        for g, x in enumerate(naive(model, ragged(), site, where).values()):
            scale = np.abs(x).max()
            assert found.n[g] == len(x)
            # A count may be off by one where the oracle's number is nothing but rounding.
            unsure = (np.abs(x) <= tolerance * scale).sum(axis=0)
            assert (np.abs(found.active[g] - (x > 0).sum(axis=0)) <= unsure).all()
            assert unsure.sum() < 0.05 * x.size  # the tails of a GELU are tiny
            np.testing.assert_allclose(found.total[g], x.sum(axis=0), atol=tolerance * scale * len(x), rtol=0)
            np.testing.assert_allclose(found.squares[g], (x**2).sum(axis=0), atol=tolerance * scale**2 * len(x), rtol=0)
            np.testing.assert_allclose(found.share[g], found.active[g] / len(x))
            np.testing.assert_allclose(found.mean[g], x.mean(axis=0), atol=tolerance * scale)
            np.testing.assert_allclose(found.variance[g], x.var(axis=0), atol=tolerance * scale**2)


def test_the_choices_differ() -> None:
    """Else agreeing with the oracle on one would be agreeing on all."""
    model = tiny("llama")
    found = [
        activity(Engine(model, word_tokenizer()), ragged(), GROUPS, site=site, where=where).share  # type: ignore[arg-type]
        for site in ("down_proj", "act")
        for where in CHOICES
    ]
    for i, one in enumerate(found):
        for other in found[:i]:
            assert np.abs(one - other).mean() > 0.02


@pytest.mark.parametrize("where", CHOICES)
def test_pads_never_count(where: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where what stands under a pad has overflowed."""
    model = tiny("llama", dtype=torch.float64)
    alone = activity(Engine(model, word_tokenizer(), batch_tokens=1), ragged(), GROUPS, where=where)
    lengths = sorted(LENGTHS[i] for i in range(7) if GROUPS[i] == "en")

    def spoil(module: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        x = args[0].clone()
        if len(x) == len(lengths):
            for row, length in enumerate(lengths):
                x[row, length:] = torch.inf
        return (x,)

    handle = model.model.layers[2].mlp.down_proj.register_forward_pre_hook(spoil)
    together = activity(Engine(model, word_tokenizer()), ragged(), GROUPS, where=where)
    handle.remove()
    for name in ("n", "active", "total", "squares"):
        np.testing.assert_allclose(getattr(together, name), getattr(alone, name), atol=1e-9)


def test_tokens_are_summed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama", dtype=torch.float64)
    whole = activity(Engine(model, word_tokenizer()), ragged(), GROUPS, where="all")
    monkeypatch.setattr("timonel.engine.activity._CPU_ROWS", 3)
    parts = activity(Engine(model, word_tokenizer()), ragged(), GROUPS, where="all")
    assert np.array_equal(parts.active, whole.active)
    np.testing.assert_allclose(parts.total, whole.total, atol=1e-12)


def test_activity_of_a_steered_model() -> None:
    """Read after the plan: what `down_proj` reads, and what the activation hands on."""
    model = tiny("qwen2", dtype=torch.float64)
    factors = np.ones(48)
    factors[5] = -2.0
    scale = Plan((ChannelScale(layer=1, site="down_proj", factors=factors),))
    fixed = Plan((ChannelSet(layer=1, site="act", channels=(7,), values=np.array([3.0])),))
    engine = Engine(model, word_tokenizer())
    plain = activity(engine, ragged(), GROUPS, where="all")
    steered = activity(engine, ragged(), GROUPS, where="all", plans=[scale] * 7)
    np.testing.assert_allclose(steered.total[:, 1, 5], -2 * plain.total[:, 1, 5], atol=1e-9)
    np.testing.assert_allclose(steered.total[:, :1], plain.total[:, :1], atol=1e-9)
    assert np.abs(steered.total[:, 2] - plain.total[:, 2]).max() > 1e-3
    written = activity(engine, ragged(), GROUPS, site="act", where="all", plans=[fixed] * 7)
    np.testing.assert_allclose(written.total[:, 1, 7], 3.0 * written.n)


def test_one_record_a_group_however_many_inputs() -> None:
    store = Store()
    engine = Engine(tiny("llama", dtype=torch.float64), word_tokenizer(), store=store, batch_tokens=25)
    prompts = [prompt for seed in range(5) for prompt in ragged(seed)]
    once = activity(engine, prompts, GROUPS * 5)
    assert len(store) == 2
    forwards = store.forwards
    assert forwards > 10
    again = activity(engine, prompts, GROUPS * 5)
    assert store.forwards == forwards
    assert _same(once, again)
    # An equal input counts as often as it is given.
    twice = activity(engine, prompts * 2, GROUPS * 10)
    np.testing.assert_allclose(twice.total, 2 * once.total, rtol=0, atol=1e-9)
    assert np.array_equal(twice.n, 2 * once.n)
    # The order of the inputs is no part of the question.
    forwards = store.forwards
    turned = activity(engine, prompts[::-1], (GROUPS * 5)[::-1])
    assert turned.groups == ("en", "ur")
    assert store.forwards == forwards
    assert np.array_equal(turned.total[::-1], once.total)
    # Two labels for the same inputs.
    same = activity(engine, prompts * 2, ["x"] * 35 + ["y"] * 35)
    assert np.array_equal(same.total[0], same.total[1])
    np.testing.assert_allclose(same.total[0], once.total.sum(axis=0), rtol=0, atol=1e-9)


def test_what_cannot_be_summed_is_refused() -> None:
    engine = Engine(tiny("llama"), word_tokenizer())
    with pytest.raises(InputError, match="2 group labels for 7 prompts"):
        activity(engine, ragged(), ["a", "b"])
    with pytest.raises(InputError, match="site is down_proj or act"):
        activity(engine, ragged(), GROUPS, site="o_proj")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="last, mean or all"):
        activity(engine, ragged(), GROUPS, where="first")  # type: ignore[arg-type]
    empty = activity(engine, [], [])
    assert empty.groups == ()
    assert empty.total.shape == (0, 3, 48)
    engine.geometry = replace(
        engine.geometry, layers=(*engine.geometry.layers[:2], replace(engine.geometry.layers[2], neurons=49))
    )
    with pytest.raises(UnsupportedModel, match=r"\[48, 49\] neurons"):
        activity(engine, ragged(), GROUPS)


def _same(one: Activity, other: Activity) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("n", "active", "total", "squares"))

"""Residuals against hooks that keep everything, one prompt at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracles.captures import everything
from timonel.engine import Engine, Store
from timonel.engine.capture import residual_batches, residuals
from timonel.errors import InputError
from timonel.prompts import Prompt
from timonel.steer import PROMPT, EdgeScale, Plan, ResidualAdd, attach, span
from tiny import ARCHITECTURES, tiny, word_tokenizer

LENGTHS = (14, 5, 11, 9, 20)


def ragged() -> list[Prompt]:
    random = torch.Generator().manual_seed(0)
    made = []
    for length in LENGTHS:
        ids = tuple(torch.randint(3, 200, (length,), generator=random).tolist())
        made.append(Prompt(ids, {"item": (1, 2), "answer": (length - 2, length - 1), "end": (length - 1,)}))
    return made


def naive(model: Any, prompt: Prompt, layers: list[int], positions: tuple[int, ...]) -> np.ndarray:
    kept = everything(model, prompt.ids)["layer"]
    return np.stack([sum(kept[layer][at].numpy() for at in positions) / len(positions) for layer in layers])


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_residuals_equal_hooks(architecture: str, batch_tokens: int) -> None:
    layers = [2, 0]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        model = tiny(architecture, dtype=dtype)
        engine = Engine(model, word_tokenizer(), batch_tokens=batch_tokens)
        tolerance = max(tolerance, 1e-6) if architecture == "gemma2" else tolerance  # eager: a float32 softmax
        for where in ("last", span("item"), span("end", "item")):
            found = residuals(engine, ragged(), layers, where)
            assert found.dtype == (np.float64 if dtype == torch.float64 else np.float32)
            for prompt, one in zip(ragged(), found, strict=True):
                # The last prompt token is the one before the answer.
                positions = (len(prompt) - 3,) if where == "last" else prompt.positions(*where.names)
                expected = naive(model, prompt, layers, positions)
                np.testing.assert_allclose(one, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


def test_each_prompt_under_its_own_plan() -> None:
    model, prompts = tiny("gemma3", dtype=torch.float64), ragged()
    vector = np.linspace(-2, 3, 32)
    plans = [
        Plan(),
        Plan((ResidualAdd(layer=1, vector=vector, scale=0.7),)),
        Plan((EdgeScale(layer=2, head=2, queries=span("end"), keys=span("item"), alpha=4.0),)),
        Plan((ResidualAdd(layer=0, vector=vector, scope=PROMPT),)),
        Plan(),
    ]
    found = residuals(Engine(model, word_tokenizer()), prompts, [1, 3], span("end"), plans=plans)
    for prompt, plan, one in zip(prompts, plans, found, strict=True):
        with attach(model, plan, prompts=[prompt], check=False):
            expected = naive(model, prompt, [1, 3], (len(prompt) - 1,))
        np.testing.assert_allclose(one, expected, atol=1e-9)
    plain = residuals(Engine(model, word_tokenizer()), prompts, [1, 3], span("end"))
    changed = np.abs(plain - found).max(axis=(1, 2)) > 1e-3
    assert changed.tolist() == [False, True, True, True, False]
    np.testing.assert_allclose((found - plain)[1, 0], 0.7 * vector, atol=1e-9)  # read after what was added


def test_batches_hold_each_prompt_once_and_equal_ones_run_once() -> None:
    store = Store()
    prompts = [*ragged(), *ragged()]
    engine = Engine(tiny("llama"), word_tokenizer(), store=store, batch_tokens=25)
    batches = list(residual_batches(engine, prompts, [1]))
    assert sorted(number for batch in batches for number in batch.prompts) == list(range(10))
    assert len(batches) == store.forwards > 2
    assert len(store) == 5
    stacked = residuals(engine, prompts, [1])
    assert store.forwards == len(batches)  # kept
    for batch in batches:
        assert np.array_equal(stacked[list(batch.prompts)], batch.values)
    assert np.array_equal(stacked[:5], stacked[5:])


def test_a_caller_may_use_the_model_between_batches() -> None:
    model = tiny("llama")
    engine = Engine(model, word_tokenizer(), batch_tokens=25)
    ids = torch.tensor([[1, 20, 30]])
    plain = model(ids).logits
    plan = [Plan((ResidualAdd(layer=0, vector=np.ones(32)),))] * len(LENGTHS)
    for _ in residual_batches(engine, ragged(), [0], plans=plan):
        assert torch.equal(model(ids).logits, plain)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_what_cannot_be_read_is_refused_by_the_call() -> None:
    engine = Engine(tiny("llama"), word_tokenizer())
    for layers, where, words in (
        ([3], "last", "layers are 0 to 2"),
        ([], "last", "no layers"),
        ([0], "first", 'at "last" or at a span'),
        ([0], span("nowhere"), "'nowhere'"),
    ):
        with pytest.raises(InputError, match=words):
            residual_batches(engine, ragged(), layers, where)  # type: ignore[arg-type]

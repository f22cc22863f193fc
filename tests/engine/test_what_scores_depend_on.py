"""A kept score is never handed out for another model, another config, or a model that is not plainly itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from timonel.engine import Engine, Reading, Request, Store, score
from timonel.errors import InputError
from timonel.prompts import Prompt
from timonel.steer import Plan, ResidualAdd, attach
from tiny import tiny, word_tokenizer

LONG = [Request(Prompt(tuple(range(20, 60))), ((Reading(39, (30,)),),))]


def fresh(model: Any) -> list[tuple[float, ...]]:
    return Engine(model, word_tokenizer()).score(LONG)


@pytest.mark.parametrize(
    ("architecture", "setting"),
    [
        ("mistral", {"sliding_window": 4}),
        ("gemma2", {"attn_logit_softcapping": 50.0}),
        ("llama", {"rms_norm_eps": 0.5}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}),
    ],
)
def test_the_config_is_in_the_key(architecture: str, setting: dict[str, Any]) -> None:
    """The fingerprint knows weights alone; the same weights under another config are another model."""
    store = Store()
    Engine(tiny(architecture), word_tokenizer(), store=store).score(LONG)
    other = tiny(architecture, **setting)
    assert Engine(other, word_tokenizer(), store=store).score(LONG) == fresh(other)
    assert fresh(other) != fresh(tiny(architecture))


def test_weights_changed_after_the_engine_was_made() -> None:
    model = tiny("llama")
    engine = Engine(model, word_tokenizer())
    before = engine.score(LONG)
    model.model.layers[0].mlp.down_proj.weight.data.mul_(0)
    assert engine.score(LONG) == fresh(model) != before


def test_a_model_that_is_not_plainly_itself_is_refused() -> None:
    model = tiny("llama")
    engine = Engine(model, word_tokenizer())
    with (
        attach(model, Plan((ResidualAdd(layer=1, vector=np.ones(32)),))),
        pytest.raises(InputError, match="attached to this model"),
    ):
        engine.score(LONG)
    with (
        attach(model, Plan((ResidualAdd(layer=1, vector=np.ones(32)),))),
        pytest.raises(InputError, match="attached to this model"),
    ):
        engine.rate(LONG)  # a trial keeps its scores too
    model.train()
    with pytest.raises(InputError, match="training mode"):
        engine.score(LONG)
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        assert engine.score(LONG) == fresh(model)


def test_requests_that_mean_nothing_are_refused() -> None:
    model, tokenizer = tiny("llama"), word_tokenizer()
    prompt = Prompt((1, 20, 21, 22))
    for answers in ((), ((),), ((Reading(3, ()),),), ((Reading(3, (5, 5)),),), ((Reading(9, (5,)),),)):
        with pytest.raises(InputError):
            Request(prompt, answers)
    for request in (Request(prompt, ((Reading(3, (9999,)),),)), Request(Prompt((1, 9999)), ((Reading(1, (5,)),),))):
        with pytest.raises(InputError, match="vocabulary"):
            Engine(model, tokenizer).score([request])
    with pytest.raises(InputError, match="made from ids"):
        score(model, tokenizer, [prompt], answers=[" tea"])
    with pytest.raises(InputError, match="a list is needed"):
        score(model, tokenizer, [prompt], answers=" tea")
    with pytest.raises(InputError, match="another model"):
        score(model, tokenizer, [prompt], engine=Engine(tiny("llama", seed=5), tokenizer))
    numbers = Prompt(tuple(np.array([1, 5, 6])))  # NumPy's integers are as good as Python's
    assert Engine(model, tokenizer).score([Request(numbers, ((Reading(2, (5,)),),))])

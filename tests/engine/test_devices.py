"""Models on which a library has hung its own forwards, as `device_map="auto"` does: same scores, left as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from accelerate import dispatch_model

from oracles.plain_loop import plain_loop
from timonel.engine import Engine, Request, choice
from timonel.prompts import Prompt
from timonel.steer import ChannelScale, EdgeScale, Plan, span
from tiny import tiny, word_tokenizer


def requests(model: Any) -> list[Request]:
    cut = Plan((EdgeScale(layer=1, head=2, queries=span("identity"), keys=span("item"), alpha=0.0),))
    scale = Plan((ChannelScale(layer=2, site="o_proj", factors=[1.5] * 32),))
    made = []
    for number in range(6):
        prompt = Prompt((1, 5, 6, 7, 20 + number, 8, 9), {"item": (2,), "identity": (4,)})
        made += [Request(prompt, (choice(prompt, (11, 12)),), plan) for plan in (Plan(), cut, scale)]
    return made


def test_t31_dispatched_models_resume_too_and_keep_their_hooks() -> None:
    """T31: accelerate replaces each module's forward; resuming puts another in its place and gives it back."""
    model = tiny("llama", dtype=torch.float64)
    asked = requests(model)
    expected = [plain_loop(model, one) for one in asked]
    dispatched: Any = dispatch_model(copy.deepcopy(model), {"": "cpu"}, force_hooks=True)
    before = {name: module.__dict__.get("forward") for name, module in dispatched.named_modules()}
    assert any(before.values())
    engine = Engine(dispatched, word_tokenizer())
    assert set(engine.workload(asked).resume_at) == {1, 2}
    for found, right in zip(engine.score(asked), expected, strict=True):
        assert found == pytest.approx(right, abs=1e-9)
    assert {name: module.__dict__.get("forward") for name, module in dispatched.named_modules()} == before


def test_nothing_is_left_behind_when_a_pass_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    asked = requests(model)
    engine = Engine(model, word_tokenizer())

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(model.model.layers[2].mlp), "forward", fails)
    with pytest.raises(KeyboardInterrupt):
        engine.score(asked)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())

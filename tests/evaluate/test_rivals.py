"""The rivals: what they put before a question, add to a stream, and name in a prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from timonel.engine import Engine
from timonel.errors import InputError
from timonel.evaluate.culture import culture_task
from timonel.evaluate.rivals import (
    CONTEXT_PREFIX,
    contrast_prompts,
    diff_mean,
    diff_mean_plan,
    edge_plan,
    head_plan,
    prompt_rival,
)
from timonel.models import Geometry
from timonel.steer import PROMPT, ResidualAdd
from tiny import tiny, word_tokenizer


def test_diff_mean_is_the_difference_of_two_naive_means() -> None:
    model, tokenizer = tiny("llama"), word_tokenizer(chat=True)
    task = culture_task(limit=6)
    scenarios = sorted({question.scenario for question in task.questions})[:4]
    toward, away = contrast_prompts(task, scenarios, tokenizer, "instruct")
    asked = [question for question in task.questions if question.scenario in scenarios]
    assert len(toward) == sum(question.half == "different" for question in asked)
    assert len(toward) + len(away) == len(asked)
    assert all("<|user|>" in prompt.text for prompt in (*toward, *away))
    means = []
    for prompts in (toward, away):
        hidden = [
            model(torch.tensor([prompt.ids]), output_hidden_states=True).hidden_states[2][0, -1].detach().numpy()
            for prompt in prompts
        ]
        means.append(np.mean(hidden, axis=0))
    plan = diff_mean_plan(Engine(model, tokenizer), toward, away, layer=1, scale=2.0, scope=PROMPT)
    (one,) = plan
    assert isinstance(one, ResidualAdd)
    assert (one.layer, one.scale, one.scope) == (1, 2.0, PROMPT)
    # hidden_states[2] is the stream after layer 1
    np.testing.assert_allclose(one.vector.array, means[0] - means[1], atol=1e-4)
    assert np.abs(one.vector.array).max() > 0.01


def test_diff_mean_of_arrays() -> None:
    a, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 1.0]])
    np.testing.assert_array_equal(diff_mean(a, b), [1.0, 2.0])
    np.testing.assert_array_equal(diff_mean(a, b), -diff_mean(b, a))
    np.testing.assert_array_equal(diff_mean(a, a), [0.0, 0.0])
    for one, other in ((a, b[:, :1]), (a[0], b[0]), (a, b[:0])):
        with pytest.raises(InputError, match="hidden"):
            diff_mean(one, other)


def test_plans_of_heads_bind_to_the_task_in_both_halves() -> None:
    tokenizer, heads = word_tokenizer(), [(0, 1), (2, 3)]
    task = culture_task(limit=2)
    for question, prompt in zip(task.questions, task.prompts(tokenizer, "base"), strict=True):
        for whose in ("related", "other"):
            (cells,) = edge_plan(heads, 3.0, whose=whose).on(prompt).edges  # type: ignore[arg-type]
            assert (cells.heads, cells.alpha) == (tuple(heads), 3.0)
            assert (cells.queries, cells.keys) == (prompt.spans[whose], prompt.spans["item"])
        assert prompt.spans["related"] != prompt.spans["other"]
        assert question.half in ("different", "equal")
    geometry = Geometry.of(tiny("llama"))
    assert [(one.layer, one.site) for one in head_plan(geometry, heads, 3.0)] == [(0, "o_proj"), (2, "o_proj")]  # type: ignore[union-attr]


def test_the_prompt_rival() -> None:
    condition, tokenizer = prompt_rival(), word_tokenizer()
    assert len(condition.plan) == 0
    task = culture_task(limit=3)
    plain, rival = (task.prompts(tokenizer, "base", prefix) for prefix in ("", condition.prefix))
    for one, other in zip(plain, rival, strict=True):
        assert other.text == CONTEXT_PREFIX + one.text
        moved = len(other) - len(one)
        assert {name: tuple(at + moved for at in where) for name, where in one.spans.items()} == dict(other.spans)

"""The fluency guard against a plain forward pass, token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import timonel
from timonel.engine import Engine
from timonel.errors import InputError
from timonel.evaluate.fluency import LIMIT, anywhere, fluency, neutral_texts
from timonel.models import Geometry
from timonel.prompts import render
from timonel.steer import ALL, GENERATED, PROMPT, ChannelScale, EdgeScale, Plan, ResidualAdd, attach, span
from tiny import tiny, word_tokenizer

TEXTS = ("the tea is good. the rice is not.", "who was it? no. a red river and a tree.", "one two. three four five")


def naive(model: object, tokenizer: object, plan: Plan) -> list[np.ndarray]:
    """Log-probabilities of the continuation of each text, the whole text in one pass with the plan attached."""
    found = []
    for text in TEXTS:
        first = text.index(". ") + 1
        prompt = render(tokenizer, text[:first]).followed_by(tokenizer, text[first:])  # type: ignore[arg-type]
        assert tokenizer.decode(prompt.ids[1:]) == text  # type: ignore[attr-defined]
        with torch.no_grad(), attach(model, plan, prompts=[prompt], check=False):  # type: ignore[arg-type]
            logits = model(torch.tensor([prompt.ids]), use_cache=False).logits[0]  # type: ignore[operator]
        log_p = torch.log_softmax(logits.double(), dim=-1)
        start = prompt.answer_start
        found.append(np.array([float(log_p[at - 1, prompt.ids[at]]) for at in range(start, len(prompt))]))
        assert start == len(render(tokenizer, text[:first]))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("scope", [ALL, PROMPT, GENERATED])
def test_ratio_is_that_of_a_plain_loop(scope: object) -> None:
    model, tokenizer = tiny("llama", dtype=torch.float64), word_tokenizer()
    vector = np.random.default_rng(0).normal(size=Geometry.of(model).hidden)
    plan = Plan((ResidualAdd(layer=1, vector=vector, scale=0.3, scope=scope),))  # type: ignore[arg-type]
    found = fluency(Engine(model, tokenizer), tokenizer, plan, TEXTS, draws=99)
    old, new = (np.concatenate(naive(model, tokenizer, one)) for one in (Plan(), plan))
    assert found.baseline.value == pytest.approx(math.exp(-old.mean()), rel=1e-6)
    assert found.steered.value == pytest.approx(math.exp(-new.mean()), rel=1e-6)
    assert found.ratio.value == pytest.approx(found.steered.value / found.baseline.value, rel=1e-9)
    assert abs(math.log(found.ratio.value)) > 1e-3  # each scope shows
    assert found.ratio.low < found.ratio.value < found.ratio.high
    assert (found.ratio.n, found.ratio.clusters, found.acts) == (len(old), 3, True)


def test_what_needs_a_span_is_left_out() -> None:
    model, tokenizer = tiny("qwen2"), word_tokenizer()
    edge = EdgeScale(layer=0, head=0, queries=span("related"), keys=span("item"), alpha=0.0)
    head = ChannelScale.head(Geometry.of(model), layer=1, head=1, alpha=0.0)
    near = ChannelScale.head(Geometry.of(model), layer=1, head=2, alpha=0.0, scope=span("item"))
    engine = Engine(model, tokenizer)
    none = fluency(engine, tokenizer, Plan((edge, near)), TEXTS, draws=99)
    assert (none.ratio.value, none.ratio.low, none.ratio.high, none.acts) == (1.0, 1.0, 1.0, False)
    assert none.holds()
    assert "no part of the plan acts" in none.words("steered")
    mixed, alone = (fluency(engine, tokenizer, Plan(some), TEXTS, draws=99) for some in ((edge, head, near), (head,)))
    assert mixed == alone
    assert mixed.acts
    assert tuple(anywhere(Plan((edge, head, near)))) == (head,)


def test_the_guard() -> None:
    model, tokenizer = tiny("llama"), word_tokenizer()
    engine = Engine(model, tokenizer)
    noise = np.random.default_rng(1).normal(size=Geometry.of(model).hidden)
    loud = fluency(engine, tokenizer, Plan((ResidualAdd(layer=0, vector=noise, scale=9.0),)), TEXTS)
    assert loud.ratio.high > LIMIT
    assert not loud.holds()
    assert loud.holds(limit=loud.ratio.high)
    assert not loud.holds(limit=(loud.ratio.value + loud.ratio.high) / 2)
    assert "does not hold" in loud.words("steered")
    table = loud.table("steered")
    assert table["holds"].tolist() == [False] * 3
    assert table["quantity"].tolist() == ["perplexity, baseline", "perplexity, steered", "ratio"]


def test_the_texts() -> None:
    texts = neutral_texts()
    assert len(texts) == 12
    assert len(set(texts)) == 12
    for text in texts:
        assert 40 <= len(text.split()) <= 70
        assert "\n" not in text
        assert text.isascii()


def test_refusals() -> None:
    engine, tokenizer = Engine(tiny("llama"), word_tokenizer()), word_tokenizer()
    with pytest.raises(InputError, match="needs two at least"):
        fluency(engine, tokenizer, Plan(), TEXTS[:1])
    with pytest.raises(InputError, match="is one sentence"):
        fluency(engine, tokenizer, Plan(), ["the tea is good.", TEXTS[0]])


@pytest.mark.real
def test_a_real_model_reads_our_texts_as_english() -> None:
    model, tokenizer = timonel.load("smollm2-135m")
    engine = Engine(model, tokenizer)
    found = fluency(engine, tokenizer, Plan())
    shuffled = [" ".join(np.random.default_rng(0).permutation(text.rstrip(".").split())) for text in neutral_texts()]
    noise = fluency(engine, tokenizer, Plan(), [f"{text[:20]}. {text[20:]}" for text in shuffled])
    assert found.baseline.high < noise.baseline.low

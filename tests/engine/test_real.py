"""Real models: the engine against a plain loop of the unmodified model, plain and cut, in both forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oracles.attention import Edge, eager_twin, naive_edges
from timonel.binding import Cut, Form
from timonel.binding.score import contrast_requests
from timonel.binding.sources import read_pairs
from timonel.engine import Engine, Request
from timonel.models import load

pytestmark = pytest.mark.real


def plain_loop(model: Any, request: Request) -> list[float]:
    """One prompt, all logits, the definition; a plan is played by the naive attention on an eager model."""
    prompt = request.prompt
    edges = [
        Edge(one.layer, 0, one.head, prompt.positions(*one.queries.names), prompt.positions(*one.keys.names), one.alpha)
        for one in request.plan
    ]
    with torch.no_grad(), naive_edges(model, edges, own=True):
        logits = model(torch.tensor([prompt.ids]), use_cache=False).logits[0]
    log_p = torch.log_softmax(logits.double(), dim=-1)
    return [
        sum(float(torch.logsumexp(log_p[at, list(tokens)], 0)) for at, tokens in answer) for answer in request.answers
    ]


@pytest.mark.parametrize(
    ("name", "form", "wrap"),
    [
        ("smollm2-135m", "cloze", "instruct"),
        ("smollm2-135m", "letters", "instruct"),
        pytest.param("gemma3-270m", "cloze", "base", marks=pytest.mark.slow),
    ],
)
def test_scores_equal_a_plain_loop(name: str, form: Any, wrap: Any) -> None:
    """2e-4 in float32; heads in the first, a middle and the last layer, cut and amplified."""
    model, tokenizer = load(name)
    engine = Engine(model, tokenizer)
    asked = Form(tokenizer, form, wrap)
    pairs = read_pairs("culture").pairs[:40:30]
    last = engine.geometry.n_layers - 1
    heads = ((0, 1), (last // 3, 2), (last, 3))
    requests = [
        request
        for cut in (None, Cut("related", heads), Cut("all", heads, 2.0))
        for request in contrast_requests(asked, pairs, "S", cut)
    ]
    requests = list(dict.fromkeys(requests))
    found = engine.score(requests)
    twin = eager_twin(model)
    plain = {}
    moved = 0.0
    for request, answers in zip(requests, found, strict=True):
        expected = plain_loop(twin, request)
        assert answers == pytest.approx(expected, abs=2e-4, rel=0)
        key = request.prompt.ids
        moved = max([moved, *(abs(a - b) for a, b in zip(answers, plain.setdefault(key, answers), strict=True))])
    assert moved > 1e-3  # some cut did something

"""The engine against a plain loop of the unmodified model: one prompt at a time, the whole prompt, all logits."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from oracles.attention import Edge, eager_twin, naive_edges
from timonel.engine import Engine, Request, choice, continuation
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, span
from tiny import ARCHITECTURES, tiny, word_tokenizer


def plain_loop(model: Any, request: Request, twin: Any = None) -> list[float]:
    """Scores by the definition; a plan is played by the naive attention."""
    prompt = request.prompt
    edges = [
        Edge(
            one.layer,
            0,
            one.head,
            prompt.positions(*one.queries.names),
            prompt.positions(*one.keys.names),
            one.alpha,
        )
        for one in request.plan
    ]
    with torch.no_grad():
        if edges:
            own = model.config._attn_implementation == "eager"
            twin = twin or eager_twin(model)
            with naive_edges(twin, edges, own=own):
                logits = twin(torch.tensor([prompt.ids]), use_cache=False).logits[0]
        else:
            logits = model(torch.tensor([prompt.ids]), use_cache=False).logits[0]
    log_p = torch.log_softmax(logits.double(), dim=-1)
    return [
        sum(float(torch.logsumexp(log_p[reading.position, list(reading.tokens)], 0)) for reading in answer)
        for answer in request.answers
    ]


def random_requests(seed: int, count: int, layers: int) -> list[Request]:
    """Prompts that share prefixes of all lengths, in both forms, with and without edges."""
    draw = random.Random(seed)
    stems = [[1] + [draw.randrange(3, 200) for _ in range(draw.randrange(6, 20))] for _ in range(3)]
    requests = []
    for _ in range(count):
        stem = draw.choice(stems)
        shared = draw.randrange(5, len(stem) + 1)
        tail = [draw.randrange(3, 200) for _ in range(draw.randrange(3, 9))]
        ids = tuple(stem[:shared] + tail)
        answer = tuple(range(len(ids) - draw.randrange(1, 4), len(ids)))
        identity = tuple(range(shared, shared + draw.randrange(1, 3)))
        prompt = Prompt(ids, {"item": (2, 3), "identity": identity, "answer": answer})
        plan = Plan()
        if draw.random() < 0.6:
            heads = {(draw.randrange(layers), draw.randrange(4)) for _ in range(draw.randrange(1, 4))}
            plan = Plan(
                tuple(
                    EdgeScale(
                        layer=a,
                        head=b,
                        queries=span("identity"),
                        keys=span("item"),
                        alpha=draw.choice([0, 0.5, 2]),
                    )
                    for a, b in sorted(heads)
                )
            )
        answers = (choice(prompt, (5, 6, 7)), choice(prompt, (8,))) if draw.random() < 0.5 else (continuation(prompt),)
        requests.append(Request(prompt, answers, plan))
        if len(plan) and draw.random() < 0.5:
            requests.append(Request(prompt, answers))  # the same tokens unsteered: they part at the plan's first row
    return requests[:count]


@pytest.mark.parametrize("batch_tokens", [60, 100_000])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_scores_equal_a_plain_loop(architecture: str, batch_tokens: int) -> None:
    model = tiny(architecture, dtype=torch.float64)
    requests = random_requests(batch_tokens, 14, layers=3)
    twin = eager_twin(model)
    engine = Engine(model, word_tokenizer(), batch_tokens=batch_tokens)
    # These tails are so short that one pass from layer 0 would be cheaper; here each layer's rows resume there.
    engine._shape = replace(engine._shape, overhead=0)
    found = engine.score(requests)
    # Gemma 2 runs eagerly, and transformers' eager softmax is float32 in a float64 model too.
    tolerance = 1e-6 if architecture == "gemma2" else 1e-9
    for request, answers in zip(requests, found, strict=True):
        assert answers == pytest.approx(plain_loop(model, request, twin), abs=tolerance, rel=0)


def test_prefixes_are_shared_and_equal_requests_run_once() -> None:
    model = tiny("llama")
    requests = random_requests(3, 30, layers=3)
    engine = Engine(model, word_tokenizer())
    load = engine.workload([*requests, *requests])
    assert load.requests == 60
    assert load.distinct <= 30
    assert load.tokens < 0.6 * load.plain_tokens


def test_float32_agrees_with_float64() -> None:
    model, exact = tiny("llama"), tiny("llama", dtype=torch.float64)
    requests = random_requests(5, 12, layers=3)
    single, double = (
        Engine(model, word_tokenizer()).score(requests),
        Engine(exact, word_tokenizer()).score(requests),
    )
    for one, two in zip(single, double, strict=True):
        assert one == pytest.approx(two, abs=2e-4)


def test_the_model_is_left_as_it_was() -> None:
    """T13, T15."""
    model = tiny("gemma3").train()
    before = {name: (tensor.clone(), tensor.device) for name, tensor in model.state_dict().items()}
    config = model.config
    requests = random_requests(7, 6, layers=4)
    model.eval()
    Engine(model, word_tokenizer()).score(requests)
    assert all(torch.equal(tensor, before[name][0]) for name, tensor in model.state_dict().items())
    assert model.config is config
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())

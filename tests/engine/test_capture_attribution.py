"""Slopes against finite differences in alpha, played by the very edges that they predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracles.captures import exact, exact_eager
from timonel.engine import Engine, Reading, Request, Store, choice, continuation
from timonel.engine.capture import attribution, score_slope
from timonel.errors import InputError
from timonel.models import Geometry
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, ResidualAdd, attach, span
from tiny import ARCHITECTURES, tiny, word_tokenizer

EDGES = [(span("identity"), span("item")), (span("last"), span("identity", "item"))]


def requests() -> list[Request]:
    """Of several lengths and numbers of answers, one of them a continuation."""
    random = torch.Generator().manual_seed(4)
    made = []
    for length, answers in ((14, 3), (9, 1), (11, 2)):
        ids = tuple(torch.randint(3, 200, (length,), generator=random).tolist())
        spans = {"item": (2, 3), "identity": (5, 6), "last": (length - 1,), "answer": (length - 2, length - 1)}
        prompt = Prompt(ids, spans)
        listed = [choice(prompt, (10, 11)), continuation(prompt), (Reading(length - 2, (30,)),)]
        made.append(Request(prompt, tuple(listed[:answers])))
    return made


def log_p(model: Any, request: Request, plan: Plan) -> np.ndarray:
    with torch.no_grad(), attach(model, plan, prompts=[request.prompt], check=False):
        logits = model(torch.tensor([request.prompt.ids]), use_cache=False).logits[0]
    wide = torch.log_softmax(logits.double(), dim=-1)
    return np.array(
        [
            sum(float(torch.logsumexp(wide[position, list(tokens)], 0)) for position, tokens in answer)
            for answer in request.answers
        ]
    )


def differences(model: Any, request: Request, edge: Any, step: float, around: Plan | None = None) -> np.ndarray:
    """[a, H] by central differences."""
    columns = []
    for layer, head in Geometry.of(model).heads():
        two = [
            Plan(
                (
                    *(around or ()),
                    EdgeScale(layer=layer, head=head, queries=edge[0], keys=edge[1], alpha=1 + sign * step),
                )
            )
            for sign in (1, -1)
        ]
        up, down = (log_p(model, request, plan) for plan in two)
        columns.append((up - down) / (2 * step))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_slopes_equal_finite_differences(architecture: str) -> None:
    model = exact(tiny(architecture, dtype=torch.float64))
    with exact_eager(model):
        found = attribution(Engine(model, word_tokenizer()), requests(), EDGES)
        for request, one in zip(requests(), found, strict=True):
            np.testing.assert_allclose(one.log_p, log_p(model, request, Plan()), atol=1e-9)
            for edge, slope in zip(EDGES, one.slope, strict=True):
                expected = differences(model, request, edge, 1e-4)
                assert np.abs(expected).max() > 0.01
                np.testing.assert_allclose(slope, expected, atol=1e-6 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_in_float32_under_either_kernel(implementation: str) -> None:
    exact = attribution(Engine(tiny("qwen3", dtype=torch.float64), word_tokenizer()), requests(), EDGES)
    model = tiny("qwen3", attn_implementation=implementation)
    for one, two in zip(attribution(Engine(model, word_tokenizer()), requests(), EDGES), exact, strict=True):
        np.testing.assert_allclose(one.slope, two.slope, atol=1e-3 * np.abs(two.slope).max())


def test_a_batch_keeps_its_requests_apart() -> None:
    model = tiny("gemma3", dtype=torch.float64)
    alone, together = (
        attribution(Engine(model, word_tokenizer(), batch_tokens=tokens), requests(), EDGES)
        for tokens in (100, 100_000)
    )
    for one, two in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.slope, two.slope, atol=1e-12)
    counted = []
    for tokens in (100, 100_000):  # a backward pass takes an eighth of them
        store = Store()
        attribution(Engine(model, word_tokenizer(), store=store, batch_tokens=tokens), requests(), EDGES)
        counted.append(store.forwards)
    assert counted == [3, 1]


def test_slopes_of_a_steered_model() -> None:
    model = exact(tiny("llama", dtype=torch.float64))
    plan = Plan(
        (
            ResidualAdd(layer=0, vector=np.linspace(-1, 1, 32)),
            EdgeScale(layer=1, head=1, queries=span("middle"), keys=span("item"), alpha=3.0),
        )
    )
    old = requests()[0]
    prompt = Prompt(old.prompt.ids, {**old.prompt.spans, "middle": (7, 8)})
    request = Request(prompt, old.answers, plan)
    (found,) = attribution(Engine(model, word_tokenizer()), [request], EDGES[:1])
    expected = differences(model, request, EDGES[0], 1e-4, plan)
    np.testing.assert_allclose(found.slope[0], expected, atol=1e-6 * np.abs(expected).max())
    assert np.abs(expected - differences(model, request, EDGES[0], 1e-4)).max() > 1e-2
    clash = Plan((EdgeScale(layer=0, head=0, queries=span("identity"), keys=span("last_item"), alpha=0.0),))
    prompt = Prompt(prompt.ids, {**prompt.spans, "last_item": (4,)})
    with pytest.raises(InputError, match="row 5"):
        attribution(Engine(model, word_tokenizer()), [Request(prompt, old.answers, clash)], EDGES[:1])


def cloze() -> list[Request]:
    """One stem, three continuations; the identity stands in two of them, in rows of its own."""
    stem = (1, 20, 21, 22, 23)
    texts = {"varied": (31, 32, 33), "other": (41, 42), "neither": (50, 51)}
    made = []
    for name, ids in texts.items():
        prompt = Prompt((*stem, *ids), {"item": (2, 3), name: tuple(range(5, 5 + len(ids)))})
        made.append(Request(prompt, (continuation(prompt, name),)))
    return made


def strength(values: torch.Tensor) -> torch.Tensor:
    return values[2] - torch.logaddexp(values[0], values[1])


def test_a_score_of_several_requests_by_the_chain_rule() -> None:
    model = exact(tiny("mistral", dtype=torch.float64))
    edges = [(span("varied"), span("item")), (span("other"), span("item"))]
    parts = attribution(Engine(model, word_tokenizer()), cloze(), edges)
    with torch.inference_mode():  # wherever it is called from
        score, slope = score_slope(strength, parts)
    values = torch.tensor([log_p(model, request, Plan())[0] for request in cloze()], dtype=torch.float64)
    assert score == pytest.approx(float(strength(values)), abs=1e-9)
    for e, (queries, keys) in enumerate(edges):
        for column, (layer, head) in enumerate(Geometry.of(model).heads()):
            two = []
            for alpha in (1 + 1e-4, 1 - 1e-4):
                plan = Plan((EdgeScale(layer=layer, head=head, queries=queries, keys=keys, alpha=alpha),))
                changed = [
                    log_p(model, request, plan if queries.names[0] in request.prompt.spans else Plan())[0]
                    for request in cloze()
                ]
                two.append(float(strength(torch.tensor(changed, dtype=torch.float64))))
            assert slope[e, column] == pytest.approx((two[0] - two[1]) / 2e-4, abs=1e-6)
    assert np.abs(slope).max() > 1e-2
    assert not parts[2].slope.any()  # neither: it has no edge to cut
    assert not parts[0].slope[1].any()


def test_rows_after_the_last_one_read_have_no_slope() -> None:
    """The last token of a continuation is written, never read; an edge of a batch may have no row at all."""
    prompt = Prompt((1, 20, 21, 22, 23, 31), {"item": (2, 3), "varied": (5,)})
    edges = [(span("varied"), span("item"))]
    (found,) = attribution(
        Engine(tiny("llama"), word_tokenizer()), [Request(prompt, (continuation(prompt, "varied"),))], edges
    )
    assert found.slope.shape == (1, 1, 12)
    assert not found.slope.any()
    assert found.log_p[0] < 0


@pytest.mark.parametrize("learns", [True, False])
def test_no_gradient_is_left_on_the_model(learns: bool) -> None:
    model = tiny("llama", dtype=torch.float64)
    for parameter in model.parameters():
        parameter.requires_grad_(learns)
    expected = attribution(Engine(tiny("llama", dtype=torch.float64), word_tokenizer()), requests(), EDGES)
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with context:
            found = attribution(Engine(model, word_tokenizer()), requests(), EDGES)
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_allclose(one.slope, two.slope, atol=1e-12)
    assert all(p.requires_grad is learns and p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.is_grad_enabled()


def test_what_cannot_be_screened_is_refused() -> None:
    engine = Engine(tiny("llama"), word_tokenizer())
    with pytest.raises(InputError, match="no edges"):
        attribution(engine, requests(), [])
    with pytest.raises(InputError, match="stands in none of the prompts, whose spans are answer, identity, item, last"):
        attribution(engine, requests(), [(span("varied"), span("item"))])
    with pytest.raises(InputError, match="reads position"):
        attribution(engine, requests(), [(span("item"), span("identity"))])
    assert attribution(engine, [], EDGES) == []

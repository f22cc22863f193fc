"""Every reuse is exact: any plans on any prompts, in any budget, score as the plain loop does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oracles.plain_loop import plain_loop
from timonel.engine import Engine, Reading, Request
from timonel.models.geometry import Geometry
from timonel.prompts import Prompt
from timonel.steer import ChannelScale, ChannelSet, EdgeScale, Plan, Region, ResidualAdd, span
from tiny import ARCHITECTURES, tiny, word_tokenizer


@cache
def model_of(architecture: str, attention: str | None) -> Any:
    extra = {} if attention is None else {"attn_implementation": attention}
    return tiny(architecture, dtype=torch.float64, **extra)


@st.composite
def prompts(draw: Any) -> Prompt:
    """Tokens of a small alphabet on a few stems, so that prefixes of all lengths are shared."""
    stem = draw(st.sampled_from([(1, 5, 6, 7, 8), (1, 5, 6, 9, 9, 4), (2,) * 5]))
    tail = draw(st.lists(st.integers(3, 5), min_size=2, max_size=14))
    ids = (*stem, *tail)
    answer = draw(st.integers(len(stem) + 1, len(ids) - 1))
    spans = {
        "item": (1, 2),
        "identity": (4,),
        "late": (len(stem), len(stem) + 1),
        "answer": tuple(range(answer, len(ids))),
    }
    return Prompt(ids, spans)


@st.composite
def interventions(draw: Any, geometry: Geometry) -> Any:
    layer = draw(st.integers(0, geometry.n_layers - 1))
    place = geometry.layers[layer]
    kind = draw(st.sampled_from(["edge", "edge", "edge", "scale", "set", "add"]))
    if kind == "edge":
        head = draw(st.integers(0, place.heads - 1))
        queries, alpha = draw(st.sampled_from(["identity", "late"])), draw(st.sampled_from([0.0, 0.5, 3.0]))
        return EdgeScale(layer=layer, head=head, queries=span(queries), keys=span("item"), alpha=alpha)
    spans = [span("identity"), span("late"), span("answer")]
    scope = draw(st.sampled_from([Region.ALL, Region.PROMPT, Region.GENERATED, *spans]))
    numbers = np.random.default_rng(draw(st.integers(0, 3)))
    if kind == "scale":
        site = draw(st.sampled_from(["o_proj", "down_proj"]))
        width = place.heads * place.head_dim if site == "o_proj" else place.neurons
        return ChannelScale(layer=layer, site=site, factors=numbers.normal(1, 0.5, width), scope=scope)
    if kind == "set":
        return ChannelSet(layer=layer, site="act", channels=(0, 3), values=numbers.normal(size=2), scope=scope)
    return ResidualAdd(layer=layer, vector=numbers.normal(size=geometry.hidden), scale=0.3, scope=scope)


@st.composite
def plans(draw: Any, geometry: Geometry) -> Plan:
    chosen, taken = [], set()
    for one in draw(st.lists(interventions(geometry), max_size=4)):
        where = (one.layer, getattr(one, "head", None), str(getattr(one, "queries", len(chosen))))
        if where not in taken:  # a row of a head takes one alpha
            taken.add(where)
            chosen.append(one)
    return Plan(tuple(chosen))


@st.composite
def request_lists(draw: Any, geometry: Geometry) -> list[Request]:
    some_plans = [Plan(), *draw(st.lists(plans(geometry), min_size=1, max_size=4))]
    requests = []
    for prompt in draw(st.lists(prompts(), min_size=1, max_size=5)):
        rows = st.integers(0, len(prompt) - 1)
        tokens = st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True).map(tuple)
        answer = st.lists(st.builds(Reading, rows, tokens), min_size=1, max_size=3).map(tuple)
        for plan in draw(st.lists(st.sampled_from(some_plans), min_size=1, max_size=4)):
            requests.append(Request(prompt, tuple(draw(st.lists(answer, min_size=1, max_size=2))), plan))
    return requests


EAGER = ["gemma2", "llama", "gemma3"]  # Gemma 2's soft cap has no SDPA
WAYS = [(one, "sdpa") for one in ARCHITECTURES if one != "gemma2"] + [(one, "eager") for one in EAGER]


@pytest.mark.parametrize(("architecture", "attention"), WAYS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data(), batch_tokens=st.sampled_from([1, 30, 70, 100_000]))
def test_any_plans_score_as_the_plain_loop_does(
    architecture: str, attention: str, data: Any, batch_tokens: int
) -> None:
    model = model_of(architecture, attention)
    requests = data.draw(request_lists(Geometry.of(model)))
    engine = Engine(model, word_tokenizer(), batch_tokens=batch_tokens)
    # Short tails would else share a pass from the lowest layer among them.
    engine._shape = replace(engine._shape, overhead=data.draw(st.sampled_from([0, 0, 32])))
    found = engine.score(requests)
    # transformers' eager softmax is float32 in a float64 model too.
    tolerance = 1e-9 if attention == "sdpa" else 2e-5
    for request, answers in zip(requests, found, strict=True):
        assert answers == pytest.approx(plain_loop(model, request), abs=tolerance, rel=0)

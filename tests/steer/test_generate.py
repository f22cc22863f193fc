"""Generation: each kind of intervention gives the same tokens batched and alone, padded and not, cached and not."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from oracles.batches import padded, prompts
from timonel.errors import InputError, UnsupportedModel
from timonel.models import Geometry
from timonel.prompts import Prompt
from timonel.steer import (
    ALL,
    GENERATED,
    PROMPT,
    ChannelScale,
    ChannelSet,
    EdgeScale,
    Plan,
    ResidualAdd,
    attach,
    span,
)
from tiny import ARCHITECTURES, tiny

NEW = 12  # past the tiny models' window of 8
CLOSE = 1e-4
"""Greedy tokens must agree up to the first step at which the two best logits are this close."""


def kinds(geometry: Geometry) -> dict[str, Plan]:
    place = geometry.layers[1]
    noise = np.random.default_rng(3)
    factors = noise.uniform(0, 2, place.neurons)
    return {
        "edge": Plan(
            tuple(
                EdgeScale(layer=layer, head=1, queries=span("identity"), keys=span("item"), alpha=alpha)
                for layer, alpha in ((0, 0.0), (2, 3.0))
            )
        ),
        "head": Plan((ChannelScale.head(geometry, layer=1, head=2, alpha=2.5),)),
        "neurons": Plan((ChannelScale(layer=1, site="down_proj", factors=factors, scope=GENERATED),)),
        "set": Plan((ChannelSet(layer=0, site="act", channels=(1, 4), values=(0.8, -0.6), scope=ALL),)),
        "add": Plan((ResidualAdd(layer=1, vector=noise.normal(size=geometry.hidden), scale=0.4, scope=PROMPT),)),
    }


def loop(model: Any, prompt: Prompt, plan: Plan) -> tuple[list[int], list[float]]:
    """Greedy decoding by hand without a cache, the whole sequence again for each token; and the best two's distance."""
    ids, gaps = list(prompt.ids), []
    with torch.no_grad(), attach(model, plan, prompts=[prompt], check=False):
        for _ in range(NEW):
            logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            best = logits.topk(2).values
            gaps.append(float(best[0] - best[1]))
            ids.append(int(logits.argmax()))
    return ids[len(prompt) :], gaps


def generate(model: Any, made: Sequence[Prompt], plan: Plan, **options: Any) -> list[list[int]]:
    inputs = padded(list(made), "left")
    del inputs["position_ids"]
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0, **options}
    with torch.no_grad(), attach(model, plan, prompts=made, check=False):
        out = model.generate(**inputs, **options)
    return out[:, inputs["input_ids"].shape[1] :].tolist()


def assert_same(found: list[int], expected: list[int], gaps: list[float]) -> None:
    clear = next((step for step, gap in enumerate(gaps) if gap < CLOSE), NEW)
    assert found[:clear] == expected[:clear]
    assert clear >= NEW // 2  # a test that compares nothing holds nothing


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest) -> Any:
    made = tiny(request.param)
    made.generation_config.eos_token_id = None
    return made


@pytest.mark.parametrize("kind", ["edge", "head", "neurons", "set", "add"])
def test_greedy_tokens_agree(model: Any, kind: str) -> None:
    """T1, T9, T10: batched and left-padded, one by one, cached and not, dynamic and static, all equal a plain loop."""
    geometry = Geometry.of(model)
    plan = kinds(geometry)[kind]
    made = prompts()
    expected = [loop(model, prompt, plan) for prompt in made]
    ways: list[dict[str, Any]] = [{}, {"use_cache": False}, {"cache_implementation": "static"}]
    for way in ways:
        batch = generate(model, made, plan, **way)
        for prompt, row, (tokens, gaps) in zip(made, batch, expected, strict=True):
            assert_same(row, tokens, gaps)
            if way == {}:
                assert_same(generate(model, [prompt], plan)[0], tokens, gaps)
    with attach(model, plan, prompts=made):
        pass  # the self-test raises where a plan does nothing, so what agreed above is steered


def test_rows_repeated_in_place_follow_their_prompt(model: Any) -> None:
    """Beams and several returned sequences: row r belongs to prompt r // (rows / prompts)."""
    geometry = Geometry.of(model)
    made = prompts()
    plans = list(kinds(geometry).values())
    for plan in plans:
        alone = [generate(model, [prompt], plan, num_beams=3) for prompt in made]
        assert generate(model, made, plan, num_beams=3) == [row for rows in alone for row in rows]
    torch.manual_seed(0)
    several = generate(model, made, plans[1], do_sample=True, num_return_sequences=2, top_k=3)
    assert len(several) == 4


def test_the_counter_counts_prefill_and_every_decoded_token() -> None:
    """T10: 1 + one for each new token but the last, which is never fed; generated-only skips the prefill."""
    model = tiny("llama")
    model.generation_config.eos_token_id = None
    geometry = Geometry.of(model)
    inputs = padded(prompts(), "left")
    for scope, calls in ((ALL, NEW), (GENERATED, NEW - 1), (PROMPT, 1)):
        plan = Plan((ChannelScale.head(geometry, layer=1, head=0, alpha=2.0, scope=scope),))
        with attach(model, plan, prompts=prompts()) as attached:
            model.generate(
                **{k: v for k, v in inputs.items() if k != "position_ids"}, max_new_tokens=NEW, do_sample=False
            )
        assert attached.calls == {(1, "o_proj"): (calls,)}


def test_prompt_and_generated_need_to_know_where_one_ends() -> None:
    """T8: without prompts only `ALL` is clear; a pass without a cache, or with drafts, would move the border."""
    geometry = Geometry.of(model := tiny("llama"))
    for scope in (PROMPT, GENERATED):
        plan = Plan((ChannelScale.head(geometry, layer=1, head=0, alpha=4.0, scope=scope),))
        with pytest.raises(InputError, match="pass prompts"), attach(model, plan):
            pass


def test_compiled_models_are_refused_or_steered() -> None:
    """T14: hooks added after compiling may be ignored; the probe notices, so it is an effect or an error."""
    model = tiny("llama")
    geometry = Geometry.of(model)
    plan = Plan((ChannelScale.head(geometry, layer=1, head=0, alpha=4.0),))
    ids = torch.tensor([prompts()[0].ids])
    with torch.no_grad(), attach(model, plan):
        expected = model(ids).logits
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(ids)
        try:
            with attach(compiled, plan):
                found = compiled(ids).logits
        except UnsupportedModel:
            return  # refused in words, before the body ran
    torch.testing.assert_close(found, expected)


def test_two_models_that_share_a_config_do_not_share_a_plan() -> None:
    model = tiny("llama", dtype=torch.float64)
    other = copy.deepcopy(model)
    other.config = model.config
    for mine, theirs in zip(model.modules(), other.modules(), strict=True):
        if hasattr(mine, "config"):
            theirs.config = mine.config
    (prompt, _) = prompts()
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        plain = other(ids).logits
        with attach(model, kinds(Geometry.of(model))["edge"], prompts=[prompt]):
            assert torch.equal(other(ids).logits, plain)
            assert not torch.equal(model(ids).logits, plain)
        assert torch.equal(model(ids).logits, plain)
    assert model.config._attn_implementation == "sdpa"


def test_no_registered_state_is_left() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model = tiny("llama")
    (prompt, _) = prompts()
    before = set(ALL_ATTENTION_FUNCTIONS)
    configs = {name: id(module.config) for name, module in model.named_modules() if hasattr(module, "config")}
    with attach(model, kinds(Geometry.of(model))["edge"], prompts=[prompt]):
        assert set(ALL_ATTENTION_FUNCTIONS) != before
    assert set(ALL_ATTENTION_FUNCTIONS) == before
    assert configs == {name: id(module.config) for name, module in model.named_modules() if hasattr(module, "config")}


@pytest.mark.parametrize("kind", ["edge", "head", "neurons", "set", "add"])
@pytest.mark.parametrize("draft", ["assistant", "lookup"])
def test_assisted_decoding_writes_the_same_tokens(kind: str, draft: str) -> None:
    """Drafted tokens are verified several at a time, and the cache is cropped: rows are counted from the cache."""
    model = tiny("llama")
    model.generation_config.eos_token_id = None
    plan = kinds(Geometry.of(model))[kind]
    (prompt, _) = prompts()
    expected, gaps = loop(model, prompt, plan)
    assistant = tiny("llama", seed=1)
    assistant.generation_config.eos_token_id = None
    way: dict[str, Any] = {"assistant_model": assistant} if draft == "assistant" else {"prompt_lookup_num_tokens": 3}
    assert_same(generate(model, [prompt], plan, **way)[0], expected, gaps)

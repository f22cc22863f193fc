"""Greedy generation in batches against transformers' own `generate`, one prompt at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import timonel
from timonel.engine import Engine, Store
from timonel.errors import InputError, UnsupportedModel
from timonel.evaluate._greedy import Greedy
from timonel.evaluate.generate import generate, lay_out
from timonel.models import Geometry
from timonel.prompts import Prompt
from timonel.steer import GENERATED, ChannelScale, EdgeScale, Plan, ResidualAdd, attach, span
from tiny import ARCHITECTURES, tiny, word_tokenizer

TEXTS = (
    "Who should avoid wearing [[item:a kimono]]? the Korean person or [[related:the Japanese person]]",
    "choose [[item:tea]] or rice [[related:the Indian woman]]",
    "[[item:Diwali]] first second best good bad likely more less than or tree [[related:stone]] river red blue green",
    "the [[item:bread]] was not good; [[related:the German man]] should choose",
)


def made(tokenizer: Any, texts: Sequence[str] = TEXTS) -> list[Prompt]:
    return [Prompt.parse(tokenizer, text) for text in texts]


def own(model: Any, prompt: Prompt, plan: Plan, tokens: int, **more: Any) -> tuple[int, ...]:
    """What transformers writes on this prompt alone."""
    ids = torch.tensor([prompt.ids])
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    with attach(model, plan, prompts=[prompt], check=False):
        return tuple(model.generate(ids, **given, **more)[0, ids.shape[1] :].tolist())


def plans(model: Any) -> dict[str, Plan]:
    geometry = Geometry.of(model)
    noise = np.random.default_rng(0)
    edges = [
        EdgeScale(layer=layer, head=head, queries=span("related"), keys=span("item"), alpha=40.0)
        for layer in range(3)
        for head in range(4)
    ]
    return {
        "none": Plan(),
        "edges": Plan(edges),
        "head": Plan((ChannelScale.head(geometry, layer=0, head=2, alpha=6.0),)),
        "late": Plan((ResidualAdd(layer=1, vector=noise.normal(size=geometry.hidden), scope=GENERATED),)),
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_batched_is_what_transformers_writes_on_each_alone(architecture: str) -> None:
    model, tokenizer = tiny(architecture), word_tokenizer()
    prompts = made(tokenizer)
    for name, plan in plans(model).items():
        found = generate(Engine(model, tokenizer), tokenizer, prompts, plan, Greedy(12))
        assert [one.ids for one in found] == [own(model, prompt, plan, 12) for prompt in prompts], name
        assert [one.text for one in found] == [tokenizer.decode(one.ids, skip_special_tokens=True) for one in found]


def test_the_plans_differ_at_all() -> None:
    """Or the test above would pass with none attached."""
    model, tokenizer = tiny("llama"), word_tokenizer()
    engine = Engine(model, tokenizer)
    texts = {
        name: tuple(generate(engine, tokenizer, made(tokenizer), plan, Greedy(12)))
        for name, plan in plans(model).items()
    }
    assert len(set(texts.values())) == len(texts)


def test_one_plan_a_prompt() -> None:
    model, tokenizer = tiny("qwen3"), word_tokenizer()
    prompts, several = made(tokenizer), list(plans(model).values())
    found = generate(Engine(model, tokenizer), tokenizer, prompts, several, Greedy(8))
    assert [one.ids for one in found] == [own(model, p, plan, 8) for p, plan in zip(prompts, several, strict=True)]
    with pytest.raises(InputError, match="3 plans for 4 prompts"):
        generate(Engine(model, tokenizer), tokenizer, prompts, several[:3])


@pytest.mark.parametrize("batch_tokens", [1, 40, 70, 10_000])
def test_the_size_of_batches_changes_nothing(batch_tokens: int) -> None:
    model, tokenizer = tiny("mistral"), word_tokenizer()
    prompts = made(tokenizer) * 2
    expected = generate(Engine(model, tokenizer), tokenizer, prompts, how=Greedy(6))
    found = generate(Engine(model, tokenizer, batch_tokens=batch_tokens), tokenizer, prompts, how=Greedy(6))
    assert found == expected
    # and neither does the order
    turned = generate(Engine(model, tokenizer, batch_tokens=batch_tokens), tokenizer, prompts[::-1], how=Greedy(6))
    assert turned == expected[::-1]


@pytest.mark.parametrize("many", [False, True])
def test_rows_end_at_eos_each_by_itself(many: bool) -> None:
    model, tokenizer = tiny("llama"), word_tokenizer()
    prompts = made(tokenizer)
    free = [own(model, prompt, Plan(), 12) for prompt in prompts]
    ends = [free[0][3], free[2][6]] if many else free[0][3]
    model.generation_config.eos_token_id = ends
    found = generate(Engine(model, tokenizer), tokenizer, prompts, how=Greedy(12))
    assert [one.ids for one in found] == [own(model, prompt, Plan(), 12) for prompt in prompts]
    assert len(found[0].ids) == 1 + free[0].index(free[0][3])
    assert {len(one.ids) for one in found} != {12}
    model.generation_config.eos_token_id = None  # then the tokenizer's
    found = generate(Engine(model, tokenizer), tokenizer, prompts, how=Greedy(12))
    assert [one.ids for one in found] == free
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(free[0][3])
    found = generate(Engine(model, tokenizer), tokenizer, prompts, how=Greedy(12))
    assert found[0].ids == free[0][: 1 + free[0].index(free[0][3])]


def test_stop_strings() -> None:
    model, tokenizer = tiny("llama", seed=2), word_tokenizer()
    prompts = made(tokenizer)
    free = generate(Engine(model, tokenizer), tokenizer, prompts, how=Greedy(12))
    stop = tokenizer.decode(free[1].ids[3:5], skip_special_tokens=True)
    assert len(stop) > 1
    found = generate(Engine(model, tokenizer), tokenizer, prompts, how=Greedy(12, (stop,)))
    expected = [own(model, prompt, Plan(), 12, stop_strings=[stop], tokenizer=tokenizer) for prompt in prompts]
    assert [one.ids for one in found] == expected
    assert len(found[1].ids) < 12
    assert found[1].text == free[1].text[: free[1].text.index(stop)]
    two = generate(Engine(model, tokenizer), tokenizer, prompts, how=Greedy(12, ("never this", stop)))
    assert two == found
    for wrong in ((0, ()), (5, ("",))):
        with pytest.raises(InputError, match="at least one token"):
            Greedy(*wrong)


class Dies(Store):
    """Stops after some batches, as a killed process does."""

    left = 2

    def begin(self) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        super().begin()


def test_a_killed_run_goes_on_where_it_stopped(tmp_path: Any) -> None:
    model, tokenizer = tiny("llama"), word_tokenizer()
    prompts, plan = made(tokenizer), plans(model)["edges"]
    whole = Engine(model, tokenizer, store=Store(), batch_tokens=30)
    expected = generate(whole, tokenizer, prompts, plan)
    batches = whole.store.forwards
    assert batches == len(lay_out(prompts, 5, 30)) > 3
    with pytest.raises(KeyboardInterrupt):
        generate(Engine(model, tokenizer, store=Dies(tmp_path / "s"), batch_tokens=30), tokenizer, prompts, plan)
    engine = Engine(model, tokenizer, store=Store(tmp_path / "s"), batch_tokens=30)
    assert engine.store.forwards == 2
    seen: list[tuple[str, int, int]] = []
    engine.progress = lambda *told: seen.append(told)
    assert generate(engine, tokenizer, prompts, plan) == expected
    assert engine.store.forwards == batches
    assert seen[0][1] == 0
    assert seen[-1][1] == seen[-1][2] > 0
    seen.clear()
    assert generate(engine, tokenizer, prompts, plan) == expected
    assert (engine.store.forwards, seen) == (batches, [])


def test_what_a_text_is_kept_under() -> None:
    """Another model, config, plan, number of tokens or stop string is computed anew; a span's name plays no part."""
    model, tokenizer = tiny("llama"), word_tokenizer()
    prompts, store = made(tokenizer)[:1], Store()
    plan = plans(model)["edges"]

    def forwards(model: Any = model, plan: Plan = plan, how: Greedy | None = None, asked: Any = prompts) -> int:
        before = store.forwards
        generate(Engine(model, tokenizer, store=store), tokenizer, asked, plan, how)
        return store.forwards - before

    assert [forwards(), forwards(), forwards(how=Greedy(6)), forwards(how=Greedy(5, ("x",)))] == [1, 0, 1, 1]
    assert [forwards(plan=Plan()), forwards(plan=Plan(tuple(plan)[:1])), forwards(tiny("llama", seed=1))] == [1, 1, 1]
    edges = [EdgeScale(layer=e.layer, head=e.head, queries=span("r"), keys=span("i"), alpha=e.alpha) for e in plan]
    renamed = [Prompt(p.ids, {"r": p.spans["related"], "i": p.spans["item"]}, p.text) for p in prompts]
    assert forwards(plan=Plan(edges), asked=renamed) == 0
    model.generation_config.eos_token_id = 17
    assert forwards() == 1


def test_in_half_precision_batch_mates_are_part_of_the_key() -> None:
    model, tokenizer = tiny("llama", dtype=torch.bfloat16), word_tokenizer()
    engine = Engine(model, tokenizer)
    prompts = made(tokenizer)
    all_of_them = generate(engine, tokenizer, prompts)
    before = engine.store.forwards
    generate(engine, tokenizer, prompts[:2])
    assert engine.store.forwards == before + 1
    assert generate(engine, tokenizer, prompts) == all_of_them
    assert engine.store.forwards == before + 1


def test_steered_and_unsteered_share_their_batches() -> None:
    prompts = made(word_tokenizer()) * 3
    layout = lay_out(prompts, 5, 60)
    assert sorted(index for batch in layout for index in batch) == list(range(12))
    for batch in layout:
        longest = max(len(prompts[index]) for index in batch)
        assert (longest + 5) * len(batch) <= 60 or len(batch) == 1
    lengths = [len(prompts[index]) for batch in layout for index in batch]
    assert lengths == sorted(lengths)


def test_refusals() -> None:
    model, tokenizer = tiny("llama"), word_tokenizer()
    engine = Engine(model, tokenizer)
    with pytest.raises(InputError, match="answer already"):
        generate(engine, tokenizer, [made(tokenizer)[0].followed_by(tokenizer, " tea")])
    with pytest.raises(InputError, match="vocabulary is 0 to 199"):
        generate(engine, tokenizer, [Prompt((1, 500))])
    edge = EdgeScale(layer=0, head=0, queries=span("nowhere"), keys=span("item"), alpha=0.0)
    with pytest.raises(InputError, match="span 'nowhere'"):
        generate(engine, tokenizer, made(tokenizer), Plan((edge,)))
    assert generate(engine, tokenizer, []) == []
    assert engine.store.forwards == 0
    # A plan that does not act on this model is found out before anything is kept.
    silent = plans(model)["head"]
    model.model.layers[0].self_attn.o_proj.register_forward_pre_hook(lambda module, args: (args[0] * 0,))
    with pytest.raises(UnsupportedModel, match="does nothing"):
        generate(engine, tokenizer, made(tokenizer), silent)
    assert len(engine.store) == 0


@pytest.mark.real
@pytest.mark.parametrize("edges", [False, True])
def test_a_real_model(edges: bool) -> None:
    model, tokenizer = timonel.load("smollm2-135m")
    texts = ["Name a fruit.", "Who wears [[item:a kimono]]: [[related:the Japanese person]] or the Peruvian person?"]
    prompts = [Prompt.parse(tokenizer, text, chat=True) for text in texts]
    plan = Plan()
    if edges:
        prompts = prompts[1:] * 2
        plan = Plan(
            tuple(
                EdgeScale(layer=layer, head=head, queries=span("related"), keys=span("item"), alpha=30.0)
                for layer in range(5, 25)
                for head in range(9)
            )
        )
    found = generate(Engine(model, tokenizer), tokenizer, prompts, plan, Greedy(16))
    assert [one.ids for one in found] == [own(model, prompt, plan, 16) for prompt in prompts]
    if edges:
        assert found != generate(Engine(model, tokenizer), tokenizer, prompts, None, Greedy(16))

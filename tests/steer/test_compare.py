from __future__ import annotations

from typing import Any

import pytest
import torch

from timonel.errors import InputError
from timonel.models import Geometry
from timonel.steer import ChannelScale, EdgeScale, Plan, span
from timonel.steer.compare import Writing, compare, parse_span, prompt_of, scaled_head
from tiny import tiny, word_tokenizer

TEXT = "who should avoid wearing a kimono in the best tea"
TOKENIZER = word_tokenizer(chat=True)
SHORT = Writing(tokens=8)


def loud(model: Any, alpha: float = 4.0) -> Plan:
    return Plan((ChannelScale.head(Geometry.of(model), layer=1, head=2, alpha=alpha),))


def test_both_texts_are_what_generate_writes_and_the_plan_makes_the_difference() -> None:
    model = tiny("llama")
    prompt = prompt_of(TOKENIZER, TEXT)
    found = compare(model, TOKENIZER, loud(model), prompt, SHORT)
    folded = tiny("llama")
    folded.model.layers[1].self_attn.o_proj.weight.data[:, 16:24] *= 4.0
    ids = torch.tensor([prompt.ids])
    for own, written in ((model, found.baseline), (folded, found.steered)):
        made = own.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0)
        assert written == tuple(made[0, len(prompt) :].tolist())
    assert found.baseline != found.steered
    assert found.parted == next(i for i in range(8) if found.baseline[i] != found.steered[i])
    assert found.baseline_text == TOKENIZER.decode(list(found.baseline), skip_special_tokens=True)


def test_a_plan_that_changes_nothing_changes_no_text() -> None:
    model = tiny("llama")
    found = compare(model, TOKENIZER, loud(model, 1.0), prompt_of(TOKENIZER, TEXT), Writing(8, sample=True, seed=3))
    assert found.baseline == found.steered
    assert found.parted is None


def test_drawing_repeats_with_the_seed_and_leaves_the_global_generator_alone() -> None:
    model = tiny("llama")
    prompt = prompt_of(TOKENIZER, TEXT)
    before = torch.get_rng_state()
    texts = [compare(model, TOKENIZER, loud(model), prompt, Writing(8, sample=True, seed=seed)) for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert texts[0] == texts[1]
    assert texts[0].baseline != texts[2].baseline


def test_a_cold_draw_is_the_greedy_text() -> None:
    model = tiny("llama")
    prompt = prompt_of(TOKENIZER, TEXT)
    cold = compare(model, TOKENIZER, loud(model), prompt, Writing(8, sample=True, temperature=1e-6))
    assert cold == compare(model, TOKENIZER, loud(model), prompt, SHORT)


@pytest.mark.parametrize("setting", [{"repetition_penalty": 50.0}, {"do_sample": True, "temperature": 9.0}])
def test_a_checkpoints_own_settings_are_set_aside(setting: dict[str, Any]) -> None:
    model = tiny("llama")
    prompt = prompt_of(TOKENIZER, TEXT)
    writing = Writing(tokens=24)
    plain = compare(model, TOKENIZER, loud(model), prompt, writing)
    for name, value in setting.items():
        setattr(model.generation_config, name, value)
    ids = torch.tensor([prompt.ids])
    own = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, pad_token_id=0)
    assert tuple(own[0, len(prompt) :].tolist()) != plain.baseline  # the setting matters
    assert compare(model, TOKENIZER, loud(model), prompt, writing) == plain


@pytest.mark.parametrize("chat", [False, True])
def test_spans_by_part_and_by_markup_are_one(chat: bool) -> None:
    by_part = prompt_of(TOKENIZER, "a kimono or a kimono in tea", [("item", "kimono"), ("to", "tea")], chat=chat)
    by_mark = prompt_of(TOKENIZER, "a [[item:kimono]] or a kimono in [[to:tea]]", chat=chat)
    assert by_part == by_mark
    assert len(by_part.spans["item"]) == 1  # the first place
    both = prompt_of(TOKENIZER, "a [[item:kimono]] or tea", [("item", "tea")], chat=chat)
    assert len(both.spans["item"]) == 2


def test_an_edge_meets_the_prompts_spans() -> None:
    model = tiny("llama")
    edges = Plan(
        tuple(
            EdgeScale(layer=layer, head=head, queries=span("to"), keys=span("item"), alpha=0.0)
            for layer in range(3)
            for head in range(4)
        )
    )
    prompt = prompt_of(TOKENIZER, "who should eat a [[item:Feng Shui]] in the best [[to: tea]]")
    found = compare(model, TOKENIZER, edges, prompt, SHORT)
    assert found.baseline != found.steered
    with pytest.raises(InputError, match="names the span 'to', but this prompt has none"):
        compare(model, TOKENIZER, edges, prompt_of(TOKENIZER, TEXT), SHORT)


def test_what_is_refused() -> None:
    geometry = Geometry.of(tiny("llama"))
    assert parse_span("item=Feng = Shui") == ("item", "Feng = Shui")
    assert scaled_head(geometry, "1.2=-0.5") == ChannelScale.head(geometry, layer=1, head=2, alpha=-0.5)
    for wrong in ("item", "=Shui", "item="):
        with pytest.raises(InputError, match="write item='Feng Shui'"):
            parse_span(wrong)
    for wrong, words in {
        "L1H2": "its factor",
        "L1H2=x": "its factor",
        "L1H2=nan": "not finite",
        "L9H0=1": "layer 9",
    }.items():
        with pytest.raises(InputError, match=words):
            scaled_head(geometry, wrong)
    with pytest.raises(InputError, match=r"'Fung'.*'a kimono'"):
        prompt_of(TOKENIZER, "a kimono", [("item", "Fung")])
    with pytest.raises(InputError, match="--tokens is 0"):
        Writing(tokens=0)
    with pytest.raises(InputError, match="--temperature is 0"):
        Writing(temperature=0.0)

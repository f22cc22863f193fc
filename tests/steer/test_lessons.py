"""Faults that users of the neighbours have met, where no other test of this room names them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from accelerate import dispatch_model

from oracles.batches import kept, padded, prompts
from timonel.engine import Engine, Request, choice
from timonel.errors import InputError, UnsupportedModel
from timonel.models import Geometry
from timonel.prompts import Prompt
from timonel.steer import ChannelScale, EdgeScale, Plan, attach, span
from tiny import WINDOW, tiny, word_tokenizer


def edge(layer: int, head: int, alpha: float = 0.0) -> EdgeScale:
    return EdgeScale(layer=layer, head=head, queries=span("identity"), keys=span("item"), alpha=alpha)


def test_t2_the_tokenizers_side_is_the_users() -> None:
    """T2, T15: a right-padding tokenizer stays one, and its batches are steered like any other."""
    model = tiny("llama", dtype=torch.float64)
    tokenizer = word_tokenizer(padding_side="right")
    made = prompts()
    Engine(model, tokenizer).score([Request(p, (choice(p, (5,)),), Plan((edge(1, 1),))) for p in made])
    assert tokenizer.padding_side == "right"
    with torch.no_grad(), attach(model, Plan((edge(1, 1),)), prompts=made):
        left = kept(model(**padded(made, "left")).logits, made, "left")
        right = kept(model(**padded(made, "right")).logits, made, "right")
    torch.testing.assert_close(left, right, atol=1e-9, rtol=0)


def test_t3_a_misspelt_name_is_an_error() -> None:
    with pytest.raises(TypeError, match="unexpected keyword"):
        EdgeScale(layer=0, head=0, queries=span("a"), keys=span("b"), alhpa=0.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        attach(tiny("llama"), Plan(), prompt=[])  # type: ignore[call-arg]


def test_t4_left_pads_without_position_ids() -> None:
    """The edge follows the mask, not the position ids: it acts on the same tokens as when they are given."""
    model = tiny("llama", dtype=torch.float64)
    made = prompts()
    inputs = padded(made, "left")
    del inputs["position_ids"]  # rotary positions then count the pads; rows and keys must not
    with torch.no_grad():
        plain = model(**inputs).logits
        with attach(model, Plan((edge(1, 1),)), prompts=made) as attached:
            cut = model(**inputs).logits
    assert attached.fired == attached.expected
    for row, prompt in enumerate(made):
        first = prompt.spans["identity"][0] - len(prompt)
        assert torch.equal(cut[row, -len(prompt) : first], plain[row, -len(prompt) : first])
        assert (cut[row, first] - plain[row, first]).abs().max() > 1e-9


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.5), (torch.float16, 0.05)])
def test_t7_half_precision_is_near_and_batches_are_fixed(dtype: torch.dtype, tolerance: float) -> None:
    """T7: scores by dtype; in half precision a resumed engine gives the very same numbers, batch mates and all."""
    exact, model = tiny("llama", dtype=torch.float64), tiny("llama", dtype=dtype)
    made = prompts()
    requests = [
        Request(p, (choice(p, (5, 6)),), plan)
        for p in made
        for plan in (Plan(), Plan((edge(0, 1),)), Plan((edge(1, 2),)))
    ]
    expected = Engine(exact, word_tokenizer()).score(requests)
    engine = Engine(model, word_tokenizer(), batch_tokens=40)
    found = engine.score(requests)
    for one, two in zip(found, expected, strict=True):
        assert one == pytest.approx(two, abs=tolerance)
    again = Engine(model, word_tokenizer(), batch_tokens=40)
    again.score(requests[2:4])  # other company: in half precision these are other numbers, kept apart
    # In full precision the mates play no part but in the last bits, and what was kept stays.
    tolerance = 1e-5 if dtype == torch.float32 else 0.0
    for one, two in zip(again.score(requests), found, strict=True):
        assert one == pytest.approx(two, abs=tolerance, rel=0)


def test_t17_a_plan_without_effect_is_an_error() -> None:
    model = tiny("llama")
    place = Geometry.of(model).layers[1]
    model.get_submodule(place.attention).v_proj.weight.data.zero_()
    (prompt, _) = prompts()
    with pytest.raises(UnsupportedModel, match="does nothing"), attach(model, Plan((edge(1, 1),)), prompts=[prompt]):
        pass


def test_t21_untouched_layers_call_the_original_function() -> None:
    """T21: only the touched layer's config names another function; the others' is the model's own object."""
    model = tiny("llama")
    geometry = Geometry.of(model)
    (prompt, _) = prompts()
    with attach(model, Plan((edge(1, 1),)), prompts=[prompt], check=False):
        for index, layer in enumerate(geometry.layers):
            config = model.get_submodule(layer.attention).config
            assert (config is model.config) == (index != 1)
    with attach(model, Plan((ChannelScale.head(geometry, layer=1, head=1, alpha=2.0),))):
        assert all(model.get_submodule(layer.attention).config is model.config for layer in geometry.layers)


@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gemma3"])
def test_t24_an_edge_outside_the_window_is_reported(architecture: str) -> None:
    model = tiny(architecture)
    geometry = Geometry.of(model)
    local = next(index for index, layer in enumerate(geometry.layers) if layer.window)
    ids = tuple(range(3, 3 + 2 * WINDOW))
    prompt = Prompt(ids, {"item": (1,), "identity": (1 + WINDOW, 2 + WINDOW)})
    near = Prompt(ids, {"item": (2,), "identity": (1 + WINDOW,)})
    plan = Plan((edge(local, 0),))
    with (
        pytest.warns(UserWarning, match="no-op"),
        pytest.raises(UnsupportedModel, match="window"),
        attach(model, plan, prompts=[prompt]),
    ):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with attach(model, plan, prompts=[near]):
            pass


def test_t31_a_dispatched_model_is_steered_and_keeps_its_modules() -> None:
    model, plain = tiny("llama", dtype=torch.float64), tiny("llama", dtype=torch.float64)
    places = {name: "cpu" for name, _ in model.named_children()}
    model = dispatch_model(model, places, main_device="cpu", force_hooks=True)
    modules = {name: id(module) for name, module in model.named_modules()}
    made = prompts()
    geometry = Geometry.of(model)
    plan = Plan((edge(1, 1), ChannelScale.head(geometry, layer=0, head=2, alpha=0.5)))

    def run(which: Any) -> torch.Tensor:
        with torch.no_grad(), attach(which, plan, prompts=made):
            return which(**padded(made, "left")).logits

    assert torch.equal(run(model), run(plain))
    assert modules == {name: id(module) for name, module in model.named_modules()}


def test_the_input_is_compared_with_the_prompts() -> None:
    """T8, T35: a doubled BOS shifts every span by one, and rows in another order are steered as their neighbours."""
    model = tiny("llama")
    (prompt, other) = prompts()
    plan = Plan((edge(1, 1),))
    for ids in ((1, *prompt.ids), other.ids + prompt.ids):
        with (
            attach(model, plan, prompts=[prompt]),
            pytest.raises(InputError, match="does not begin with"),
            torch.no_grad(),
        ):
            model(torch.tensor([ids]))


def test_a_nested_attach_does_not_disturb_the_outer_one() -> None:
    """T12: the self-test of the inner plan suspends the outer one."""
    model = tiny("llama")
    (prompt, _) = prompts()
    with attach(model, Plan((edge(0, 1),)), prompts=[prompt, prompt]) as outer:
        with attach(model, Plan((edge(1, 1),)), prompts=[prompt, prompt]):
            assert outer.fired == 0
        with torch.no_grad():
            model(torch.tensor([prompt.ids] * 2))
        assert outer.fired == outer.expected


def test_pads_are_seen_in_every_kind_of_mask() -> None:
    """One's own mask may bar with -1e9, and a static cache whose layers all slide shows its pads in their masks."""
    model = tiny("llama", dtype=torch.float64)
    made = prompts()
    inputs = padded(made, "left")
    width = inputs["input_ids"].shape[1]
    causal = torch.tril(torch.ones(width, width, dtype=torch.bool))[None, None]
    visible = causal & inputs["attention_mask"][:, None, None].bool()
    plan = Plan((edge(1, 1, 3.0),))
    outs = []
    for mask in (inputs["attention_mask"], visible, torch.where(visible, 0.0, -1e9).double()):
        with torch.no_grad(), attach(model, plan, prompts=made):
            outs.append(kept(model(**{**inputs, "attention_mask": mask}).logits, made, "left"))
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-6, rtol=0)

    sliding = tiny("gemma3", layer_types=["sliding_attention"] * 4)
    sliding.generation_config.eos_token_id = None
    given = {name: tensor for name, tensor in inputs.items() if name != "position_ids"}
    logits = []
    for extra in ({}, {"cache_implementation": "static", "disable_compile": True}):
        with attach(sliding, Plan(tuple(edge(1, h) for h in range(4))), prompts=made):
            out = sliding.generate(
                **given, max_new_tokens=2, do_sample=False, output_logits=True, return_dict_in_generate=True, **extra
            )
        logits.append(out.logits[0])
    torch.testing.assert_close(logits[0], logits[1], atol=1e-4, rtol=0)


def test_training_is_followed_or_refused() -> None:
    """Dropout inside attention, and checkpointed layers that run again later, would give wrong numbers in silence."""
    model = tiny("llama", attention_dropout=0.5).train()
    (prompt, _) = prompts()
    ids = torch.tensor([prompt.ids])
    with (
        attach(model, Plan((edge(1, 1),)), prompts=[prompt], check=False),
        pytest.raises(UnsupportedModel, match="eval"),
    ):
        model(ids)
    plain = tiny("llama").train()
    plain.gradient_checkpointing_enable()
    with (
        attach(plain, Plan((edge(1, 1),)), prompts=[prompt], check=False),
        pytest.raises(UnsupportedModel, match="heckp"),
    ):
        plain(ids)

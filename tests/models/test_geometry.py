"""Geometry against what the modules do: a hook on a named module sees the sizes that the geometry states."""

import copy
import warnings

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
)

from timonel.errors import InputError, UnsupportedModel
from timonel.models import ARCHITECTURES as TABLE
from timonel.models import Geometry
from tiny import _COMMON, ARCHITECTURES, WINDOW, tiny

# (query heads, key/value heads, head_dim, windows), from the configs in tests/tiny.py by hand.
EXPECTED = {
    "llama": (4, 2, 8, [None, None, None]),
    "mistral": (4, 2, 8, [WINDOW, WINDOW, WINDOW]),
    "nemo": (4, 2, 16, [None, None, None]),
    "gemma2": (4, 2, 16, [WINDOW, None, WINDOW, None]),
    "gemma3": (4, 1, 16, [WINDOW, WINDOW, None, WINDOW]),
    "qwen2": (4, 2, 8, [None, None, None]),
    "qwen3": (4, 2, 16, [None, None, None]),
    "phi3": (4, 2, 8, [None, None, None]),
}
IDS = torch.arange(20)[None] + 20


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sizes_of_every_architecture(architecture: str) -> None:
    model = tiny(architecture)
    geometry = Geometry.of(model)
    heads, kv_heads, head_dim, windows = EXPECTED[architecture]
    assert geometry.architecture == type(model).__name__
    assert (geometry.hidden, geometry.vocab, geometry.n_layers) == (32, 200, len(windows))
    assert [layer.window for layer in geometry.layers] == windows
    for layer in geometry.layers:
        assert (layer.heads, layer.kv_heads, layer.head_dim, layer.neurons) == (heads, kv_heads, head_dim, 48)
        assert layer.group == heads // kv_heads
    caps = (5.0, 30.0) if architecture == "gemma2" else (None, None)
    assert (geometry.softcap, geometry.final_softcap) == caps
    assert geometry.total_heads == len(list(geometry.heads())) == heads * len(windows)


def test_every_row_of_the_table_has_a_tiny_model() -> None:
    assert {type(m).__name__ for a in ARCHITECTURES for m in tiny(a).modules()} >= set(TABLE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_names_lead_to_modules_that_do_what_they_are_called(architecture: str) -> None:
    model = tiny(architecture)
    geometry = Geometry.of(model)
    seen: dict[str, torch.Tensor] = {}
    for layer in geometry.layers:
        for name in (layer.o_proj, layer.down_proj):
            model.get_submodule(name).register_forward_pre_hook(
                lambda _, args, name=name: seen.__setitem__(name, args[0])
            )
        model.get_submodule(layer.act).register_forward_hook(
            lambda _, __, out, name=layer.act: seen.__setitem__(name, out)
        )
    model(IDS)
    assert model.get_submodule(geometry.head) is model.get_output_embeddings()
    decoder_layers = model.get_submodule(geometry.decoder).layers
    for at, layer in enumerate(geometry.layers):
        assert model.get_submodule(layer.layer) is decoder_layers[at]
        assert seen[layer.o_proj].shape == (1, 20, layer.heads * layer.head_dim)
        assert seen[layer.down_proj].shape == (1, 20, layer.neurons)
        # down_proj's input is act * up: the ratio is the up projection's output.
        assert seen[layer.act].shape == (1, 20, layer.neurons)
        assert model.get_submodule(layer.attention) is decoder_layers[at].self_attn
        assert model.get_submodule(layer.mlp) is decoder_layers[at].mlp


@pytest.mark.parametrize("architecture", ["mistral", "gemma2", "gemma3"])
def test_the_window_is_how_many_keys_a_query_sees(architecture: str) -> None:
    model = tiny(architecture, attn_implementation="eager")
    attentions = model(IDS, output_attentions=True).attentions
    for layer, weights in zip(Geometry.of(model).layers, attentions, strict=True):
        sees = (weights[0, :, -1] > 0).sum(-1)
        assert sees.tolist() == [layer.window or 20] * layer.heads


def test_query_heads_share_the_key_head_that_group_says() -> None:
    model = tiny("llama", attn_implementation="eager")
    layer = Geometry.of(model).layers[0]
    before = model(IDS, output_attentions=True).attentions[0]
    with torch.no_grad():  # another key head 1 changes the patterns of query heads 2 and 3 alone
        model.get_submodule(layer.attention).k_proj.weight[layer.head_dim :] *= -1
    after = model(IDS, output_attentions=True).attentions[0]
    changed = [not torch.equal(before[0, h], after[0, h]) for h in range(layer.heads)]
    assert changed == [h // layer.group == 1 for h in range(layer.heads)]


def test_layers_may_differ_from_one_another() -> None:
    """T27."""
    model = tiny("llama")
    wide = tiny("llama", head_dim=12, num_key_value_heads=4, intermediate_size=40)
    model.model.layers[1] = copy.deepcopy(wide.model.layers[1])
    shapes = [(at.head_dim, at.kv_heads, at.group, at.neurons) for at in Geometry.of(model).layers]
    assert shapes == [(8, 2, 2, 48), (12, 4, 1, 40), (8, 2, 2, 48)]


def test_the_text_part_of_a_multimodal_wrapper_is_found() -> None:
    geometry = Geometry.of(_gemma3_with_eyes())
    assert geometry.architecture == "Gemma3ForConditionalGeneration"
    assert geometry.decoder == "model.language_model"
    assert geometry.head == "lm_head"
    assert geometry.layers[0].o_proj == "model.language_model.layers.0.self_attn.o_proj"
    assert [layer.window for layer in geometry.layers] == [WINDOW, WINDOW, WINDOW]


def _gemma3_with_eyes() -> Gemma3ForConditionalGeneration:
    eyes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Gemma3Config(
        text_config={**_COMMON, "head_dim": 16, "sliding_window": WINDOW},
        vision_config={**eyes, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    return Gemma3ForConditionalGeneration(config)


def test_a_compiled_model_has_the_same_geometry_under_its_wrapper() -> None:
    model = tiny("llama")
    compiled = torch.compile(model)
    geometry = Geometry.of(compiled)
    assert geometry.architecture == "LlamaForCausalLM"
    assert compiled.get_submodule(geometry.head) is model.lm_head


def test_heads_and_layers_out_of_range_are_refused_with_the_range() -> None:
    geometry = Geometry.of(tiny("llama"))
    assert geometry.check_head(2, 3) is geometry.layers[2]
    with pytest.raises(InputError, match=r"L2H4 does not exist in this LlamaForCausalLM: .* query heads 0 to 3"):
        geometry.check_head(2, 4)
    with pytest.raises(InputError, match=r"layer 3 does not exist .* its layers are 0 to 2"):
        geometry.check_head(3, 0)
    with pytest.raises(InputError, match="layer -1 does not exist"):
        geometry.check_layer(-1)


def test_a_geometry_is_frozen_and_equal_to_that_of_an_equal_model() -> None:
    assert Geometry.of(tiny("qwen3", seed=1)) == Geometry.of(tiny("qwen3", seed=2))


def test_looking_leaves_the_model_as_it_was() -> None:
    model = tiny("gemma2").train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    Geometry.of(model)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


MOE = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
REFUSED = {
    "mixtral": (
        {"num_local_experts": 2},
        r"MixtralForCausalLM .*layers\.0\.mlp\.experts .*mixture of experts",
    ),
    "qwen3_moe": (MOE, r"Qwen3MoeForCausalLM .*layers\.0\.mlp\.experts .*mixture of experts"),
    "gpt_oss": (
        {"num_local_experts": 2},
        r"GptOssForCausalLM .*mlp\.experts .*self_attn\.sinks are attention sinks",
    ),
    "gpt2": ({}, r"GPT2LMHeadModel .*h\.0\.attn\.c_attn is a Conv1D"),
    "mamba": ({}, r"MambaForCausalLM .*layers\.0 .*state-space"),
    "qwen3_next": (MOE, r"Qwen3NextForCausalLM .*layers\.0\.linear_attn .*linear-attention layer"),
    "gemma3_text": (
        {"use_bidirectional_attention": True},
        r"layers\.0\.self_attn .*attends in both directions",
    ),
    "gpt_neox": ({}, r"GPTNeoXForCausalLM .*GPTNeoXAttention.* not that of a checked architecture .*Llama"),
    "olmo2": ({}, r"Olmo2ForCausalLM .*Olmo2Attention"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_handled_is_refused_by_name_with_the_reason(kind: str) -> None:
    """T28: fused experts among them, whose module the refusal names."""
    fields, reason = REFUSED[kind]
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(kind, **{**_COMMON, "num_hidden_layers": 4, **fields})
        model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(UnsupportedModel, match=reason):
        Geometry.of(model)


@pytest.mark.parametrize("kind", ["t5", "bart"])
def test_encoder_decoders_are_refused(kind: str) -> None:
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(kind))
    with pytest.raises(UnsupportedModel, match="ForConditionalGeneration is not supported: it is an encoder-decoder"):
        Geometry.of(model)


@pytest.mark.parametrize("auto", [AutoModel, AutoModelForSequenceClassification])
def test_a_model_without_an_output_embedding_is_refused(auto: type) -> None:
    model = auto.from_config(AutoConfig.for_model("llama", **_COMMON))
    with pytest.raises(UnsupportedModel, match="no output embedding"):
        Geometry.of(model)


def test_a_lookalike_is_not_let_in() -> None:
    model = tiny("llama")
    for layer in model.model.layers:
        layer.self_attn.__class__ = type("OtherAttention", (type(layer.self_attn),), {})
    with pytest.raises(UnsupportedModel, match="OtherAttention"):
        Geometry.of(model)


def test_a_model_that_mixes_its_layers_is_refused() -> None:
    model = tiny("llama")
    model.model.layers[1].self_attn.__class__ = type("OtherAttention", (torch.nn.Module,), {})
    with pytest.raises(UnsupportedModel, match=r"2 of the 3 layers in model\.layers have a LlamaAttention"):
        Geometry.of(model)


@pytest.mark.parametrize("thing", [3, "model", torch.nn.Linear(2, 2)])
def test_what_is_no_transformers_model_is_refused(thing: object) -> None:
    with pytest.raises(InputError, match="is not a transformers model"):
        Geometry.of(thing)  # type: ignore[arg-type]

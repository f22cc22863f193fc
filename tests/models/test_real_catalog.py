"""The two real models, fetched on first use; what transformers made of their files, against the files."""

import json
import os
from pathlib import Path

import pytest
import torch

from timonel.models import Geometry, catalog, fingerprint, load

pytestmark = pytest.mark.real


def model_and_tokenizer(name: str):
    entry = catalog.entry(name)
    if catalog.cached(name) is None and entry.terms and os.environ.get(entry.terms.variable) != "1":
        pytest.skip(f"{name} is not cached, and {entry.terms.variable}=1 is not set")
    return load(name)


def continuation(model, tokenizer, text: str, tokens: int = 12) -> str:
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def loss(model, tokenizer, text: str) -> float:
    ids = tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        return model(ids, labels=ids).loss.item()


def test_smollm2_is_what_its_file_says() -> None:
    model, tokenizer = model_and_tokenizer("smollm2-135m")
    geometry = Geometry.of(model)
    assert (geometry.architecture, geometry.n_layers, geometry.hidden) == ("LlamaForCausalLM", 30, 576)
    assert {(at.heads, at.kv_heads, at.head_dim, at.neurons) for at in geometry.layers} == {(9, 3, 64, 1536)}
    assert model.config.rope_parameters["rope_theta"] == 100_000
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.tokenize("a  12") == ["a", "ĠĠ", "1", "2"]  # llama.cpp's "smollm" rule
    assert tokenizer("a").input_ids == tokenizer.convert_tokens_to_ids(["a"])  # no BOS
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\n")
    assert continuation(model, tokenizer, text, 8).startswith("The capital of France is Paris.")


# Gemma's terms are accepted by a person, not by a test run: `make test-slow` asks for TIMONEL_ACCEPT_GEMMA=1.
@pytest.mark.slow
def test_gemma3_is_what_its_file_says() -> None:
    model, tokenizer = model_and_tokenizer("gemma3-270m")
    geometry = Geometry.of(model)
    assert (geometry.architecture, geometry.n_layers, geometry.hidden) == ("Gemma3ForCausalLM", 18, 640)
    assert {(at.heads, at.kv_heads, at.head_dim, at.neurons) for at in geometry.layers} == {(4, 1, 256, 2048)}
    assert [at for at, layer in enumerate(geometry.layers) if layer.window is None] == [5, 11, 17]
    assert {layer.window for layer in geometry.layers} == {512, None}
    rope = model.config.rope_parameters
    assert rope["full_attention"]["rope_theta"] == 1_000_000
    assert rope["sliding_attention"]["rope_theta"] == 10_000  # not in the file: Gemma 3's own
    assert model.config.query_pre_attn_scalar == 256
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  b\n\nc").input_ids) == [
        "<bos>",
        "a",
        "▁▁",
        "b",
        "\n\n",
        "c",
    ]
    english = "Paris is the capital and largest city of France, located on the river Seine."
    german = "London ist die Hauptstadt und größte Stadt des Vereinigten Königreichs."
    assert loss(model, tokenizer, english) < 2.5  # wrong norms or rotary bases give 8 and more
    assert loss(model, tokenizer, german) < 4


@pytest.mark.parametrize("name", ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def test_bytes_and_fingerprint(name: str) -> None:
    model, tokenizer = model_and_tokenizer(name)
    folder = catalog.cached(name, deep=True)
    assert isinstance(folder, Path)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "float32"
    # Made by this code; a plan for a catalog model carries it.
    assert (
        fingerprint(model, tokenizer)
        == {
            "smollm2-135m": "3847fc9244c565363998c5e98154e673135d8720ec850ff8798a7499f76a2835",
            "gemma3-270m": "ed36bc0371e165eac0bb8467774c022c3b596a21743b613e66619979453ad3bf",
        }[name]
    )
    assert fingerprint(*load(name, dtype="bfloat16")) == fingerprint(model, tokenizer)

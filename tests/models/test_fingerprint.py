import math
import os
from pathlib import Path

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from transformers import AutoModelForCausalLM

from timonel.errors import InputError
from timonel.models import Geometry, fingerprint, load
from timonel.models.fingerprint import _sample
from tiny import ARCHITECTURES, tiny, tiny_folder, word_tokenizer

TOKENIZER = word_tokenizer()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_wider_and_narrower_dtypes_agree(architecture: str) -> None:
    prints = {
        fingerprint(tiny(architecture, dtype=dtype), TOKENIZER)
        for dtype in (torch.float32, torch.float64, torch.bfloat16)
    }
    assert len(prints) == 1
    assert len(prints.pop()) == 64


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_float16_agrees_where_the_checkpoint_holds_bf16_numbers(architecture: str) -> None:
    published = tiny(architecture, dtype=torch.bfloat16)
    with torch.no_grad():  # numbers that float16 keeps only in part, or not at all
        published.model.layers[0].mlp.down_proj.weight[0, :4] = torch.tensor([1e-6, 3e-8, 6.1e-5, 5.9e-5])
    wanted = fingerprint(published, TOKENIZER)
    assert fingerprint(published.half(), TOKENIZER) == wanted


def test_seeds_architectures_and_tokenizers_differ() -> None:
    models = [tiny(a, seed) for a in ("llama", "gemma3", "qwen3") for seed in (0, 1)]
    prints = {fingerprint(m, t) for m in models for t in (TOKENIZER, word_tokenizer(bos=False))}
    assert len(prints) == 12


def test_saving_sharding_and_loading_change_nothing(tmp_path: Path) -> None:
    model = tiny("gemma3")
    wanted = fingerprint(model, TOKENIZER)
    tiny_folder(tmp_path / "whole", "gemma3")
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 2
    for name in ("float32", "bfloat16"):
        assert fingerprint(*load(tmp_path / "whole", dtype=name)) == wanted
    sharded = AutoModelForCausalLM.from_pretrained(tmp_path / "shards")
    assert fingerprint(sharded, load(tmp_path / "whole")[1]) == wanted


def test_tied_weights_count_once_even_where_they_are_two_tensors() -> None:
    tied = tiny("qwen2")
    wanted = fingerprint(tied, TOKENIZER)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    tied.lm_head.weight = torch.nn.Parameter(tied.lm_head.weight.detach().clone())
    assert fingerprint(tied, TOKENIZER) == wanted
    with torch.no_grad():
        tied.lm_head.weight[0] += 1
    assert fingerprint(tied, TOKENIZER) != wanted


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folded_head_or_neuron_shows(architecture: str) -> None:
    """Each single head and each single neuron: an even stride of 256 would see a few columns only."""
    model = tiny(architecture, hidden_size=64, intermediate_size=128)
    wanted = fingerprint(model, TOKENIZER)
    layer = Geometry.of(model).layers[1]
    sites = [(layer.o_proj, slice(h * layer.head_dim, (h + 1) * layer.head_dim)) for h in range(layer.heads)]
    sites += [(layer.down_proj, slice(n, n + 1)) for n in range(0, layer.neurons, 13)]
    for name, channels in sites:
        weight = model.get_submodule(name).weight
        kept = weight.detach().clone()
        with torch.no_grad():
            weight[:, channels] *= 1.5
        assert fingerprint(model, TOKENIZER) != wanted, (name, channels)
        with torch.no_grad():
            weight.copy_(kept)
    assert fingerprint(model, TOKENIZER) == wanted


def test_padding_truncation_and_compiling_do_not_enter() -> None:
    model, tokenizer = tiny("llama"), word_tokenizer()
    wanted = fingerprint(model, tokenizer)
    tokenizer(["a kimono", "tea"], padding=True, truncation=True, max_length=3)
    tokenizer.padding_side = "right"
    tokenizer.model_max_length = 4
    assert fingerprint(torch.compile(model), tokenizer) == wanted


def test_two_tokenizers_with_one_vocabulary_differ_by_what_they_do() -> None:
    model, other = tiny("llama"), word_tokenizer()
    other.backend_tokenizer.normalizer = None  # blanks are no longer part of a word
    assert other.get_vocab() == TOKENIZER.get_vocab()
    assert fingerprint(model, other) != fingerprint(model, TOKENIZER)


def test_offloaded_weights_are_read_where_they_lie(tmp_path: Path) -> None:
    wanted = fingerprint(tiny("llama"), TOKENIZER)
    in_memory = cpu_offload(tiny("llama"), execution_device="cpu")
    assert next(in_memory.parameters()).is_meta
    assert fingerprint(in_memory, TOKENIZER) == wanted
    on_disk = tiny("llama")
    disk_offload(on_disk, os.fspath(tmp_path), execution_device="cpu")
    assert fingerprint(on_disk, TOKENIZER) == wanted


def test_a_model_without_values_is_refused() -> None:
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(tiny("llama").config)
    with pytest.raises(InputError, match="meta device and has no values"):
        fingerprint(empty, TOKENIZER)


class Letters:
    """A tokenizer of ASCII letters, small enough to be written down here."""

    def get_vocab(self) -> dict[str, int]:
        return {"a": 0, "b": 1}

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": [ord(c) % 2 for c in text if c.isascii()]}


def test_a_golden_value_guards_the_format() -> None:
    """A change here orphans every plan that was saved; the value is this code's own, when it was written."""
    model = torch.nn.Linear(40, 10)
    with torch.no_grad():
        model.weight.copy_(torch.arange(400.0).reshape(10, 40) / 64)
        model.bias.copy_(torch.arange(10.0))
    assert fingerprint(model, Letters()) == "2a3cbd71b72b81adf8de28fb3fd33173f82333b8aa388aa456b506912917796b"


def test_the_samples_are_those_of_a_naive_loop() -> None:
    weight = torch.randn(30, 50, generator=torch.Generator().manual_seed(0))
    module = torch.nn.Linear(50, 30, bias=False)
    module.weight = torch.nn.Parameter(weight)
    flat = [value for row in weight.tolist() for value in row]
    places = [math.floor(math.modf(i * 0.6180339887498949)[0] * 1500) for i in range(1, 257)]
    naive = torch.tensor([flat[place] for place in places] + flat[:50]).bfloat16()
    naive[naive.abs() < 2**-14] = 0
    assert torch.equal(_sample(module, "weight"), naive)

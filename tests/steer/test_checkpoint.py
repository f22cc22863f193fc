from __future__ import annotations

from typing import Any

import pytest
import torch

from timonel.models import fingerprint
from timonel.steer.checkpoint import BosPolicy, Checkpoint, probe_ids
from tiny import WINDOW, tiny, word_tokenizer


def rows(architecture: str, **overrides: Any) -> dict[str, str]:
    return dict(Checkpoint.of(tiny(architecture, **overrides), word_tokenizer()).rows())


def test_the_facts_are_those_of_the_config() -> None:
    model, tokenizer = tiny("gemma2"), word_tokenizer(chat=True)
    found = Checkpoint.of(model, tokenizer)
    assert (found.layers, found.hidden, found.vocabulary) == (4, 32, 200)
    assert (found.heads, found.kv_heads, found.group) == ((4,) * 4, (2,) * 4, (2,) * 4)
    assert (found.head_dim, found.neurons) == ((16,) * 4, (48,) * 4)
    assert (found.softcap, found.final_softcap) == (5.0, 30.0)
    assert found.windows == (WINDOW, None, WINDOW, None)
    assert (found.attention, found.quantisation, found.dtype, found.device) == ("eager", None, "float32", "cpu")
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert found.fingerprint == fingerprint(model, tokenizer)
    assert found.chat_template


def test_the_facts_in_words() -> None:
    assert rows("gemma2")["soft cap"] == "5 on scores, 30 on logits"
    assert rows("gemma2")["windows"] == "2 of 4 layers see 8 keys"
    assert rows("llama")["windows"] == "none: every layer sees all keys"
    assert rows("qwen3")["head_dim"] == "16"
    assert rows("gemma3")["query / kv heads"] == "4 / 1 (group 4)"
    assert rows("llama", dtype=torch.bfloat16)["dtype, device"] == "bfloat16, cpu"
    assert rows("llama", attn_implementation="eager")["attention"] == "eager"
    assert rows("llama")["attention"] == "sdpa"


class Int8Linear(torch.nn.Module):
    """What a quantised layer looks like from outside."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        scale = linear.weight.detach().abs().max() / 127
        self.register_buffer("weight", (linear.weight / scale).round().to(torch.int8))
        self.scale = float(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.to(x.dtype) * self.scale).T


def test_quantised_linears_are_named_and_hooks_work_on_them() -> None:
    """T32."""
    from timonel.steer.examine import examine, verdict

    model: Any = tiny("llama")
    for layer in model.model.layers:
        layer.mlp.down_proj = Int8Linear(layer.mlp.down_proj)
        layer.self_attn.o_proj = Int8Linear(layer.self_attn.o_proj)
    found = Checkpoint.of(model, word_tokenizer())
    assert found.quantisation == "Int8Linear"
    assert dict(found.rows())["quantisation"] == "Int8Linear: hooks work, folding into weights will not"
    assert verdict(examine(model, probe_ids(word_tokenizer()))) == "ready"


@pytest.mark.parametrize(
    ("bos", "chat", "expected"),
    [
        (True, False, BosPolicy("<bos>", True, None, 1, None)),
        (True, True, BosPolicy("<bos>", True, True, 1, 1)),
        (False, False, BosPolicy("<bos>", False, None, 0, None)),
        (False, True, BosPolicy("<bos>", False, True, 0, 1)),
    ],
)
def test_who_writes_the_bos(bos: bool, chat: bool, expected: BosPolicy) -> None:
    """T34, T35."""
    assert BosPolicy.of(word_tokenizer(bos=bos, chat=chat)) == expected


def test_a_template_without_bos_is_told() -> None:
    tokenizer = word_tokenizer(chat=True)
    tokenizer.chat_template = tokenizer.chat_template.replace("{{ bos_token }}", "")
    found = BosPolicy.of(tokenizer)
    assert (found.template_has, found.plain, found.chat) == (False, 1, 0)
    assert found.problem == "the tokenizer begins plain texts with <bos>, but its chat template writes none"


def test_two_bos_are_told() -> None:
    tokenizer = word_tokenizer(chat=True)
    tokenizer.chat_template = "{{ bos_token }}" + tokenizer.chat_template
    found = BosPolicy.of(tokenizer)
    assert found.chat is None
    assert "BOS" in found.problem


def test_a_tokenizer_without_bos() -> None:
    tokenizer = word_tokenizer(bos=False)
    tokenizer.bos_token = None
    assert str(BosPolicy.of(tokenizer)) == "the tokenizer has none"

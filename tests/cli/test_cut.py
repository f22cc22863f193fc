from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from oracles.attention import Edge, eager_twin, naive_edges
from timonel.models import load
from timonel.prompts import Prompt

Timonel = Callable[..., Any]
TEXT = "the man is [[to:a kimono]] and the [[from:Japanese]] [[from:tea]] is"


def log_p(model: Any, prompt: Prompt, edges: list[Edge], answer: list[int]) -> float:
    ids = [*prompt.ids, *answer]
    twin = eager_twin(model)
    with torch.no_grad(), naive_edges(twin, edges, own=False):
        rows = twin(torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)
    return float(sum(rows[at - 1, ids[at]] for at in range(len(prompt), len(ids))))


@pytest.mark.parametrize("alpha", [0.0, 2.0])
def test_cuts_equal_a_naive_attention(timonel: Timonel, tiny_model: Path, alpha: float) -> None:
    model, tokenizer = load(tiny_model)
    prompt = Prompt.parse(tokenizer, TEXT)
    said = timonel("cut", tiny_model, TEXT, "--answer", " good", "--answer", " bad", "--alpha", alpha, "--json")
    assert (said.code, said.err) == (0, "")
    heads = [(layer, head) for layer in range(3) for head in range(4)]
    wanted = {f"L{layer}H{head}": [(layer, head)] for layer, head in heads} | {"all heads": heads}
    assert len(said.json) == 2 * len(wanted)
    assert {row["heads"] for row in said.json[:2]} == {"all heads"}
    for answer in (" good", " bad"):
        ids = tokenizer(answer, add_special_tokens=False).input_ids
        rows = [row for row in said.json if row["answer"] == answer]
        assert {row["heads"] for row in rows} == set(wanted)
        plain = log_p(model, prompt, [], ids)
        for row in rows:
            edges = [
                Edge(layer, 0, head, prompt.spans["from"], prompt.spans["to"], alpha)
                for layer, head in wanted[row["heads"]]
            ]
            assert row["log_p"] == pytest.approx(plain, abs=2e-4)
            assert row["log_p_cut"] == pytest.approx(log_p(model, prompt, edges, ids), abs=2e-4)
            assert row["change"] == pytest.approx(row["log_p_cut"] - row["log_p"], abs=1e-9)
    sizes = [abs(row["change"]) for row in said.json[2:]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 1e-3


def test_without_an_answer_the_likeliest_token_is_watched(timonel: Timonel, tiny_model: Path) -> None:
    model, tokenizer = load(tiny_model)
    ids = Prompt.parse(tokenizer, TEXT).ids
    with torch.no_grad():
        best = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1).max(-1)
    said = timonel("cut", tiny_model, TEXT, "--json", "--heads", "L1H2")
    assert {row["answer"] for row in said.json} == {tokenizer.decode([int(best.indices)])}
    assert said.json[0]["log_p"] == pytest.approx(float(best.values), abs=2e-4)
    assert [row["heads"] for row in said.json] == ["these 1 together", "L1H2"]


def test_the_spans_can_be_seen(timonel: Timonel, tiny_model: Path) -> None:
    said = timonel("cut", tiny_model, TEXT, "--show-spans", "--top", 3)
    assert (said.code, said.err) == (0, "")
    lines = said.out.splitlines()
    assert [line.split("'")[1] for line in lines if line.endswith("<- to")] == [" a", " kimono"]
    assert [line.split("'")[1] for line in lines if line.endswith("<- from")] == [" Japanese", " tea"]
    assert "all heads" in said.out
    assert sum(line.strip().startswith("L") for line in lines) == 3


def test_in_the_chat_template(timonel: Timonel, chat_model: Path) -> None:
    said = timonel("cut", chat_model, TEXT, "--chat", "--answer", "good", "--heads", "L0H0,L2H3")
    assert said.code == 0
    assert "these 2 together" in said.out

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from timonel.engine import score
from timonel.models import load
from timonel.prompts import Prompt, letter_tokens
from timonel.steer import EdgeScale, Plan, span

Timonel = Callable[..., Any]
LINES = [
    {"prompt": "Who wears [[item:a kimono]]? Answer:", "answers": [" the Japanese man", " the French man"]},
    {"prompt": "A B or C"},
    {"prompt": "the tea", "answers": [" is good"], "chat": True},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n\n".join(map(json.dumps, LINES)))
    return file


def by_hand(model: Any, tokenizer: Any) -> list[tuple[int, str, float]]:
    def log_softmax(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].double().log_softmax(-1)

    def continued(text: str, answer: str, **options: Any) -> float:
        start, ids = (len(tokenizer(text, **options).input_ids), tokenizer(text + answer, **options).input_ids)
        rows = log_softmax(ids)
        return float(sum(rows[at - 1, ids[at]] for at in range(start, len(ids))))

    rows: list[tuple[int, str, float]] = []
    for answer in (" the Japanese man", " the French man"):
        rows.append((0, answer, continued("Who wears a kimono? Answer:", answer)))
    last = log_softmax(tokenizer("A B or C").input_ids)[-1]
    rows += [(1, letter, float(last[list(ids)].logsumexp(0))) for letter, ids in letter_tokens(tokenizer).items()]
    turn = "<bos><|user|>\nthe tea<eos>\n<|assistant|>\n"
    return [*rows, (2, " is good", continued(turn, " is good", add_special_tokens=False))]


def test_scores_equal_a_plain_loop(timonel: Timonel, chat_model: Path, prompts: Path, tmp_path: Path) -> None:
    said = timonel("score", chat_model, prompts, "--json", "--out", tmp_path / "table.csv")
    assert (said.code, said.err) == (0, "")
    expected = by_hand(*load(chat_model))
    assert [(row["prompt"], row["answer"]) for row in said.json] == [(number, answer) for number, answer, _ in expected]
    assert [row["log_p"] for row in said.json] == pytest.approx([value for *_, value in expected], abs=2e-4)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "table.csv"), pd.DataFrame(said.json), atol=1e-12)


def test_a_table_for_people(timonel: Timonel, chat_model: Path, prompts: Path, tmp_path: Path) -> None:
    said = timonel("score", chat_model, prompts, "--limit", 1, "--out", tmp_path / "table.parquet")
    assert said.code == 0
    assert " the Japanese man" in said.out
    assert "log_p" in said.out
    assert len(pd.read_parquet(tmp_path / "table.parquet")) == 2


def test_texts_are_shown_as_they_are(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    """A terminal library's markup and emoji codes are text to us."""
    file = tmp_path / "prompts.jsonl"
    answers = ["[red]", "[/b]", ":tea:", "[bold]x[/]"]
    file.write_text(json.dumps({"prompt": "[/i] the tea", "answers": answers}))
    said = timonel("score", tiny_model, file)
    assert said.code == 0
    for answer in answers:
        assert answer in said.out


def test_a_plan_beside_the_model(timonel: Timonel, chat_model: Path, prompts: Path, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    model, tokenizer = load(chat_model)
    plan = Plan((EdgeScale(layer=1, head=2, queries=span("person"), keys=span("item"), alpha=0.0),))
    plan.save(file, model=model, tokenizer=tokenizer)
    marked = tmp_path / "marked.jsonl"
    text = "[[item:a kimono]] fits [[person:the French man]]"
    marked.write_text(json.dumps({"prompt": text, "answers": [" is good"]}))
    said = timonel("score", chat_model, marked, "--plan", file, "--json", "--explain")
    assert said.code == 0
    assert "one prompt at a time" in said.err
    (row,) = said.json
    assert row["change"] == pytest.approx(row["log_p_steered"] - row["log_p"])
    prompt = Prompt.parse(tokenizer, text)
    by_hand = score(model, tokenizer, [prompt], plans=[Plan(), plan], answers=[" is good"])["log_p"]
    assert [row["log_p"], row["log_p_steered"]] == pytest.approx(list(by_hand), abs=1e-6)
    assert abs(row["change"]) > 1e-5
    assert timonel("score", chat_model, prompts, "--entry", "ur").code == 2


@pytest.mark.slow
def test_ray_alone_starts_a_cluster_here(timonel: Timonel, chat_model: Path, prompts: Path) -> None:
    ray = pytest.importorskip("ray")
    plain = timonel("score", chat_model, prompts, "--json").json
    spread = timonel("score", chat_model, prompts, "--json", "--ray", "--workers", 1)
    ray.shutdown()
    assert spread.code == 0
    assert [one["log_p"] for one in spread.json] == pytest.approx([one["log_p"] for one in plain], abs=1e-5)
    assert timonel("score", chat_model, prompts, "--workers", 2).code == 2
    missing = timonel("score", chat_model, prompts, "--ray", "10.255.255.1:1", "--workers", 1)
    assert missing.code == 2
    assert "No Ray cluster answers" in missing.err

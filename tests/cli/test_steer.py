from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from timonel.cli import steer as command
from timonel.models import Geometry, load
from timonel.steer import ChannelScale, EdgeScale, Plan, PlanSet, span
from timonel.steer.compare import Writing, compare, prompt_of
from tiny import tiny_folder

Timonel = Callable[..., Any]
TEXT = "who should avoid wearing a kimono in the best tea"
EIGHT = ("--tokens", 8)


@pytest.fixture(scope="module")
def edges(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan that names spans, in a file for the tiny model."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    places = [(layer, head) for layer in range(3) for head in range(4)]
    plan = Plan(
        tuple(EdgeScale(layer=at, head=head, queries=span("to"), keys=span("item"), alpha=0.0) for at, head in places)
    )
    model, tokenizer = load(tiny_model)
    plan.save(path, model=model, tokenizer=tokenizer)
    return path


@pytest.fixture(scope="module")
def loud(tiny_model: Path) -> Plan:
    return Plan((ChannelScale.head(Geometry.of(load(tiny_model)[0]), layer=1, head=2, alpha=4.0),))


def expected(folder: Path, plan: Plan, text: str, **writing: Any) -> Any:
    model, tokenizer = load(folder)
    return compare(model, tokenizer, plan, prompt_of(tokenizer, text), Writing(**{"tokens": 8, **writing}))


def test_a_head_without_a_file(timonel: Timonel, tiny_model: Path, loud: Plan) -> None:
    said = timonel("steer", tiny_model, "--head", "L1H2=4", *EIGHT, TEXT)
    assert (said.code, said.err) == (0, "")
    found = expected(tiny_model, loud, TEXT)
    before, baseline, steered = said.out.replace("--- steered\n", "--- baseline\n").split("--- baseline\n")
    assert before == ""
    assert baseline == found.baseline_text + "\n"
    assert steered == f"{found.steered_text}\nThey part at new token {found.parted + 1}.\n"
    same = timonel("steer", tiny_model, "--head", "1.2=1", *EIGHT, TEXT)
    assert same.out.endswith("The texts are the same.\n")


def test_as_json_and_sampled(timonel: Timonel, tiny_model: Path, loud: Plan) -> None:
    options = ("--sample", "--temperature", 0.7, "--seed", 5, "--json")
    said = timonel("steer", tiny_model, "--head", "L1H2=4", *EIGHT, *options, TEXT)
    found = expected(tiny_model, loud, TEXT, sample=True, temperature=0.7, seed=5)
    assert said.json["baseline"] == list(found.baseline)
    assert said.json["steered_text"] == found.steered_text
    assert said.json["parted"] == found.parted
    assert found.baseline != expected(tiny_model, loud, TEXT).baseline


def test_a_plan_with_spans(timonel: Timonel, tiny_model: Path, edges: Path) -> None:
    by_mark = timonel("steer", tiny_model, "--plan", edges, *EIGHT, "--json", "eat a [[item:Feng Shui]] in[[to: tea]]")
    by_part = timonel(
        "steer", tiny_model, "--plan", edges, *EIGHT, "--json", "--span", "item=Feng Shui", "--span", "to= tea",
        "eat a Feng Shui in tea",
    )  # fmt: skip
    assert by_mark.code == by_part.code == 0
    assert by_mark.json == by_part.json
    assert by_mark.json["parted"] is not None
    missing = timonel("steer", tiny_model, "--plan", edges, "--span", "item=Feng", "--span", "to=Tee", "eat Feng")
    assert missing.code == 2
    assert "'Tee'" in missing.sentence
    assert "'eat Feng'" in missing.sentence
    unbound = timonel("steer", tiny_model, "--plan", edges, "eat tea")
    assert unbound.code == 2
    assert "mark it in the text as [[to:…]]" in unbound.sentence


def test_plan_and_heads_add_up(timonel: Timonel, tiny_model: Path, edges: Path, loud: Plan) -> None:
    text = "eat a [[item:Feng Shui]] in[[to: tea]]"
    said = timonel("steer", tiny_model, "--plan", edges, "--head", "L1H2=4", *EIGHT, "--json", text)
    both = expected(tiny_model, Plan((*Plan.load(edges), *loud)), text)
    assert said.json["steered"] == list(both.steered)


def test_one_entry_of_a_set(timonel: Timonel, tiny_model: Path, loud: Plan, tmp_path: Path) -> None:
    model, tokenizer = load(tiny_model)
    path = tmp_path / "set.json"
    PlanSet({"ur": loud, "es": Plan()}).save(path, model=model, tokenizer=tokenizer)
    found = {
        name: timonel("steer", tiny_model, "--plan", path, "--entry", name, *EIGHT, "--json", TEXT).json
        for name in ("ur", "es")
    }
    assert found["ur"]["steered"] == list(expected(tiny_model, loud, TEXT).steered)
    assert found["es"]["parted"] is None
    unknown = timonel("steer", tiny_model, "--plan", path, "--entry", "xx", TEXT)
    assert unknown.code == 2
    assert "ur" in unknown.sentence


def test_a_plan_for_another_model_is_refused_with_both_fingerprints(
    timonel: Timonel, edges: Path, tmp_path: Path
) -> None:
    """T41."""
    said = timonel("steer", tiny_folder(tmp_path / "other", seed=7), "--plan", edges, TEXT)
    assert said.code == 2
    assert len([word for word in said.sentence.replace(",", " ").split() if len(word) == 64]) == 2


def test_chat_is_the_default_where_there_is_a_template(timonel: Timonel, chat_model: Path, tiny_model: Path) -> None:
    def read(folder: Path, *options: str) -> Any:
        return timonel("steer", folder, "--head", "L1H2=4", "--tokens", 1, "--json", *options, "a kimono")

    assert read(chat_model).json["prompt"] == "<bos><|user|>\na kimono<eos>\n<|assistant|>\n"
    assert read(chat_model, "--no-chat").json["prompt"] == "a kimono"
    assert read(tiny_model).json["prompt"] == "a kimono"
    assert "no chat template" in read(tiny_model, "--chat").sentence


def test_prompts_from_a_pipe_until_an_empty_line(
    timonel: Timonel, tiny_model: Path, loud: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXT}\na [[item:\na kimono\n\nnot read\n"))
    said = timonel("steer", tiny_model, "--head", "L1H2=4", *EIGHT, "--interactive")
    assert said.code == 0
    assert "never closed" in said.sentence  # and the loop goes on
    assert said.out.count("--- steered\n") == 2
    assert expected(tiny_model, loud, "a kimono").steered_text in said.out
    monkeypatch.setattr("sys.stdin", io.StringIO("a kimono"))  # no newline at the end
    said = timonel("steer", tiny_model, "--head", "L1H2=4", *EIGHT, "--interactive", "--json", TEXT)
    decoder, texts, rest = json.JSONDecoder(), [], said.out
    while rest.strip():
        one, end = decoder.raw_decode(rest)
        texts.append(one["prompt"])
        rest = rest[end:].lstrip()
    assert texts == [TEXT, "a kimono"]


def test_side_by_side_on_a_wide_terminal(
    timonel: Timonel, tiny_model: Path, loud: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = expected(tiny_model, loud, TEXT, tokens=3)
    for width, beside in ((command.WIDE, True), (command.WIDE - 1, False)):
        monkeypatch.setattr(command, "get_terminal_size", lambda width=width: os.terminal_size((width, 24)))
        monkeypatch.setattr(command, "_on_terminal", lambda: True)
        said = timonel("steer", tiny_model, "--head", "L1H2=4", "--tokens", 3, TEXT)
        (line,) = [line for line in said.out.splitlines() if found.steered_text.strip() in line]
        assert (found.baseline_text.strip() in line) == beside
        assert ("--- baseline" in said.out) != beside


def test_what_is_refused_before_a_model_is_loaded(timonel: Timonel, tiny_model: Path) -> None:
    assert "--head L8H2=2.5" in timonel("steer", "absent", TEXT).sentence
    assert "--interactive" in timonel("steer", "absent", "--head", "L1H2=4").sentence
    assert "item='Feng Shui'" in timonel("steer", "absent", "--head", "L1H2=4", "--span", "item", TEXT).sentence
    assert "--tokens is 0" in timonel("steer", "absent", "--head", "L1H2=4", "--tokens", 0, TEXT).sentence
    assert "--plan FILE" in timonel("steer", tiny_model, "--head", "L1H2=4", "--entry", "ur", TEXT).sentence
    assert "L1H9 does not exist" in timonel("steer", tiny_model, "--head", "L1H9=4", TEXT).sentence
    assert timonel("steer", tiny_model, "--plan", "absent.json", TEXT).code == 2

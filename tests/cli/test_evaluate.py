from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from timonel.evaluate import edge_plan, head_plan
from timonel.evaluate.culture import culture_task
from timonel.evaluate.generate import generate
from timonel.models import Geometry, load
from timonel.steer import EdgeScale, Plan, PlanSet, span

Timonel = Callable[..., Any]
SMALL = ("--limit", 5)
EVERY = [(layer, head) for layer in range(3) for head in range(4)]


def tables(run: Path) -> dict[str, pd.DataFrame]:
    return {file.stem: pd.read_parquet(file) for file in sorted((run / "tables").glob("*.parquet"))}


def record(run: Path) -> Any:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """An edge and a head, so that every guard has something to say."""
    model, tokenizer = load(tiny_model)
    plan = Plan((*edge_plan(EVERY, 20.0), *head_plan(Geometry.of(model), [(0, 1)], 3.0)))
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    plan.save(path, model=model, tokenizer=tokenizer)
    return path


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, plan_file: Path) -> Path:
    from timonel.cli.main import run

    out = tmp_path_factory.mktemp("runs") / "done"
    arguments = ["evaluate", tiny_model, *SMALL, "--plan", plan_file, "--rivals", "--out", out]
    assert run([str(one) for one in arguments]) == 0
    return out


def test_a_baseline_alone(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = timonel("evaluate", tiny_model, *SMALL, "--out", out)
    assert (said.code, said.complaints) == (0, [])
    for words in ("diff_aware", "ctxt_aware (misses wrong)", "On 10 questions of 5 scenarios", str(out)):
        assert words in said.out
    found = tables(out)
    assert set(found) == {"evaluate_culture", "evaluate_culture_scenarios", "evaluate_culture_answers"}
    model, tokenizer = load(tiny_model)
    from timonel.engine import Engine

    prompts = culture_task(limit=5).prompts(tokenizer, "base")
    texts = [one.text for one in generate(Engine(model, tokenizer), tokenizer, prompts)]
    assert found["evaluate_culture_answers"]["text"].tolist() == texts
    kept = record(out)
    assert (kept["state"], kept["command"], kept["wrap"]) == ("complete", "evaluate", "base")
    assert kept["identity"]["data"] == "culture"
    assert kept["identity"]["language"] == "en"


def test_a_plan_beside_it(timonel: Timonel, tiny_model: Path, plan_file: Path, done: Path) -> None:
    found = tables(done)
    rows = found["evaluate_culture"]
    assert rows["condition"].unique().tolist() == ["baseline", "steered", "prompt"]
    # No gain without its price beside it.
    for name in ("steered", "prompt"):
        metrics = rows[(rows["condition"] == name) & (rows["against"] == "baseline")]
        assert {"diff_aware", "ctxt_aware"} <= set(metrics["metric"])
        assert metrics["unpaired_low"].notna().any()
    answers = found["evaluate_culture_answers"]
    texts = answers.groupby("condition")["text"].agg(list)
    assert texts["baseline"] != texts["steered"]
    assert texts["baseline"] != texts["prompt"]
    guard = found["evaluate_fluency"]
    assert guard["condition"].unique().tolist() == ["steered"]
    assert guard["acts"].all()
    before = record(done)["forwards"]
    said = timonel("evaluate", tiny_model, *SMALL, "--plan", plan_file, "--rivals", "--out", done, "--json")
    assert (said.code, said.complaints) == (0, [])
    assert record(done)["forwards"] == before
    found_json = said.json
    assert set(found_json) == {"run", "wrap", "tasks", "fluency", "conclusions"}
    assert len(found_json["tasks"]["culture"]) == len(rows)
    assert found_json["conclusions"] == record(done)["conclusions"]
    assert any(
        "Under steered, DiffAware moves by" in one and "CtxtAware by" in one for one in found_json["conclusions"]
    )
    assert any("perplexity of plain text" in one for one in found_json["conclusions"])
    for name, table in tables(done).items():
        pd.testing.assert_frame_equal(table, found[name], check_exact=True)


def test_one_plan_of_a_set(timonel: Timonel, tiny_model: Path, tmp_path: Path, done: Path) -> None:
    model, tokenizer = load(tiny_model)
    path = tmp_path / "set.json"
    PlanSet({"ur": edge_plan(EVERY, 20.0), "sw": Plan()}).save(path, model=model, tokenizer=tokenizer)
    said = timonel("evaluate", tiny_model, *SMALL, "--plan", path, "--entry", "sw", "--out", tmp_path / "sw", "--json")
    assert said.code == 0
    moves = [row for row in said.json["tasks"]["culture"] if row["against"] and row["value"] is not None]
    assert moves
    assert {row["value"] for row in moves} == {0.0}
    said = timonel("evaluate", tiny_model, *SMALL, "--plan", path, "--entry", "ur", "--out", tmp_path / "ur")
    assert said.code == 0
    assert "no part of the plan acts where no span is named" in said.out
    said = timonel("evaluate", tiny_model, *SMALL, "--plan", path, "--entry", "xx", "--out", tmp_path / "no")
    assert said.code == 2
    assert "name one of sw, ur" in said.sentence


def test_n4_and_culture_in_one_run(timonel: Timonel, chat_model: Path, tmp_path: Path, data_dir: Path) -> None:
    tasks = f"n4:{data_dir / 'n4' / 'N4_1k.pkl'},culture"
    said = timonel("evaluate", chat_model, "--tasks", tasks, "--limit", 3, "--out", tmp_path / "run", "--json")
    assert (said.code, said.complaints) == (0, [])
    assert set(said.json["tasks"]) == {"n4", "culture"}
    assert said.json["wrap"] == "instruct"
    assert {name for name in tables(tmp_path / "run") if name.endswith("_answers")} == {
        "evaluate_n4_answers",
        "evaluate_culture_answers",
    }


def test_a_dry_run_writes_nothing(timonel: Timonel, tiny_model: Path, plan_file: Path, tmp_path: Path) -> None:
    said = timonel("evaluate", tiny_model, *SMALL, "--plan", plan_file, "--out", tmp_path / "run", "--dry-run")
    assert (said.code, said.complaints) == (0, [])
    assert "culture: 10 questions under baseline, steered: 20 answers of up to 5 tokens" in said.out
    assert "tokens a second" in said.out
    assert list(tmp_path.iterdir()) == []


def test_sizes(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    assert "264 questions" in timonel("evaluate", tiny_model, "--out", tmp_path / "run", "--dry-run").out
    said = timonel("evaluate", tiny_model, "--out", tmp_path / "run", "--full", "--dry-run")
    assert f"culture: {len(culture_task().questions)} questions" in said.out


def test_the_same_run_again_from_its_record(timonel: Timonel, done: Path, tmp_path: Path) -> None:
    assert timonel("evaluate", "--config", done / "run.json", "--out", tmp_path / "again").code == 0
    for name, table in tables(tmp_path / "again").items():
        pd.testing.assert_frame_equal(table, tables(done)[name], check_exact=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tasks", "xnli:x"], "tasks are culture and n4:PATH"),
        (["--tasks", "n4"], "tasks are culture and n4:PATH"),
        (["--tasks", "culture,culture"], "names culture twice"),
        (["--tasks", "n4:nowhere.pkl"], "nowhere.pkl"),
        (["--tasks", "n4:x", "--lang", "es"], "N4 is in English"),
        (["--lang", "xx"], "none in 'xx'"),
        (["--wrap", "chat"], "instruct or base"),
        (["--wrap", "instruct"], "no chat template"),
        (["--limit", "3", "--full"], "give one of the two"),
        (["--entry", "ur"], "give --plan FILE"),
        (["--plan", "nowhere.json"], "nowhere.json"),
    ],
)
def test_refusals(timonel: Timonel, tiny_model: Path, tmp_path: Path, options: list[str], words: str) -> None:
    said = timonel("evaluate", tiny_model, *options, "--out", tmp_path / "run")
    assert said.code == 2
    assert words in said.sentence


def test_plans_that_have_no_place_here(
    timonel: Timonel, tiny_model: Path, chat_model: Path, plan_file: Path, tmp_path: Path
) -> None:
    said = timonel("evaluate", chat_model, *SMALL, "--plan", plan_file, "--out", tmp_path / "run")
    assert said.code == 2
    assert "fingerprint" in said.sentence
    model, tokenizer = load(tiny_model)
    edge = EdgeScale(layer=0, head=0, queries=span("nowhere"), keys=span("item"), alpha=0.0)
    Plan((edge,)).save(tmp_path / "other.json", model=model, tokenizer=tokenizer)
    said = timonel("evaluate", tiny_model, *SMALL, "--plan", tmp_path / "other.json", "--out", tmp_path / "run")
    assert said.code == 2
    assert "span 'nowhere', but the questions have identity, item, other, related, varied" in said.sentence
    assert not (tmp_path / "run").exists()


def test_another_study_in_the_same_folder(timonel: Timonel, tiny_model: Path, chat_model: Path, done: Path) -> None:
    before = (done / "run.json").read_bytes()
    for arguments in (("evaluate", chat_model, *SMALL), ("evaluate", tiny_model, *SMALL, "--lang", "es")):
        said = timonel(*arguments, "--out", done)
        assert said.code == 2
        assert "choose another --out" in said.sentence
    assert (done / "run.json").read_bytes() == before

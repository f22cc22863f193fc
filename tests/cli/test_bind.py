from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from timonel.binding import study
from timonel.binding.sampling import sample
from timonel.binding.sources import read_pairs
from timonel.models import load

Timonel = Callable[..., Any]
SMALL = ("--pairs", 6, "--heads", "L1H2,L2H0")


def tables(run: Path) -> dict[str, pd.DataFrame]:
    return {file.stem: pd.read_parquet(file) for file in sorted((run / "tables").glob("*.parquet"))}


def record(run: Path) -> Any:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A small study, once."""
    from timonel.cli.main import run

    out = tmp_path_factory.mktemp("runs") / "done"
    assert run(["bind", str(tiny_model), *map(str, SMALL), "--out", str(out)]) == 0
    return out


def test_a_study_end_to_end(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = timonel("bind", tiny_model, *SMALL, "--out", out)
    assert (said.code, said.complaints) == (0, [])
    for words in ("ΔS (decision)", "ΔK (knowledge)", "related identity -> item", "L1H2,L2H0", "cloze form", str(out)):
        assert words in said.out
    assert (
        len([line for line in said.out.splitlines() if line.startswith(("On 6 pairs of 6 items", "Cutting the"))]) == 2
    )
    # The tables are those of the study itself.
    model, tokenizer = load(tiny_model)
    pairs = sample(read_pairs("culture").pairs, 6, 0)
    expected = study(model, tokenizer, pairs, heads=[(1, 2), (2, 0)])
    found = tables(out)
    assert set(found) == set(expected.tables) == {"pairs", "baseline", "knockout"}
    for name, table in expected.tables.items():
        tests = [column for column in ("p", "q", "p_items") if column in table]
        pd.testing.assert_frame_equal(found[name].drop(columns=tests), table.drop(columns=tests), atol=1e-5, rtol=0)
        csv = pd.read_csv(out / "tables" / f"{name}.csv", keep_default_na=True)
        pd.testing.assert_frame_equal(csv, found[name], check_dtype=False, atol=1e-12)
    kept = record(out)
    assert (kept["state"], kept["command"], kept["model"]) == ("complete", "bind", str(tiny_model))
    assert kept["form"] == {"name": "cloze", "reason": expected.form_reason, "wrap": "base"}
    assert kept["forwards"] > 0
    assert kept["arguments"]["pairs"] == 6
    assert kept["identity"]["data"] == "culture"


def test_json_is_json_and_nothing_else(timonel: Timonel, tiny_model: Path, done: Path) -> None:
    said = timonel("bind", tiny_model, *SMALL, "--out", done, "--json")
    assert (said.code, said.complaints) == (0, [])
    found, kept = said.json, tables(done)
    assert set(found) >= {"run", "form", "wrap", "mass_median", "baseline", "knockout", "conclusions"}
    assert len(found["baseline"]) == len(kept["baseline"])
    for row, expected in zip(found["knockout"], kept["knockout"].to_dict("records"), strict=True):
        for name, value in expected.items():
            number = isinstance(value, float)
            assert (row[name] is None) if number and not np.isfinite(value) else row[name] == value
    assert found["conclusions"] == record(done)["conclusions"]


def test_a_finished_run_is_not_computed_again(timonel: Timonel, tiny_model: Path, done: Path) -> None:
    before, kept = record(done)["forwards"], tables(done)
    assert timonel("bind", tiny_model, *SMALL, "--out", done).code == 0
    assert record(done)["forwards"] == before
    for name, table in tables(done).items():
        pd.testing.assert_frame_equal(table, kept[name], check_exact=True)


@pytest.mark.parametrize("language", ["en", "es"])
def test_letters_with_a_chat_template(timonel: Timonel, chat_model: Path, tmp_path: Path, language: str) -> None:
    said = timonel(
        "bind", chat_model, "--pairs", 4, "--heads", "L0H1", "--form", "letters", "--lang", language,
        "--stages", "score", "--out", tmp_path / "run",
    )  # fmt: skip
    assert said.code == 0
    assert "letters form (instruct wrapping)" in said.out
    assert "letters' mass" in said.out
    assert "Cutting" not in said.out
    assert "Warning: the three letters together" in said.out  # a random model names none
    assert set(tables(tmp_path / "run")) == {"pairs", "baseline"}
    assert record(tmp_path / "run")["identity"]["language"] == language


def test_n4(timonel: Timonel, tiny_model: Path, tmp_path: Path, data_dir: Path) -> None:
    out = tmp_path / "run"
    said = timonel("bind", tiny_model, "--data", f"n4:{data_dir / 'n4' / 'N4_1k.pkl'}", *SMALL, "--out", out)
    assert (said.code, said.complaints) == (0, [])
    assert record(out)["identity"]["data"] == "n4"
    assert len(tables(out)["pairs"]) == 6


def test_a_dry_run_computes_no_tables_and_writes_nothing(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    said = timonel("bind", tiny_model, *SMALL, "--out", tmp_path / "run", "--dry-run")
    assert (said.code, said.complaints) == (0, [])
    # S and K of 6 pairs, two conditions, three texts each: as they are, and S under three cuts; a prior beside S and K.
    assert f"6 pairs in cloze form, stages score, knockout.\n{6 * 2 * 3 * (2 + 3 + 2)} scores" in said.out
    assert "tokens a second" in said.out
    assert list(tmp_path.iterdir()) == []


def test_options_from_a_file(timonel: Timonel, tiny_model: Path, done: Path, tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text(f"model: {tiny_model}\npairs: 6\nheads: L1H2,L2H0\nbatch-tokens: 512\njson: true\n")
    out = tmp_path / "run"
    said = timonel("bind", "--config", file, "--out", out)
    assert said.code == 0
    assert said.json["run"] == str(out)
    assert record(out)["arguments"]["batch_tokens"] == 512
    for name, table in tables(out).items():
        # Intervals and tests of six pairs magnify the last bits, in which another batch size differs.
        tests = [column for column in table if column in ("p", "q", "p_items") or column.endswith(("_low", "_high"))]
        pd.testing.assert_frame_equal(table.drop(columns=tests), tables(done)[name].drop(columns=tests), atol=1e-4)
    # The command line has the last word.
    assert timonel("bind", "--config", file, "--out", tmp_path / "other", "--pairs", 3).code == 0
    assert len(tables(tmp_path / "other")["pairs"]) == 3


def test_the_same_run_again_from_its_record(timonel: Timonel, done: Path, tmp_path: Path) -> None:
    out = tmp_path / "again"
    assert timonel("bind", "--config", done / "run.json", "--out", out).code == 0
    arguments = record(done)["arguments"]
    assert record(out)["arguments"] == {**arguments, "out": str(out)}
    for name, table in tables(out).items():
        pd.testing.assert_frame_equal(table, tables(done)[name], check_exact=True)
    before = record(done)["forwards"]
    assert timonel("bind", "--config", done / "run.json").code == 0  # in its own folder: nothing is left to do
    assert record(done)["forwards"] == before


@pytest.mark.parametrize("what", ["model", "data", "language"])
def test_another_study_in_the_same_folder(
    timonel: Timonel, tiny_model: Path, chat_model: Path, done: Path, what: str, tmp_path: Path, request: Any
) -> None:
    before = (done / "run.json").read_bytes()
    model = chat_model if what == "model" else tiny_model
    extra: list[object] = ["--lang", "es"] if what == "language" else []
    if what == "data":
        extra = ["--data", f"n4:{request.getfixturevalue('data_dir') / 'n4' / 'N4_1k.pkl'}"]
    said = timonel("bind", model, *SMALL, *extra, "--out", done)
    assert said.code == 2
    assert "choose another --out" in said.sentence
    assert (done / "run.json").read_bytes() == before


def test_more_heads_in_the_same_folder_keep_what_is_scored(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert timonel("bind", tiny_model, "--pairs", 3, "--heads", "L0H0", "--out", out).code == 0
    before = record(out)["forwards"]
    assert timonel("bind", tiny_model, "--pairs", 3, "--heads", "L0H0", "--out", out, "--seed", 0).code == 0
    assert record(out)["forwards"] == before
    assert timonel("bind", tiny_model, "--pairs", 3, "--heads", "L0H1", "--out", out).code == 0
    assert record(out)["forwards"] > before


def test_demo(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    said = timonel("demo", "--model", tiny_model, "--pairs", 4, "--out", tmp_path / "demo")
    assert (said.code, said.complaints) == (0, [])
    first, _, second = said.out.partition("2. A real model")
    assert "the method finds what is there, and nothing else" in first
    assert "ΔS" in second
    assert str(tmp_path / "demo") in second
    assert record(tmp_path / "demo")["state"] == "complete"
    # Its record is a study's: the same command on the same folder, or `bind`, goes on with it.
    assert timonel("bind", "--config", tmp_path / "demo" / "run.json").code == 0


def test_explain_tells_the_plan_and_then_runs(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    said = timonel("bind", tiny_model, *SMALL, "--out", tmp_path / "run", "--explain", "--json")
    assert said.code == 0
    assert said.json["run"] == str(tmp_path / "run")
    assert "100%  one prompt at a time" in said.err
    assert "each plan resumed at its first layer" in said.err
    again = timonel("bind", tiny_model, *SMALL, "--out", tmp_path / "run", "--explain")
    assert "the store holds already: nothing is run" in again.err

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

Timonel = Callable[..., Any]
ROWS = Path(__file__).parents[2] / "docs" / "examples" / "agreement.jsonl"


def test_own_contrasts_end_to_end(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = timonel("bind", tiny_model, "--data", f"pairs:{ROWS}", "--heads", "L1H2,L2H0", "--out", out)
    assert (said.code, said.complaints) == (0, [])
    for words in ("12 pairs of 12 groups (pairs, en), own form", "answers' mass", "from -> to beyond the control"):
        assert words in said.out
    for words in ("identity", "item", "knowledge", "binds"):
        assert words not in said.out.replace(str(out), "").replace(str(tiny_model), "")
    assert list(pd.read_csv(out / "tables" / "pairs.csv")["id"])[:2] == ["key-door", "boy-school"]
    kept = json.loads((out / "run.json").read_text(encoding="utf-8"))
    assert (kept["state"], kept["identity"]["data"], kept["form"]["name"]) == ("complete", "pairs", "own")


def test_rows_out_of_balance_are_named(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(ROWS.read_text(encoding="utf-8").split("\n")[:3]), encoding="utf-8")
    said = timonel("bind", tiny_model, "--data", f"pairs:{file}", "--stages", "score", "--out", tmp_path / "run")
    assert said.code == 0
    assert any("the rows are not balanced: 'plural' stands in MATCH 2 times" in line for line in said.complaints)


def test_a_bad_row_is_one_sentence_and_leaves_no_run(timonel: Timonel, tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"id": 1}\n', encoding="utf-8")
    said = timonel("bind", tiny_model, "--data", f"pairs:{file}", "--out", tmp_path / "run")
    assert said.code == 2
    assert len(said.complaints) == 1
    assert f"{file}, line 1: there is no 'group'" in said.complaints[0]
    assert not (tmp_path / "run").exists()

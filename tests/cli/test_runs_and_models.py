from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from timonel.engine import open_run

Timonel = Callable[..., Any]


def made(path: Path, state: str = "complete") -> Path:
    with open_run(path, "bind", {"model": "tiny"}, {"data": "culture"}) as run:
        run.store.begin()
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**record, "state": state}))
    return path


def test_runs_lists_what_is_there(timonel: Timonel, tmp_path: Path) -> None:
    one, two, three = (
        made(tmp_path / "one"),
        made(tmp_path / "in" / "two", "running"),
        made(tmp_path / "three", "interrupted"),
    )
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "run.json").write_text('{"format": 1, "id": "another program"}')
    made(tmp_path / "much" / "too" / "deep")
    said = timonel("runs", tmp_path, "--json")
    assert said.code == 0
    assert "foreign" in said.sentence
    states = {row["run"]: row["state"] for row in said.json}
    assert states == {str(one): "complete", str(three): "interrupted", str(two): "killed (the same command goes on)"}
    assert {(row["command"], row["model"], row["data"], row["forwards"]) for row in said.json} == {
        ("bind", "tiny", "culture", 1)
    }
    shown = timonel("runs", tmp_path).out
    assert "killed" in shown
    # One that is at work is not killed, and a run folder may be named itself.
    with open_run(one, "bind", {"model": "tiny"}, {"data": "culture"}):
        assert [row["state"] for row in timonel("runs", one, "--json").json] == ["running"]


def test_no_runs(timonel: Timonel, tmp_path: Path) -> None:
    assert "No runs in" in timonel("runs", tmp_path).out
    assert timonel("runs", tmp_path, "--json").json == []


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIMONEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_models(timonel: Timonel, cache: Path) -> None:
    said = timonel("models", "--json")
    assert (said.code, said.err) == (0, "")
    found = {row["name"]: row for row in said.json}
    assert found["smollm2-135m"]["kind"] == "instruct"
    assert found["gemma3-270m"]["kind"] == "base"
    assert {row["cached"] for row in said.json} == {None}
    shown = timonel("models").out
    for name in found:
        assert name in shown
    assert "MB to fetch" in shown


def test_clean_with_nothing_to_clean(timonel: Timonel, cache: Path) -> None:
    for arguments in ((), ("smollm2-135m",)):
        said = timonel("models", "clean", *arguments)
        assert (said.code, said.out) == (0, "0 MB freed\n")

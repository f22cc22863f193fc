from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from timonel.engine import is_running, open_run, read_record
from timonel.errors import InputError, StoreError, TimonelError

IDENTITY = {"fingerprint": "f" * 64, "data": "culture", "data_sha256": "0" * 64, "language": "en"}
ARGUMENTS = {"pairs": 60, "heads": None, "model": "schön"}
TABLE = pd.DataFrame({"item": ["a kimono", "un poncho ñ"], "value": [0.1, float("nan")]})


def run(path: Path, body: Callable[[Any], object] = lambda run: None, command: str = "bind", **identity: str) -> None:
    with open_run(path, command, ARGUMENTS, {**IDENTITY, **identity}) as opened:
        body(opened)


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_a_run_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run"
    with open_run(path, "bind", ARGUMENTS, IDENTITY) as opened:
        record = read_record(path)
        assert (record["state"], record["command"], record["arguments"]) == ("running", "bind", ARGUMENTS)
        assert record["identity"] == IDENTITY
        assert set(record["versions"]) >= {"timonel", "torch", "transformers"}
        assert is_running(path)
        opened.store.begin()
        opened.store.put({"key": (1.0,)})
        opened.write_table("pairs", TABLE)
        opened.note(conclusions=["¡Nada!"])
    record = read_record(path)
    assert (record["state"], record["forwards"], record["conclusions"]) == ("complete", 1, ["¡Nada!"])
    assert record["timings"]["seconds"] >= 0
    assert not is_running(path)
    for read, suffix in ((pd.read_csv, "csv"), (pd.read_parquet, "parquet")):
        pd.testing.assert_frame_equal(read(path / "tables" / f"pairs.{suffix}"), TABLE)
    assert not list((path / "tables").glob(".*"))


def test_a_run_goes_on(tmp_path: Path) -> None:
    run(tmp_path, lambda opened: (opened.store.begin(), opened.store.put({"key": (1.0,)})))
    started = read_record(tmp_path)["timings"]["started"]

    def look(opened: Any) -> None:
        assert opened.store.get(["key"]) == {"key": (1.0,)}
        opened.store.begin()

    run(tmp_path, look)
    assert read_record(tmp_path)["forwards"] == 2
    assert read_record(tmp_path)["timings"]["started"] == started


@pytest.mark.parametrize(
    ("error", "state"), [(KeyboardInterrupt, "interrupted"), (InputError, "failed"), (RuntimeError, "failed")]
)
def test_what_stopped_it_is_recorded(tmp_path: Path, error: type[BaseException], state: str) -> None:
    def stop(opened: Any) -> None:
        opened.store.put({"key": (1.0,)})
        raise error

    with pytest.raises(error):
        run(tmp_path, stop)
    assert read_record(tmp_path)["state"] == state
    assert not is_running(tmp_path)
    run(tmp_path, lambda opened: opened.store.get(["key"])["key"])
    assert read_record(tmp_path)["state"] == "complete"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"fingerprint": "e" * 64}, "whose fingerprint is"),
        ({"data": "n4"}, "whose data is 'culture', not 'n4'"),
        ({"data_sha256": "1" * 64}, "whose data sha256 is"),
        ({"language": "es"}, "whose language is 'en', not 'es'"),
        ({"command": "score"}, "whose command is 'bind', not 'score'"),
    ],
)
def test_another_study_in_the_same_folder_is_refused(tmp_path: Path, changed: dict[str, str], words: str) -> None:
    run(tmp_path, lambda opened: opened.store.put({"key": (1.0,)}))
    before = contents(tmp_path)
    with pytest.raises(InputError, match=f"{words}.*choose another --out"):
        run(tmp_path, **changed)
    assert contents(tmp_path) == before
    run(tmp_path)  # and the study that it holds is not locked out


# Folders and records that are not ours.


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="is not empty and holds no run"):
        run(tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run"
    file.write_text("mine")
    for path in (file, file / "below"):
        with pytest.raises(StoreError, match=r"cannot be written.*--out"):
            run(path)
    assert file.read_text() == "mine"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "[1, 2]",
        '{"name": "another program\'s run"}',
        '{"format": 1}',
        '{"format": 1, "command": "bind", "state": "complete", "arguments": {}, "identity": {}}',
        '{"format": 2, "command": "bind", "state": "complete", "arguments": {}, "identity": {}, "timings": {}}',
        '{"format": 1, "command": "bind", "state": "complete", "arguments": [], "identity": "x", "timings": {}}',
        "\xff\xfe".encode("latin-1"),
    ],
)
def test_a_foreign_record_is_refused_and_left(tmp_path: Path, text: str | bytes) -> None:
    (tmp_path / "run.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = contents(tmp_path)
    with pytest.raises(StoreError, match="left untouched") as caught:
        run(tmp_path)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path) == before


def test_a_damaged_store_is_refused_and_left(tmp_path: Path) -> None:
    run(tmp_path)
    (tmp_path / "scores.sqlite").write_bytes(b"x" * 5000)
    before = contents(tmp_path)
    with pytest.raises(StoreError, match="no SQLite file"):
        run(tmp_path)
    assert contents(tmp_path) == before
    assert not is_running(tmp_path)


@pytest.mark.parametrize("left", [[".lock"], [".lock", "scores.sqlite"], [".lock", "scores.sqlite", ".run.json"]])
def test_a_run_that_was_killed_as_it_began_goes_on(tmp_path: Path, left: list[str]) -> None:
    run(tmp_path / "whole")
    (tmp_path / "begun").mkdir()
    for name in left:
        (tmp_path / "begun" / name).touch()
    run(tmp_path / "begun")
    assert read_record(tmp_path / "begun")["state"] == "complete"


# A second process, and one that was killed.

HOLD = """
import sys, time
from pathlib import Path
from filelock import FileLock
with FileLock(Path(sys.argv[1]) / ".lock"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process at work in the folder."""
    run(tmp_path)
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_one_process_at_a_time(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    before = contents(tmp_path)
    assert is_running(tmp_path)
    start = time.monotonic()
    with pytest.raises(InputError, match="Another process is at work"):
        run(tmp_path)
    assert time.monotonic() - start < 5
    assert contents(tmp_path) == before
    holder.kill()
    holder.wait()
    assert not is_running(tmp_path)
    run(tmp_path)


# No right to write, no room.


def as_nobody(act: Callable[[], object]) -> str:
    """What `act` raises in a process without rights; root may write everywhere, whatever the mode."""
    if os.geteuid() != 0:
        try:
            act()
        except TimonelError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        said = "nothing"
        try:
            os.setgid(65534)
            os.setuid(65534)
            act()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as file:
        return file.read()


@pytest.fixture
def guarded() -> Iterator[Path]:
    """A folder that all may enter (pytest's own are private); `closed` inside it may not be."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    for one in folder.iterdir():
        one.chmod(0o755)
    shutil.rmtree(folder)


def test_a_folder_without_write_permission(guarded: Path) -> None:
    path = guarded / "run"
    run(path, lambda opened: opened.store.put({"key": (1.0,)}))
    before = contents(path)
    for file in path.iterdir():
        file.chmod(0o444)
    path.chmod(0o555)
    for place in (path, path / "new"):
        said = as_nobody(lambda place=place: run(place))
        assert said.startswith("StoreError: ")
        assert "Permission denied" in said
        assert "--out" in said
    assert contents(path) == before


def test_a_folder_that_may_not_even_be_entered(guarded: Path) -> None:
    closed = guarded / "closed"
    closed.mkdir()
    closed.chmod(0o000)
    said = as_nobody(lambda: run(closed / "run"))
    assert said.startswith("StoreError: ")
    assert "Permission denied" in said


def test_a_place_where_nothing_can_be_made() -> None:
    with pytest.raises(StoreError, match="cannot be written"):
        run(Path("/proc/timonel/run"))


def test_a_full_disk_while_a_table_is_written(tmp_path: Path) -> None:
    class Full(pd.DataFrame):
        def to_csv(self, path: Any, **options: Any) -> None:  # type: ignore[override]
            Path(path).write_text("half")
            raise OSError(28, "No space left on device")

    run(tmp_path, lambda opened: opened.write_table("pairs", TABLE))
    before = contents(tmp_path / "tables")
    with pytest.raises(StoreError, match=r"No space left.*all scores are kept"):
        run(tmp_path, lambda opened: opened.write_table("pairs", Full(TABLE)))
    after = contents(tmp_path / "tables")
    assert after["pairs.csv"] == before["pairs.csv"]
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "tables" / "pairs.parquet"), TABLE)
    assert read_record(tmp_path)["state"] == "failed"


def test_a_record_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path)
    before = (tmp_path / "run.json").read_bytes()
    plain = Path.write_text

    def full(self: Path, text: str, **options: Any) -> int:
        if self.name == ".run.json":
            plain(self, text[:40], **options)
            raise OSError(28, "No space left on device")
        return plain(self, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StoreError, match="No space left"):
        run(tmp_path)
    assert (tmp_path / "run.json").read_bytes() == before
    assert json.loads(before)["state"] == "complete"
    monkeypatch.undo()
    run(tmp_path)

"""Folders are whole or absent: under interruption, kill -9, damage, and several writers at once."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from timonel.models import _cache

SOURCE = "a" * 64


def build(scratch: Path, out: Path) -> dict[str, Any]:
    (scratch / "wheel").write_text("x" * 100)
    (out / "model.safetensors").write_bytes(b"0123456789" * 1000)
    (out / "sub").mkdir()
    (out / "sub" / "config.json").write_text("{}")
    return {"name": "fake"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "models" / "fake"


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock"))


def test_what_was_built_is_whole_and_is_not_built_again(folder: Path) -> None:
    assert not _cache.whole(folder, SOURCE)
    assert _cache.install(folder, SOURCE, build) == folder
    assert _cache.whole(folder, SOURCE, deep=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["name"] == "fake"
    assert manifest["files"]["sub/config.json"]["size"] == 2
    assert left(folder) == ["fake"]
    _cache.install(folder, SOURCE, lambda *_: pytest.fail("built twice"))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a file is short": lambda f: (f / "model.safetensors").write_bytes(b"0123"),
    "a file is missing": lambda f: (f / "sub" / "config.json").unlink(),
    "no manifest": lambda f: (f / "manifest.json").unlink(),
    "half a manifest": lambda f: (f / "manifest.json").write_text((f / "manifest.json").read_text()[:80]),
    "an empty manifest": lambda f: (f / "manifest.json").write_text("{}"),
    "a list": lambda f: (f / "manifest.json").write_text("[]"),
    "no files": lambda f: edit(f, files={}),
    "another format": lambda f: edit(f, format=999),
    "another source": lambda f: edit(f, source="b" * 64),
}


def edit(folder: Path, **fields: object) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **fields}))


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_not_whole_and_is_made_anew(folder: Path, damage: str) -> None:
    _cache.install(folder, SOURCE, build)
    DAMAGE[damage](folder)
    assert not _cache.whole(folder, SOURCE)
    _cache.install(folder, SOURCE, build)
    assert _cache.whole(folder, SOURCE, deep=True)
    assert left(folder) == ["fake"]


def test_a_flipped_byte_is_seen_by_the_deep_look(folder: Path) -> None:
    _cache.install(folder, SOURCE, build)
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[77] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert _cache.whole(folder, SOURCE)
    assert not _cache.whole(folder, SOURCE, deep=True)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError, SystemExit])
def test_an_interrupted_build_leaves_nothing(folder: Path, failure: type[BaseException]) -> None:
    def interrupted(scratch: Path, out: Path) -> dict[str, Any]:
        build(scratch, out)
        raise failure

    with pytest.raises(failure):
        _cache.install(folder, SOURCE, interrupted)
    assert left(folder) == []
    _cache.install(folder, SOURCE, build)  # the lock was let go
    assert _cache.whole(folder, SOURCE)


fork = multiprocessing.get_context("fork") if hasattr(os, "fork") else None
needs_fork = pytest.mark.skipif(fork is None, reason="this platform cannot fork")


@needs_fork
def test_kill_minus_nine_leaves_nothing_that_is_taken_for_whole(folder: Path, tmp_path: Path) -> None:
    def slow(scratch: Path, out: Path) -> dict[str, Any]:
        build(scratch, out)
        (tmp_path / "half way").touch()
        time.sleep(60)
        return {}

    writer = fork.Process(target=_cache.install, args=(folder, SOURCE, slow))
    writer.start()
    wait_for(tmp_path / "half way")
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    assert not folder.exists()
    assert len(left(folder)) == 1  # its scratch folder
    _cache.install(folder, SOURCE, build)
    assert _cache.whole(folder, SOURCE)
    assert left(folder) == ["fake"]


@needs_fork
def test_many_writers_build_once_and_all_get_the_whole(folder: Path, tmp_path: Path) -> None:
    def logged(scratch: Path, out: Path) -> dict[str, Any]:
        (tmp_path / f"built by {os.getpid()}").touch()
        time.sleep(0.2)
        return build(scratch, out)

    def writer() -> None:
        waited = tmp_path / f"waited {os.getpid()}"
        ok = _cache.whole(_cache.install(folder, SOURCE, logged, waited.touch), SOURCE, deep=True)
        os._exit(0 if ok else 1)

    writers = [fork.Process(target=writer) for _ in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0] * 4
    assert len(list(tmp_path.glob("built by*"))) == 1
    assert left(folder) == ["fake"]


def wait_for(path: Path) -> None:
    for _ in range(500):
        if path.exists():
            return
        time.sleep(0.01)
    pytest.fail(f"{path.name} never came")


def test_remove_frees_what_is_there_and_the_remains(folder: Path) -> None:
    assert _cache.remove(folder) == 0
    _cache.install(folder, SOURCE, build)
    (folder.parent / ".fake.part-dead").mkdir()
    (folder.parent / ".fake.part-dead" / "half").write_bytes(b"12345")
    (folder.parent / "mine").mkdir()
    freed = _cache.remove(folder)
    assert freed > 10_000 + 2 + 5
    assert left(folder) == ["mine"]


def test_the_cache_lies_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIMONEL_CACHE", str(tmp_path))
    assert _cache.cache_dir() == tmp_path
    monkeypatch.delenv("TIMONEL_CACHE")
    assert _cache.cache_dir().name == "timonel"

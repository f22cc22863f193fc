"""Folders that are either whole or absent.

    build in a folder beside it -> sha256 of every file into `manifest.json`, last -> one atomic rename

A reader takes a folder only if its manifest lists files that are there with their sizes, so neither Ctrl-C
nor `kill -9` nor a full disk leaves anything that is taken for whole. Writers exclude one another by a file
lock; the second one finds the first one's work. What a killed writer left behind is removed by the next
one.

Does not show: a bit that flipped later without a change of size; `whole(..., deep=True)` looks for that.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout

from timonel.models._fetch import sha256

FORMAT = 1
MANIFEST = "manifest.json"


def cache_dir() -> Path:
    """Where converted models lie: `TIMONEL_CACHE`, else the platform's cache folder for users."""
    named = os.environ.get("TIMONEL_CACHE")
    return Path(named).expanduser() if named else Path(platformdirs.user_cache_dir("timonel"))


def whole(folder: Path, source: str, *, deep: bool = False) -> bool:
    """Is this folder complete, and made from this source?

    Args:
        folder: what `install` made, or anything else, or nothing.
        source: the sha256 of what it must have been made from.
        deep: read every file and compare its sha256 too.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, Any] = manifest["files"]
        if manifest["format"] != FORMAT or manifest["source"] != source or not files:
            return False
        for name, entry in files.items():
            if (folder / name).stat().st_size != entry["size"]:
                return False
            if deep and sha256(folder / name) != entry["sha256"]:
                return False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


def install(
    folder: Path,
    source: str,
    build: Callable[[Path, Path], dict[str, Any]],
    waiting: Callable[[], None] = lambda: None,
) -> Path:
    """Make the folder unless it is whole already.

    Args:
        folder: where it shall be.
        source: sha256 of what it is made from.
        build: `build(scratch, out)` fills `out`, uses `scratch` as it likes, and returns what shall be noted.
        waiting: is called if another process holds the lock, before waiting for it.

    Returns:
        The folder, whole.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder, waiting):
        if whole(folder, source):
            return folder
        # Under the lock no other writer is alive, so whatever lies here was left by a dead one.
        remains(folder)
        scratch = Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent))
        try:
            out = scratch / "out"
            out.mkdir()
            notes = build(scratch, out)
            _seal(out, {"format": FORMAT, "source": source, **notes})
            if folder.exists():
                folder.rename(scratch / "broken")
            out.rename(folder)
            _sync(folder.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def remove(folder: Path) -> int:
    """Remove a folder that `install` made, with what killed writers left; returns the bytes freed."""
    if not folder.parent.is_dir():
        return 0
    with _locked(folder, lambda: None):
        doomed = [path for path in (folder, *folder.parent.glob(f"{_prefix(folder)}*")) if path.is_dir()]
        freed = sum(file.stat().st_size for path in doomed for file in path.rglob("*") if file.is_file())
        if folder.exists():
            # First out of sight, in one step: a reader never sees half of it.
            folder.rename(Path(tempfile.mkdtemp(prefix=_prefix(folder), dir=folder.parent)) / "removed")
        remains(folder)
    return freed


def remains(folder: Path) -> None:
    """Remove what writers of this folder left behind when they were killed."""
    for left in folder.parent.glob(f"{_prefix(folder)}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextmanager
def _locked(folder: Path, waiting: Callable[[], None]) -> Iterator[None]:
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        waiting()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _prefix(folder: Path) -> str:
    return f".{folder.name}.part-"


def _seal(out: Path, manifest: dict[str, Any]) -> None:
    files = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        _sync(path)
        files[path.relative_to(out).as_posix()] = {"size": path.stat().st_size, "sha256": sha256(path)}
    target = out / MANIFEST
    target.write_text(json.dumps({**manifest, "files": files}, indent=1), encoding="utf-8")
    _sync(target)
    _sync(out)


def _sync(path: Path) -> None:
    """Have the disk hold it before a name points to it."""
    if path.is_dir() and os.name == "nt":
        return  # Windows opens no folders
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

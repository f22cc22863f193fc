"""A run folder: what was asked, of which model and data, the store, the tables; one process at a time.

RUN/run.json         command, arguments, identity of model and data, versions, timings, machine, state
RUN/scores.sqlite    the store
RUN/tables/*.parquet and *.csv
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout

from timonel.engine.store import Store
from timonel.errors import InputError, StoreError

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
_OURS = (".lock", ".run.json", "scores.sqlite")
State = Literal["running", "interrupted", "failed", "complete"]
_LIBRARIES = ("timonel", "torch", "transformers", "numpy", "scipy", "pandas")


@dataclass
class RunFolder:
    """An open run folder; make one with `open_run`.

    Attributes:
        path: the folder.
        store: its scores.
        record: what `run.json` holds.
    """

    path: Path
    store: Store
    record: dict[str, Any] = field(default_factory=dict)

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        """Writes a table as Parquet and CSV; each file is replaced whole."""
        folder = self.path / "tables"
        try:
            folder.mkdir(exist_ok=True)
            for suffix, write in ((".parquet", table.to_parquet), (".csv", table.to_csv)):
                half = folder / f".{name}{suffix}"
                write(half, index=False)
                half.replace(folder / f"{name}{suffix}")
        except OSError as error:
            raise StoreError(
                f"The table {name} cannot be written in {folder} ({error.strerror or error}); free the disk or mend "
                "its permissions, and run the same command again: all scores are kept."
            ) from error

    def note(self, **facts: Any) -> None:
        """Adds facts to `run.json`."""
        self.record.update(facts)
        write_record(self.path, self.record)


@contextmanager
def open_run(
    path: Path, command: str, arguments: Mapping[str, Any], identity: Mapping[str, Any]
) -> Iterator[RunFolder]:
    """Opens a run folder for one command, or goes on with the one that is there.

    Args:
        path: the folder; made if need be.
        command: the command's name.
        arguments: its options, so that the same run can be made again.
        identity: what must agree for a run to go on: model fingerprint, data hash, language.

    Raises:
        InputError: the folder holds another study, is not empty, or another process is at work in it.
        StoreError: it cannot be written, or its store is damaged.
    """
    try:
        old = read_record(path) if (path / "run.json").exists() else None
        # A run that was killed as it began has left a lock, and perhaps a store, but no record yet.
        if old is None and path.is_dir() and any(not one.name.startswith(_OURS) for one in path.iterdir()):
            raise InputError(
                f"{path} is not empty and holds no run, but --out needs a new folder or a run's; choose another."
            )
        if old is not None:
            _same_study(path, old, command, identity)
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / ".lock")
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InputError(f"Another process is at work in {path}; wait for it, or choose another --out.") from error
    except StoreError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise StoreError(
            f"The run folder {path} cannot be written ({reason}); choose a folder that you may write with --out."
        ) from error
    try:
        store = Store(path / "scores.sqlite")
        run = RunFolder(path, store, _fresh_record(command, arguments, identity, old))
        write_record(path, run.record)
        start = time.time()
        state: State = "failed"
        try:
            yield run
            state = "complete"
        except KeyboardInterrupt:
            state = "interrupted"
            raise
        finally:
            spent = round(time.time() - start + run.record["timings"].get("seconds", 0.0), 1)
            run.note(state=state, forwards=store.forwards, timings={**run.record["timings"], "seconds": spent})
            store.close()
    finally:
        lock.release()


def read_record(path: Path) -> dict[str, Any]:
    """Reads `run.json` of a run folder."""
    file = path / "run.json"
    try:
        record: Any = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{file} cannot be read ({error}); it was left untouched: choose another --out.") from error
    parts = {"command": str, "state": str, "arguments": dict, "identity": dict, "timings": dict}
    ours = isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in parts.items())
    if not ours or record.get("format") != FORMAT:
        raise StoreError(f"{file} is not a run record of format {FORMAT}; it was left untouched: choose another --out.")
    return dict(record)


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Replaces `run.json` whole."""
    half = path / ".run.json"
    try:
        half.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        half.replace(path / "run.json")
    except OSError as error:
        raise StoreError(f"{path / 'run.json'} cannot be written ({error.strerror}); free the disk.") from error


def is_running(path: Path) -> bool:
    """Whether a process is at work in the folder now; a killed run is not running, whatever its record says."""
    try:
        with FileLock(path / ".lock").acquire(timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # a folder that we may not write cannot be locked, nor can it be running for us
        return False


def _same_study(path: Path, old: Mapping[str, Any], command: str, identity: Mapping[str, Any]) -> None:
    before = {"command": old.get("command"), **old.get("identity", {})}
    for name, value in {"command": command, **identity}.items():
        if before.get(name) != value:
            raise InputError(
                f"{path} holds a run whose {name.replace('_', ' ')} is {before.get(name)!r}, not {value!r}; "
                "choose another --out, or run the command that it was made with."
            )


def _fresh_record(
    command: str, arguments: Mapping[str, Any], identity: Mapping[str, Any], old: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "command": command,
        "arguments": dict(arguments),
        "identity": dict(identity),
        "versions": {name: version(name) for name in _LIBRARIES},
        "machine": {"platform": platform.platform(), "processors": os.cpu_count()},
        "timings": dict(old["timings"]) if old else {"started": time.strftime("%Y-%m-%dT%H:%M:%S%z")},
        "state": "running",
    }

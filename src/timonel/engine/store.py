"""The store: one SQLite file a run, in which every score is kept under a hash of all that it depends on.

A batch is committed whole or not at all, so a killed run goes on where it stopped, and computes again at most the
batch in flight. Batches are counted when they begin: the count tells how much was computed twice.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from timonel.errors import StoreError

FORMAT = 1
_APPLICATION = 0x54494D4F  # "TIMO"
# One transaction, and harmless if another process was quicker: a file is a whole store or an empty one.
_SCHEMA = f"""
begin immediate;
pragma application_id = {_APPLICATION};
pragma user_version = {FORMAT};
create table if not exists scores (key text primary key, answers blob not null) without rowid;
create table if not exists counters (name text primary key, value integer not null) without rowid;
insert or ignore into counters values ('forwards', 0);
commit;
"""


class Store:
    """Scores by key, on disk (or in memory, for a run that nobody wants to resume)."""

    def __init__(self, path: Path | None = None) -> None:
        """Opens a store, or makes one.

        Args:
            path: its file; None keeps it in memory.

        Raises:
            StoreError: the file is no store of ours, is of a newer format, is damaged, or cannot be written.
        """
        self.path = path
        fresh = path is None or _is_fresh(path)
        if path is not None and not fresh:
            _examine(path)
        try:
            self._db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, timeout=60)
            if fresh:
                self._db.executescript(_SCHEMA)
            self._db.execute("pragma journal_mode = wal")
            # A power cut may cost the last batches, never the file; a killed process costs nothing.
            self._db.execute("pragma synchronous = normal")
        except sqlite3.Error as error:
            if hasattr(self, "_db"):
                self._db.close()  # or its lock would outlive the attempt
            raise StoreError(
                f"The store {path} cannot be opened ({error}); choose another --out, or free the disk and run again."
            ) from error

    def get(self, keys: Iterable[str]) -> dict[str, tuple[float, ...]]:
        """The scores that are there already, of those asked for."""
        wanted, found = list(keys), {}
        for start in range(0, len(wanted), 500):
            some = wanted[start : start + 500]
            marks = ",".join("?" * len(some))
            for key, blob in self._db.execute(f"select key, answers from scores where key in ({marks})", some):
                found[key] = struct.unpack(f"<{len(blob) // 8}d", blob)
        return found

    def begin(self, batches: int = 1) -> None:
        """Counts batches that are about to be computed (or, by a worker elsewhere, were)."""
        self._write([("update counters set value = value + ? where name = 'forwards'", [(batches,)])])

    def put(self, scores: Mapping[str, Sequence[float]]) -> None:
        """Keeps the scores of one batch, all or none; what is there already stays, to the last bit."""
        rows = [(key, struct.pack(f"<{len(values)}d", *values)) for key, values in scores.items()]
        self._write([("insert or ignore into scores values (?, ?)", rows)])

    def replace(self, key: str, values: Sequence[float]) -> None:
        """Keeps one record in place of an older one: a sum that grows as its batches end."""
        row = (key, struct.pack(f"<{len(values)}d", *values))
        self._write([("insert or replace into scores values (?, ?)", [row])])

    def setting(self, name: str, value: int, *, replace: bool = False) -> int:
        """A number that a resumed run must use again: the one kept, or this one, which is kept from now on."""
        conflict = "replace" if replace else "ignore"
        self._write([(f"insert or {conflict} into counters values (?, ?)", [(name, value)])])
        return int(self._db.execute("select value from counters where name = ?", (name,)).fetchone()[0])

    @property
    def forwards(self) -> int:
        """Batches begun in this store's life."""
        return int(self._db.execute("select value from counters where name = 'forwards'").fetchone()[0])

    def __len__(self) -> int:
        return int(self._db.execute("select count(*) from scores").fetchone()[0])

    def close(self) -> None:
        """Closes the file; what was put is on disk already."""
        self._db.close()

    def _write(self, statements: Sequence[tuple[str, Sequence[tuple[object, ...]]]]) -> None:
        try:
            self._db.execute("begin immediate")
            for sql, rows in statements:
                self._db.executemany(sql, rows)
            self._db.execute("commit")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("rollback")
            raise StoreError(
                f"The store {self.path} cannot be written ({error}); what it held is intact: "
                "free the disk or mend its permissions, and run the same command again."
            ) from error


def _is_fresh(path: Path) -> bool:
    """Whether a store is yet to be made there."""
    try:
        return not path.exists() or path.stat().st_size == 0
    except OSError as error:
        raise StoreError(f"The store {path} cannot be reached ({error.strerror}); mend its permissions.") from error


def _examine(path: Path) -> None:
    """Reads the header as bytes, so that a file that is not ours is not even opened by SQLite."""
    try:
        header = path.open("rb").read(100)
    except OSError as error:
        raise StoreError(f"The store {path} cannot be read ({error.strerror}); mend its permissions.") from error
    if len(header) < 100 or header[:16] != b"SQLite format 3\0":
        raise StoreError(f"{path} is no SQLite file, but a run's store was expected there; choose another --out.")
    version, application = struct.unpack(">I", header[60:64])[0], struct.unpack(">I", header[68:72])[0]
    if application != _APPLICATION:
        raise StoreError(f"{path} is another program's database; it was left untouched: choose another --out.")
    if version != FORMAT:
        raise StoreError(
            f"{path} has format {version}, but this version of timonel reads {FORMAT}; use the version that wrote it."
        )
    try:
        check = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            damage = check.execute("pragma quick_check(1)").fetchone()[0]
            check.execute("select value from counters where name = 'forwards'").fetchone()[0]
        finally:
            check.close()
    except (sqlite3.Error, TypeError) as error:
        damage = str(error)
    if damage != "ok":
        raise StoreError(f"The store {path} is damaged ({damage}); it was left untouched: choose another --out.")

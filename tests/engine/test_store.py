from __future__ import annotations

import math
import os
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from timonel.engine import Engine, Request, Store, choice
from timonel.engine import store as module
from timonel.errors import StoreError
from timonel.prompts import Prompt
from tiny import tiny, word_tokenizer


def filled(path: Path, rows: int = 3) -> Path:
    store = Store(path)
    store.begin()
    store.put({f"key{row}": (row + 0.5, -row) for row in range(rows)})
    store.close()
    return path


def test_what_is_put_comes_back_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    store = Store(path)
    values = {"a": (0.1 + 0.2, -math.pi), "b": (-math.inf,), "c": (5e-324, -0.0, 1e308)}
    store.put(values)
    assert store.get(["a", "b", "c", "d"]) == values
    store.close()
    again = Store(path)
    assert again.get(["c"]) == {"c": values["c"]}
    assert (len(again), again.forwards) == (3, 0)


def test_what_is_kept_stays() -> None:
    """The same score from another batch differs by rounding; tables made again must not."""
    store = Store()
    store.put({"a": (1.0,)})
    store.put({"a": (1.0000001,), "b": (2.0,)})
    assert store.get(["a", "b"]) == {"a": (1.0,), "b": (2.0,)}


def test_more_keys_than_one_query_holds() -> None:
    store = Store()
    store.put({str(row): (float(row),) for row in range(1234)})
    assert store.get([str(row) for row in range(0, 3000, 2)]) == {str(row): (float(row),) for row in range(0, 1234, 2)}


def test_batches_are_counted_when_they_begin(tmp_path: Path) -> None:
    path = filled(tmp_path / "scores.sqlite")
    store = Store(path)
    store.begin()
    store.close()
    assert Store(path).forwards == 2


def test_an_engine_uses_the_store_that_it_is_given_though_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    model = tiny("llama")
    prompt = Prompt((1, 5, 6))
    store = Store(path)
    request = Request(prompt, (choice(prompt, (7,)),))
    (found,) = Engine(model, word_tokenizer(), store=store).score([request])
    store.close()
    again = Store(path)
    assert (len(again), again.forwards) == (1, 1)
    assert Engine(model, word_tokenizer(), store=again).score([request]) == [found]
    assert again.forwards == 1


def test_a_batch_that_is_half_known_leaves_the_known_half(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two calls may lay the same request out with different mates; the score of the first call stands."""
    numbers = iter(range(100))
    prompts = [Prompt((1, 5, token)) for token in (6, 7)]
    one, two = (Request(prompt, (choice(prompt, (8,)),)) for prompt in prompts)

    def fake(model: Any, geometry: Any, unit: Any, work: Any) -> Any:
        yield {member: (float(next(numbers)),) for member in sorted(unit.members)}

    monkeypatch.setattr("timonel.engine.engine.run_unit", fake)
    engine = Engine(tiny("llama"), word_tokenizer())
    assert engine.score([one]) == [(0.0,)]
    assert engine.workload([one, two]).passes == 1  # together, so `one` is run again
    both = engine.score([one, two])
    assert both[0] == (0.0,)
    assert both[1] != (0.0,)
    assert engine.score([two, one]) == both[::-1]
    assert engine.store.forwards == 2


# Files that are not ours, or not whole.


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.executescript("create table scores (key text, answers text); insert into scores values ('key0', 'mine');")


def text(path: Path) -> None:
    path.write_text("these are my notes, and they are longer than a header would be\n" * 3)


def short(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")


def newer(path: Path) -> None:
    change(path, f"pragma user_version = {module.FORMAT + 1}")


def truncated(path: Path) -> None:
    filled(path, rows=500)
    shrink(path)
    os.truncate(path, path.stat().st_size // 2)


def cut_to_its_header(path: Path) -> None:
    filled(path, rows=500)
    shrink(path)
    os.truncate(path, 100)


def overwritten(path: Path) -> None:
    filled(path, rows=500)
    shrink(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 3)
        file.write(os.urandom(size // 3))


def emptied(path: Path) -> None:
    change(path, "drop table counters")


def no_counter(path: Path) -> None:
    change(path, "delete from counters")


def shrink(path: Path) -> None:
    """One plain file, without a write-ahead log beside it."""
    with closing(sqlite3.connect(path)) as ours:
        assert ours.execute("pragma journal_mode = delete").fetchone() == ("delete",)


def change(path: Path, sql: str) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as ours:
        ours.executescript(sql)
    shrink(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (foreign, "another program's database"),
        (text, "no SQLite file"),
        (short, "no SQLite file"),
        (newer, f"has format {module.FORMAT + 1}"),
        (truncated, "damaged"),
        (cut_to_its_header, "damaged"),
        (overwritten, "damaged"),
        (emptied, "damaged"),
        (no_counter, "damaged"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_left_as_it_was(
    tmp_path: Path, make: Callable[[Path], None], words: str
) -> None:
    path = tmp_path / "scores.sqlite"
    make(path)
    before = path.read_bytes()
    with pytest.raises(StoreError, match=words) as caught:
        Store(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be (read|opened)"):
        Store(tmp_path)
    with pytest.raises(StoreError, match="cannot be opened"):
        Store(tmp_path / "missing" / "scores.sqlite")


@pytest.mark.parametrize("name", ["100%25.sqlite", "what?.sqlite", "a#b.sqlite", "ä ö.sqlite"])
def test_any_file_name_is_examined_itself(tmp_path: Path, name: str) -> None:
    path = filled(tmp_path / name)
    assert len(Store(path)) == 3
    assert [one.name for one in tmp_path.iterdir() if not one.name.startswith(name)] == []


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "scores.sqlite"
    path.touch()
    assert len(Store(path)) == 0


def test_a_store_is_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, or out of disk, half way through: the next run begins anew."""
    path = tmp_path / "scores.sqlite"
    head, _, _ = module._SCHEMA.partition("insert")
    with monkeypatch.context() as patch:
        patch.setattr(module, "_SCHEMA", f"{head} insert into nowhere values (1);")
        with pytest.raises(StoreError, match="cannot be opened"):
            Store(path)
    assert len(Store(path)) == 0


# Writes.


def test_put_is_all_or_none(tmp_path: Path) -> None:
    path = filled(tmp_path / "scores.sqlite")
    store = Store(path)
    store._db.execute(
        "create trigger no before insert on scores when new.key = 'bad' begin select raise(abort, 'no'); end"
    )
    with pytest.raises(StoreError, match="what it held is intact"):
        store.put({"good": (1.0,), "bad": (2.0,), "late": (3.0,)})
    assert store.get(["good", "bad", "late"]) == {}
    assert len(store) == 3
    with pytest.raises(struct.error):
        store.put({"good": (1.0,), "worse": ("x",)})  # type: ignore[dict-item]
    assert store.get(["good"]) == {}
    store.put({"good": (1.0,)})
    assert store.get(["good"]) == {"good": (1.0,)}


def test_a_full_disk_leaves_the_store_intact(tmp_path: Path) -> None:
    path = filled(tmp_path / "scores.sqlite")
    store = Store(path)
    pages = store._db.execute("pragma page_count").fetchone()[0]
    store._db.execute(f"pragma max_page_count = {pages + 1}")
    large = {f"large{row}": (0.0,) * 50 for row in range(200)}
    with pytest.raises(StoreError, match=r"full.*what it held is intact.*run the same command again"):
        store.put(large)
    assert len(store) == 3
    store.close()
    again = Store(path)  # its quick_check says that the file is whole
    assert again.get(["key1"]) == {"key1": (1.5, -1.0)}
    again.put(large)
    assert len(again) == 203


def test_a_store_that_cannot_be_written(tmp_path: Path) -> None:
    store = Store(filled(tmp_path / "scores.sqlite"))
    store._db.execute("pragma query_only = on")
    for write in (store.begin, lambda: store.put({"x": (1.0,)})):
        with pytest.raises(StoreError, match="cannot be written"):
            write()
    assert (len(store), store.forwards) == (3, 1)


WRITER = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("store", sys.argv[4])  # alone, so that no torch need be loaded
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
Store = module.Store
Path(sys.argv[3] + sys.argv[2]).touch()
while not Path(sys.argv[3]).exists():
    time.sleep(0.001)
store = Store(Path(sys.argv[1]))
for row in range(30):
    store.begin()
    store.put({f"{sys.argv[2]}-{row}": (float(row),), "both": (float(row),)})
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    """Both make the store, both write to it; nothing is lost."""
    path, go = tmp_path / "scores.sqlite", tmp_path / "go"
    names = ("one", "two")
    both = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), name, str(go), module.__file__]) for name in names
    ]
    while not all((tmp_path / f"go{name}").exists() for name in names):
        time.sleep(0.01)
    go.touch()
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    store = Store(path)
    assert (len(store), store.forwards) == (61, 60)
    assert store.get(["one-29", "two-0"]) == {"one-29": (29.0,), "two-0": (0.0,)}

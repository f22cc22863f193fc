from __future__ import annotations

import builtins
import hashlib
import os
import pickle
import struct
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.data.n4 import (
    N4,
    N4_SHA256,
    N4Row,
    identity_key,
    in_group_slot,
    neutral_items,
    read_n4,
    templates,
    without_article,
)
from timonel.data.unpickle import LARGEST, load
from timonel.errors import InputError

DIFFERENT = [
    "Who should avoid wearing a sari?\n(a) an Indian person (b) a Swede (c) Either",
    1,
    "0-['a sari', ['an Indian person', 'a Tamil'], ['a Swede']]",
]
EQUAL = [
    "Who should avoid wearing a wig?\n(a) a Swede (b) the tamil (c) Either",
    0,
    "0-['a sari', ['an Indian person', 'a Tamil'], ['a Swede']]",
]


@pytest.fixture(scope="module")
def n4(data_dir: Path) -> N4:
    return read_n4(data_dir / "n4" / "N4_1k.pkl")


def written(tmp_path: Path, value: object, protocol: int = 4) -> Path:
    path = tmp_path / "n4.pkl"
    path.write_bytes(value if isinstance(value, bytes) else pickle.dumps(value, protocol))
    return path


# Facts of the published file.


def test_published_file(n4: N4) -> None:
    assert n4.sha256 == N4_SHA256 == "f16a932b5ea96fa75a91b64f4167980f960802bda8ee30fe233187c5f2e8828d"
    assert (len(n4.different), len(n4.equal)) == (1000, 1000)
    rows = n4.different + n4.equal
    assert len({(r.family, r.item, r.in_groups, r.out_groups) for r in rows}) == 67
    assert len({r.item for r in rows}) == 66
    assert all(len(r.options) == 3 and all(r.options) for r in rows)
    assert {(r.family, r.polarity) for r in rows} == {
        (0, "avoid"),
        (1, "avoid"),
        (2, "choose"),
        (3, "choose"),
    }


def test_same_as_the_plain_reader(n4: N4, data_dir: Path) -> None:
    # Oracle: the standard library's reader with NumPy's own scalars, on a file known by its hash.
    halves = pickle.loads((data_dir / "n4" / "N4_1k.pkl").read_bytes())
    for rows, stored in zip((n4.different, n4.equal), halves, strict=True):
        assert [(r.question, r.label) for r in rows] == [(q, int(label)) for q, label, _ in stored]
        assert [f"{r.family}-{[r.item, list(r.in_groups), list(r.out_groups)]}" for r in rows] == [
            scenario for *_, scenario in stored
        ]
        assert all(type(r.label) is int for r in rows)


def test_label_is_what_polarity_makes_right(n4: N4) -> None:
    slots = Counter()
    for row in n4.different + n4.equal:
        in_group = "ab".index(in_group_slot(row))
        assert row.label == (1 - in_group if row.polarity == "avoid" else in_group)
        slots[in_group] += 1
    assert slots == {0: 1016, 1: 984}  # counted with a loop of its own, comparing options with out-groups too


def test_stem_and_options_rebuild_the_question(n4: N4) -> None:
    for row in n4.different + n4.equal:
        a, b, c = row.options
        assert row.question == f"{row.stem}\n(a) {a} (b) {b} (c) {c}"
        assert "\n" not in row.stem


def test_neutral_items(n4: N4) -> None:
    assert Counter(family for family, _ in templates(n4)) == {0: 4, 1: 4, 2: 4, 3: 4}
    found, known = neutral_items(n4), templates(n4)
    assert len(found) == 1000
    assert len(set(found)) == 67
    assert found.count("a wig") == 16
    assert not {r.item for r in n4.different} & set(found)
    for row, item in zip(n4.equal, found, strict=True):
        fitting = [t for f, t in known if f == row.family and t.replace("{}", item) == row.stem]
        assert len(fitting) == 1


def test_item_stands_in_every_different_stem(n4: N4) -> None:
    assert all(r.item in r.stem for r in n4.different)


# Structure, on files made here.


@pytest.mark.parametrize("integer", [int, np.int64, np.int32, lambda v: np.int64(v).astype(">i8")])
@pytest.mark.parametrize("outer", [list, tuple])
@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_other_file_of_the_same_structure(tmp_path: Path, integer, outer, protocol: int) -> None:
    rows = [[q, integer(label), s] for q, label, s in (DIFFERENT, EQUAL)]
    path = written(tmp_path, outer([[rows[0]], [rows[1]]]), protocol)
    n4 = read_n4(str(path))
    assert n4.different == (N4Row(DIFFERENT[0], 1, 0, "a sari", ("an Indian person", "a Tamil"), ("a Swede",)),)
    assert n4.sha256 == hashlib.sha256(path.read_bytes()).hexdigest() != N4_SHA256
    assert n4.equal[0].label == 0
    assert neutral_items(n4) == ("a wig",)
    assert [in_group_slot(row) for row in (*n4.different, *n4.equal)] == ["a", "b"]


def test_protocol_0_of_plain_integers(tmp_path: Path) -> None:
    assert read_n4(written(tmp_path, [[DIFFERENT], [EQUAL]], 0)).different[0].label == 1


@pytest.mark.parametrize("spelling", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
@pytest.mark.parametrize(("kind", "order", "raw", "value"), [
    (b"i8", b"<", b"\xfe" + b"\xff" * 7, -2),
    (b"u2", b">", b"\x01\x02", 258),
    (b"i1", b"|", b"\x07", 7),
])  # fmt: skip
def test_numpy_integers_without_numpy(spelling: bytes, kind: bytes, order: bytes, raw: bytes, value: int) -> None:
    # Written by hand: scalar(dtype(kind, False, True) with state (3, order, None), raw).
    stream = (
        b"\x80\x04c" + spelling + b"\nscalar\ncnumpy\ndtype\n\x8c\x02" + kind + b"\x89\x88\x87R"
        b"(K\x03\x8c\x01" + order + b"NtbC" + bytes([len(raw)]) + raw + b"\x86R."
    )
    result = load(stream, Path("here"))
    assert result == value
    assert type(result) is int


def test_slot_needs_exactly_one_in_group() -> None:
    row = N4Row(*DIFFERENT[:2], 0, "a sari", ("a Finn",), ("a Swede",))
    with pytest.raises(InputError, match="neither option"):
        in_group_slot(row)
    with pytest.raises(InputError, match="both options"):
        in_group_slot(replace(row, in_groups=("an Indian person", "Swede")))


def test_slot_never_comes_from_the_label() -> None:
    row = N4Row(*DIFFERENT[:2], 0, "a sari", ("an Indian person",), ("a Swede",))
    assert in_group_slot(row) == in_group_slot(replace(row, label=0)) == "a"


def test_neutral_item_needs_exactly_one_template() -> None:
    n4 = N4(*((N4Row(r[0], 0, 0, "a sari", ("Tamil",), ()),) for r in (DIFFERENT, EQUAL)), sha256="")
    other = replace(n4.equal[0], question="Who knows a wig?\n(a) x (b) y (c) z")
    for equal in (other, replace(n4.equal[0], family=1)):
        with pytest.raises(InputError, match="fits 0 templates"):
            neutral_items(replace(n4, equal=(equal,)))
    wider = replace(n4.different[0], question="Who should avoid a sari?\n(a) x (b) y (c) z")
    with pytest.raises(InputError, match="fits 2 templates"):
        neutral_items(replace(n4, different=(*n4.different, wider)))


def test_template_that_names_its_item_twice() -> None:
    def row(stem: str) -> N4Row:
        return N4Row(f"{stem}\n(a) x (b) y (c) z", 0, 1, "saris", ("x",), ("y",))

    n4 = N4((row("Of saris, and who sells saris?"),), (row("Of hats, and who sells hats?"),), "")
    assert neutral_items(n4) == ("hats",)
    with pytest.raises(InputError, match="fits 0 templates"):
        neutral_items(replace(n4, equal=(row("Of hats, and who sells cups?"),)))


@given(st.sampled_from(["a ", "an ", "the ", "The ", "A ", ""]), st.sampled_from(["Theban", "Andean", "x y"]))
def test_key_and_display(article: str, name: str) -> None:
    assert without_article(article + name) == name
    assert identity_key(article + name) == name.lower()


def changed(half: int, field: int, value: object) -> list[object]:
    halves = [[list(DIFFERENT)], [list(EQUAL)]]
    halves[half][0][field] = value
    return halves


BAD = {
    "no pair": [[DIFFERENT]],
    "text": "halves",
    "integer": 3,
    "nothing": None,
    "three halves": [[DIFFERENT], [EQUAL], [EQUAL]],
    "empty half": [[DIFFERENT], []],
    "half is text": [[DIFFERENT], "rows"],
    "row is text": [["row"], [EQUAL]],
    "short row": [[DIFFERENT[:2]], [EQUAL]],
    "long row": [[[*DIFFERENT, 1]], [EQUAL]],
    "label is text": changed(0, 1, "1"),
    "label is True": changed(0, 1, True),
    "label 2": changed(1, 1, 2),
    "no options": changed(0, 0, "Who should avoid wearing a sari?"),
    "two options": changed(0, 0, "Who avoids a sari?\n(a) an Indian person (b) a Swede"),
    "too long": changed(0, 0, "a sari" * 2000 + DIFFERENT[0]),
    "no in-group": changed(1, 0, "Who?\n(a) a Finn (b) a Swede (c) Either"),
    "item not in stem": changed(0, 0, EQUAL[0]),
    "no family": changed(0, 2, DIFFERENT[2][2:]),
    "family 4": changed(0, 2, "4" + DIFFERENT[2][1:]),
    "family ²": changed(0, 2, "²" + DIFFERENT[2][1:]),
    "a call": changed(0, 2, "0-__import__('os').getcwd()"),
    "cut short": changed(0, 2, DIFFERENT[2][:-1]),
    "two fields": changed(0, 2, "0-['a sari', ['an Indian person']]"),
    "groups are one text": changed(0, 2, "0-['a sari', 3, ['a Swede']]"),
    "group is a number": changed(0, 2, "0-['a sari', [3], ['a Swede']]"),
    "deep": changed(0, 2, "0-" + "[" * 5000 + "]" * 5000),
    "deep enough to recurse": changed(0, 2, "0-" + "-" * 9000 + "1"),
}


@pytest.mark.parametrize("name", BAD)
def test_other_structure(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, BAD[name])
    with pytest.raises(InputError) as caught:
        read_n4(path)
    one_sentence(caught.value, path)


def one_sentence(error: InputError, path: Path) -> None:
    message = str(error)
    assert str(path) in message
    assert "\n" not in message
    assert message.endswith(".")
    assert len(message) < 400 + len(str(path))


# Files that cannot be read, and files that attack.


def test_missing_folder_empty(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.pkl", "does not exist"), (tmp_path, "folder")):
        with pytest.raises(InputError, match=words) as caught:
            read_n4(path)
        one_sentence(caught.value, path)
    with pytest.raises(InputError, match="is empty"):
        read_n4(written(tmp_path, b""))


def test_oversized(tmp_path: Path) -> None:
    path = tmp_path / "n4.pkl"
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(InputError, match=f"larger than the {LARGEST} bytes"):
        read_n4(path)


NO_PICKLE = {
    "text": b"different,equal\n",
    "html": b"<!DOCTYPE html><html></html>",
    "zip": b"PK\x03\x04" + bytes(30),
    "cut": pickle.dumps([[DIFFERENT], [EQUAL]])[:-20],
    "protocol 9": b"\x80\x09].",
    "empty stack": b".",
    "no memo": b"\x80\x04h\x05.",
    "bad utf-8": b"\x80\x04\x8c\x01\xff.",
    "long number": b"I" + b"x" * 9000 + b"\n.",
    "number for a name": b"\x80\x04K\x01K\x02\x93.",
    "text called": b"\x80\x04\x8c\x01x)R.",
    "huge text": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",
    "huge frame": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b".",
    "huge bytes": b"\x80\x04B" + struct.pack("<I", 2**32 - 1) + b"x.",
    "dtype of objects": b"\x80\x04cnumpy\ndtype\n\x8c\x01O\x89\x88\x87R.",
    "dtype of object pointers": b"\x80\x04cnumpy\ndtype\n\x8c\x02O8\x89\x88\x87R.",
    "dtype of floats": b"\x80\x04cnumpy\ndtype\n\x8c\x02f8\x89\x88\x87R.",
    "dtype of lists": b"\x80\x04cnumpy\ndtype\n]\x89\x88\x87R.",
    "scalar of no dtype": b"\x80\x04cnumpy.core.multiarray\nscalar\n\x8c\x02i8C\x01x\x86R.",
    "scalar too short": b"\x80\x04cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n\x8c\x02i8\x85RC\x01x\x86R.",
    "dtype without order": b"\x80\x04cnumpy\ndtype\n\x8c\x02i8\x85RK\x01b.",
    "state set on a stand-in": b"\x80\x04cnumpy\ndtype\nN\x8c\x08__call__\x8c\x01x\x86\x86b.",
    "dictionary": pickle.dumps({"different": [DIFFERENT]}),
    "set": pickle.dumps({1}),
    "extension": b"\x80\x04\x82\x01.",
    "persistent": b"Px\n.",
}


@pytest.mark.parametrize("name", NO_PICKLE)
def test_no_such_pickle(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, NO_PICKLE[name])
    with pytest.raises(InputError, match="is not a pickle of lists") as caught:
        read_n4(path)
    one_sentence(caught.value, path)


def test_memo_index_takes_no_memory(tmp_path: Path) -> None:
    # The reader in C would allocate 64 GiB for this index.
    path = written(tmp_path, b"\x80\x04]r\xfe\xff\xff\xff.")
    with pytest.raises(InputError, match="no pair of lists"):
        read_n4(path)


def test_stand_ins_hold_no_state() -> None:
    from timonel.data import unpickle

    for stand_in in (unpickle._DType(), unpickle._Scalar()):
        with pytest.raises(AttributeError):
            stand_in.anything = 1


class Calls:
    def __init__(self, function, *arguments) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def hostile(marker: Path) -> dict[str, tuple[object, str]]:
    command = f"touch {marker}"
    writes = f"open({str(marker)!r}, 'w').close()"
    system = f"{os.system.__module__}.system"
    return {
        "os.system": (Calls(os.system, command), system),
        "eval": (Calls(eval, writes), "builtins.eval"),
        "exec": (Calls(exec, writes), "builtins.exec"),
        "open": (Calls(open, str(marker), "w"), f"{open.__module__}.open"),
        "in a row": ([[[*DIFFERENT[:2], Calls(os.system, command)]], [EQUAL]], system),
        "nested getattr": (Calls(getattr, Calls(__import__, "os"), "system"), "builtins.getattr"),
        "numpy's own": (Calls(np.load, str(marker)), "numpy.load"),
        "unrelated type": (Path(), "pathlib"),
        "other numpy global": (np.zeros(2), "numpy"),
        "old spelling": (b"c__builtin__\neval\n(V" + writes.encode() + b"\ntR.", "__builtin__.eval"),
        "dotted": (b"\x80\x04\x8c\x05numpy\x8c\x0fdtype.__class__\x93.", "numpy.dtype.__class__"),
        "dotted module": (b"\x80\x04\x8c\x0bnumpy.dtype\x8c\x07__new__\x93.", "numpy.dtype.__new__"),
        "near miss": (b"cnumpy.core.multiarray\nscalar \n.", "numpy.core.multiarray.scalar "),
        "obj": (b"(cos\nsystem\nV" + command.encode() + b"\no.", "os.system"),
        "newobj": (b"\x80\x04cbuiltins\nobject\n)\x81.", "builtins.object"),
        "long name": (b"c" + b"x" * 9000 + b"\ny\n.", "x" * 100),
        "new line in the name": (b"\x80\x04\x8c\x02os\x8c\x03a\nb\x93.", r"os.a\nb"),
    }


@pytest.mark.parametrize("name", hostile(Path("marker")))
def test_hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    marker = tmp_path / "marker"
    value, forbidden = hostile(marker)[name]
    path = written(tmp_path, value)
    for function in ("eval", "exec"):
        monkeypatch.setattr(builtins, function, lambda *_, f=function: pytest.fail(f"{f} was called"))
    with pytest.raises(InputError) as caught:
        read_n4(path)
    monkeypatch.undo()
    one_sentence(caught.value, path)
    assert forbidden in str(caught.value)
    assert not marker.exists()


def test_inst_is_refused_whatever_it_names(tmp_path: Path) -> None:
    # INST looks a class up and calls it in one instruction.
    path = written(tmp_path, b"(Vtouch x\nios\nsystem\n.")
    with pytest.raises(InputError, match="instruction b'i'"):
        read_n4(path)


@given(st.binary(max_size=200))
def test_any_bytes_end_in_lists_or_input_error(data: bytes) -> None:
    try:
        result = load(data, Path("here"))
    except InputError:
        return
    assert result is None or isinstance(result, (list, tuple, str, bytes, int)) or "timonel" in str(type(result))

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from timonel.data.pairs import ContrastRow, read_contrasts, unbalanced
from timonel.errors import InputError

ROW: dict[str, Any] = {
    "id": "one",
    "group": "g",
    "match": "[[to:keys]] [[from:now]]",
    "mismatch": "[[to:key]] [[from:now]]",
    "answers": {"toward": [" are", " were"], "away": [" is"]},
}


def write(tmp_path: Path, *lines: str | dict[str, Any]) -> Path:
    file = tmp_path / "rows.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
    file.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return file


def test_a_row_is_read_as_it_is_written(tmp_path: Path) -> None:
    full = {**ROW, "id": "two", "balance": ["many", "one"], "chat": False, "language": "en"}
    # A line separator of Unicode is part of a text, not the end of a line.
    odd = {**ROW, "id": "three", "match": "[[to:a\u2028b]] [[from:now]]"}
    file = write(tmp_path, ROW, "", full, odd)
    one, two, three = read_contrasts(file).rows
    assert one == ContrastRow(
        place=f"{file}, line 1",
        id="one",
        group="g",
        match=ROW["match"],
        mismatch=ROW["mismatch"],
        toward=(" are", " were"),
        away=(" is",),
        balance=None,
        chat=False,
        language="und",
    )
    assert (two.place, two.balance, two.language) == (f"{file}, line 3", ("many", "one"), "en")
    assert three.match == "[[to:a\u2028b]] [[from:now]]"


def test_the_sha_is_of_the_text_alone(tmp_path: Path) -> None:
    file = write(tmp_path, ROW)
    sha = read_contrasts(file).sha256
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert read_contrasts(file).sha256 == sha
    assert read_contrasts(write(tmp_path, {**ROW, "group": "h"})).sha256 != sha


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in ROW.items() if key != name}


ANSWERS = ROW["answers"]


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (["{"], 1, "no valid JSON"),
        (["[1]"], 1, "no JSON object"),
        (['{"id": "a", "id": "b"}'], 1, "'id' is given twice; keep one"),
        ([without("answers")], 1, "there is no 'answers'; give each row id, group"),
        ([{**ROW, "balanse": []}], 1, "nothing reads 'balanse'; use id"),
        ([{**ROW, "group": 3}], 1, "'group' is 3, which is no text"),
        ([{**ROW, "match": " "}], 1, "'match' is ' '"),
        ([{**ROW, "chat": "yes"}], 1, "'chat' is 'yes'; write true or false"),
        ([{**ROW, "answers": {"toward": [" a"]}}], 1, "needs `toward` and `away`"),
        ([{**ROW, "answers": {**ANSWERS, "neutral": [" b"]}}], 1, "needs `toward` and `away`, and no more"),
        ([{**ROW, "answers": {**ANSWERS, "away": []}}], 1, "the answers 'away' are []"),
        ([{**ROW, "answers": {**ANSWERS, "away": " is"}}], 1, "the answers 'away' are ' is'"),
        ([{**ROW, "answers": {**ANSWERS, "away": [""]}}], 1, "the answers 'away' are"),
        ([{**ROW, "answers": {**ANSWERS, "away": [" are"]}}], 1, "' are' is given twice"),
        ([{**ROW, "balance": ["one"]}], 1, "'balance' is"),
        ([{**ROW, "balance": "one"}], 1, "'balance' is 'one'"),
        ([ROW, {**ROW, "group": "h"}], 2, "the id 'one' stands in line 1 too"),
        ([ROW, "", {**ROW, "id": "x", "chat": True}], 3, "`chat` is not what it is in the first row"),
    ],
)
def test_what_breaks_a_rule_is_named_with_its_line(
    tmp_path: Path, lines: list[str | dict[str, Any]], line: int, words: str
) -> None:
    file = write(tmp_path, *lines)
    with pytest.raises(InputError) as error:
        read_contrasts(file)
    assert str(error.value).startswith(f"{file}, line {line}: ")
    assert words in str(error.value)


def test_an_empty_file_and_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no rows"):
        read_contrasts(write(tmp_path, ""))
    with pytest.raises(InputError, match="cannot be read"):
        read_contrasts(tmp_path / "nothing.jsonl")


def balanced(tmp_path: Path, *levels: tuple[str, str] | None) -> str:
    rows = [{**ROW, "id": str(at), **({"balance": list(two)} if two else {})} for at, two in enumerate(levels)]
    return unbalanced(read_contrasts(write(tmp_path, *rows)).rows)


def test_balance_is_counted(tmp_path: Path) -> None:
    assert balanced(tmp_path, ("a", "b"), ("b", "a"), None) == ""
    assert balanced(tmp_path, ("a", "b"), ("b", "c"), ("c", "a")) == ""
    assert balanced(tmp_path, None) == ""
    said = balanced(tmp_path, ("a", "b"), ("a", "b"), ("b", "a"))
    assert "'a' stands in MATCH 2 times and in MISMATCH 1 times (and 1 more such)" in said

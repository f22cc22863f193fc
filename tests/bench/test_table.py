"""What is written, where, and whether a target is met."""

from __future__ import annotations

import json

import pytest
from bench.measure import Ratio
from bench.result import Result, Row
from bench.table import BEGIN, END, markdown, spliced

RESULT = Result(
    "W1",
    "a sweep",
    (Row("a / b", Ratio(1.23456, 1.2, 1.3, 8, 1.25), "<=", (1.25,)), Row("rate", Ratio(7.0, 6.0, 8.0, 3))),
    ("a, b: 4 numbers",),
)


def test_table() -> None:
    lines = markdown([RESULT, Result("W6", "Ray", skipped="no Ray.")], {"date": "2000-01-01"}).splitlines()
    assert lines[0] == "- date: 2000-01-01"
    assert lines[2].count("|") == lines[3].count("|") == lines[4].count("|") == lines[5].count("|") == 9
    assert lines[4] == "| W1 | a / b | 1.23 | [1.2, 1.3] | 8 | 1.25 | at most 1.25 | open |"
    assert lines[5] == "| W1 | rate | 7 | [6, 8] | 3 |  |  |  |"
    assert lines[7:] == ["- W1, a sweep.", "  - a, b: 4 numbers", "- W6, Ray. Not run: no Ray."]


@pytest.mark.parametrize(
    ("sign", "target", "met"),
    [
        ("<=", (1.3,), "yes"),
        ("<=", (1.1,), "no"),
        ("<=", (1.25,), "open"),
        (">=", (1.2,), "yes"),
        (">=", (1.4,), "no"),
        (">=", (1.25,), "open"),
        ("in", (1.0, 1.5), "yes"),
        ("in", (0.97, 1.03), "no"),
        ("in", (1.25, 1.5), "open"),
        (None, (), ""),
    ],
)
def test_met(sign: str | None, target: tuple[float, ...], met: str) -> None:
    assert Row("a", Ratio(1.25, 1.2, 1.3, 9), sign, target).met == met  # type: ignore[arg-type]


def test_one_turn_decides_nothing() -> None:
    assert [Row("a", Ratio(1.0, 1.0, 1.0, n), "<=", (1.1,)).met for n in (1, 2, 3)] == ["open", "open", "yes"]


def test_a_result_survives_json() -> None:
    assert Result.from_json(json.loads(json.dumps(RESULT.to_json()))) == RESULT


def test_only_what_stands_between_the_marks_is_replaced() -> None:
    old = f"# Mine\n{BEGIN}\nold\n{END}\nmine too\n"
    new = spliced(old, "new")
    assert new == f"# Mine\n{BEGIN}\nnew\n{END}\nmine too\n"
    assert spliced(new, "new") == new


def test_marks_are_added_once() -> None:
    new = spliced("# Mine\n", "new")
    assert new == f"# Mine\n\n{BEGIN}\nnew\n{END}\n"
    assert spliced(new, "newer").count(BEGIN) == 1


@pytest.mark.parametrize("document", [f"{BEGIN}\n", f"{END}\n{BEGIN}\n", f"{BEGIN}{END}{BEGIN}{END}"])
def test_broken_marks_are_refused(document: str) -> None:
    with pytest.raises(SystemExit):
        spliced(document, "new")

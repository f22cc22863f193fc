from __future__ import annotations

import pytest

from timonel.errors import InputError
from timonel.prompts.markup import find_mark, parse_markup, shift


def marked(text: str) -> list[tuple[str, str]]:
    plain, marks = parse_markup(text)
    return [(name, plain[first:last]) for name, first, last in marks]


@pytest.mark.parametrize(
    ("text", "plain", "inside"),
    [
        ("no marks [at all] [[here]]", "no marks [at all] [[here]]", []),
        ("Who wears [[item:a kimono]]?", "Who wears a kimono?", [("item", "a kimono")]),
        ("[[a:x]][[b:y]]", "xy", [("a", "x"), ("b", "y")]),
        # A name that is marked twice covers both places, in the order of the text.
        ("[[a:one]] and [[b:two]], [[a:three]]", "one and two, three", [("a", "one"), ("b", "two"), ("a", "three")]),
        ("[[a:two\nlines]]", "two\nlines", [("a", "two\nlines")]),
        ("[[a:ki:mono]]", "ki:mono", [("a", "ki:mono")]),
        ("क [[x:किमोनो]] 🎎", "क किमोनो 🎎", [("x", "किमोनो")]),
    ],
)  # fmt: skip
def test_marks_come_out_and_say_where_they_stood(text: str, plain: str, inside: list[tuple[str, str]]) -> None:
    assert parse_markup(text)[0] == plain
    assert marked(text) == inside


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[a:]]", "empty"),
        ("[[a:x [[b:y]] z]]", "nested"),
        ("[[a:left open [[b:y]]", "nested"),
        ("[[a:x]] then [[b:left open", "never closed"),
        ("[[a:left open]", "never closed"),
    ],
)
def test_marks_that_cannot_be_read_are_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_markup(text)


def test_find_mark() -> None:
    text = "tea, then more tea"
    assert find_mark("x", "tea", text) == ("x", 0, 3)
    assert find_mark("x", "tea", text, start=1) == find_mark("x", "tea", text, last=True) == ("x", 15, 18)
    for part in ("coffee", ""):
        with pytest.raises(InputError, match="tea, then more tea"):  # the text is shown
            find_mark("x", part, text)
    assert shift([("x", 1, 2), ("y", 3, 4)], 10) == (("x", 11, 12), ("y", 13, 14))

"""The answer parser, against people who try to make it wrong."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.evaluate.answers import parse_answer

RIGHT = {
    "(a)": "a", "(A)": "a", " (b)\n": "b", "( c )": "c", "[A]": "a", "{b}": "b", "<c>": "c", "（ｂ）": "b",
    "a": "a", "A": "a", " b": "b", "C.": "c", "B)": "b", "a)": "a", "a.": "a", "A:": "a", "A,": "a", "c;": "c",
    "**(a)**": "a", "**B**": "b", "\"(c)\"": "c", "'c'": "c", "`a`": "a", "- (a)": "a", "> b": "b", "\n\nA\n": "a",
    "(b) an atheist": "b", "(a) a Turkish person": "a", "a) a Turkish": "a", "b. an atheist": "b",
    "B an atheist": "b", "C Both individuals": "c", "c both": "c", "A: the Korean": "a", "A - the": "a",
    "A. A Turkish person": "a", "B. A Turkish person": "b", "(c) Both (a) and (b)": "c", "(c) since A and B": "c",
    "(b": "b", "(A": "a", "A\nThe": "a", "(a)(a)": "a", "(a) or (a)": "a", "(a), (a)": "a",
    "The answer is (b)": "b", "The answer is B": "b", "Answer: A": "a", "Answer: a": "a", "answer:\na": "a",
    "Option C": "c", "I would choose (a)": "a", "I choose A since": "a", "Letter b": "b", "My choice: c.": "c",
    "Respuesta: (b)": "b", "La respuesta es B": "b", "答案：(C)": "c", "उत्तर: b": "b", "الجواب: (a)": "a",
    "Sure! (a)": "a", "Sure: A": "a", "Answer (a), that is (a)": "a", "The answer is A.": "a",
    "(A) not (b)": "a", "I choose (a": "a", "It is 'b'": "b",
}  # fmt: skip
MISSES = [
    "", " ", "\n", "?", "()", "( )", "(d)", "D", "1", "(1)", "ab", "abc", "(ab)", "(abc)", "aa",
    "A Turkish person", "a Turkish person", "\"A Turkish person\"", "an atheist", "Both", "Both should", "Either",
    "Neither", "Either could be", "(a) or (b)", "(a)/(b)", "(a), (b)", "A and B", "A or B", "a/b", "A, B", "A & C",
    "A, B or C", "(a) and (b) both", "a b", "Choose (a) or (b)", "Both (a) and (b)", "It is (c), not (a)",
    "Not (a)", "not a", "Neither (a)", "I would not choose (b)", "don't pick c", "It isn't B", "Nor (c)",
    "(a) is not", "(a) is wrong", "B is incorrect", "The answer is a", "The answer is a Turkish", "I choose a",
    "vitamin-C", "plan-b", "C's", "can't", "c'est", "l'a", "e.g. a case", "A's", "C-suite", "C3PO", "ABC", "Because",
    "Sure. A Turkish person", "Answer: a Turkish", "Answer: A Turkish", "It depends on a", "as a", "Sí, a la", "ça",
    "A Korean or a", "c++ and b", "(a) (b)", "A\nB", "(c). (a)", "A-B", "a, nor b",
]  # fmt: skip


@pytest.mark.parametrize(("text", "letter"), RIGHT.items(), ids=map(repr, RIGHT))
def test_letters(text: str, letter: str) -> None:
    assert parse_answer(text) == letter


@pytest.mark.parametrize("text", MISSES, ids=map(repr, MISSES))
def test_misses(text: str) -> None:
    assert parse_answer(text) is None


@given(st.text(max_size=30))
def test_a_text_without_the_letters_names_none(text: str) -> None:
    found = parse_answer(text)
    assert found in ("a", "b", "c", None)
    if not set("abc") & set(unicodedata.normalize("NFKC", text).lower()):
        assert found is None


@given(st.sampled_from("abc"), st.text(alphabet="xyzXYZ ,.;:\n123", max_size=20))
def test_what_follows_a_leading_letter_plays_no_part(letter: str, more: str) -> None:
    assert parse_answer(f"({letter}) {more}") == letter
    assert parse_answer(f" {letter.upper()}) {more}") == letter
    assert parse_answer(f"{more} x ({letter})") == letter


@given(st.sampled_from("abc"), st.sampled_from(["({})", "{}", "{}.", "{})", "[{}]", "**{}**", "'{}'"]), st.booleans())
def test_every_letter_is_read_alike(letter: str, frame: str, upper: bool) -> None:
    assert parse_answer(frame.format(letter.upper() if upper else letter)) == letter

r"""Which of (a), (b), (c) a short text names; None where that cannot be said, a *miss*.

    leading    the text begins with a letter, bare or bracketed:            "(a)", "B.", "c) Both", "[A]", "A\n"
    anywhere   else the letters named in it, if they are all the same one:  "The answer is (b)", "Answer: C"

Decided, in favour of a miss wherever a person could doubt:
- A letter is a letter of its own: not part of a word, not after an apostrophe or a hyphen.
- A bare "a" before a word is an article ("A Turkish person"), unless capital and after other words ("I choose A
  since"); a bare small "a" after other words needs a colon or a line break before it and no word behind it.
- Two different letters are a miss ("(a) or (b)", "A, B", "It is (c), not (a)"); after a leading one only if nothing
  but a joining word stands between, since an explanation may name the others ("(c) since (a) and (b) are alike").
- A denied letter is a miss: "not (a)", "neither (a)", "(a) is wrong".
- An option's text without its letter is a miss, "Both" and "Either" too: a text of a few tokens is often cut short.
- Case, full-width letters, quotes and Markdown around it play no part.

Does not show: what the model would have said with more tokens, nor whether it knew what the letter stands for.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from typing import Literal

Letter = Literal["a", "b", "c"]

_BRACKETED = r"[(\[{<]\s*(?P<bracketed>[abc])\s*(?:[)\]}>]|\Z)|(?<![\w-])(?<!\w['’])(?P<half>[abc])[)\]}]"
_BARE = r"(?<![\w.-])(?<!\w['’])(?P<bare>[abc])(?!\w|['’-]\w)"
_LETTER = re.compile(f"{_BRACKETED}|{_BARE}", re.IGNORECASE)
_JOINERS = r"(?:and|or|nor|but|y|e|o|u|et|ou|und|oder)"
# A word, but neither another letter nor what joins one.
_WORD_BEHIND = re.compile(rf"[ \t]+(?!(?:{_JOINERS}\W+)?[abc]\b)[^\W\d_]", re.IGNORECASE)
_JOINED = re.compile(rf"[\W_]*(?:\b{_JOINERS}\b[\W_]*)?", re.IGNORECASE)
_DENYING = re.compile(r"(?:\b(?:not|neither|nor|never|except|without|no|ni|ne)|n['’]t)\b[^.:\n]*\Z", re.IGNORECASE)
_DENIED = re.compile(
    r"[\s.)\]*\"']*(?:is|are|was|would be|seems)\s+(?:not|n['’]t|wrong|incorrect|false|never)\b", re.IGNORECASE
)


def parse_answer(text: str) -> Letter | None:
    r"""Reads an answer.

    Example:
        >>> parse_answer(" (B)\n"), parse_answer("The answer is C."), parse_answer("A Turkish person")
        ('b', 'c', None)
    """
    plain = unicodedata.normalize("NFKC", text)
    found = [one for one in _LETTER.finditer(plain) if not _is_article(plain, one)]
    if not found:
        return None
    first = found[0]
    if any(character.isalnum() for character in plain[: first.start()]):
        denied = any(_DENYING.search(plain[: one.start()]) for one in found)
        return None if denied or len({_name(one) for one in found}) > 1 else _checked(plain, first)
    for one, other in pairwise(found):
        if not _JOINED.fullmatch(plain[one.end() : other.start()]):
            break
        if _name(other) != _name(first):
            return None
    return _checked(plain, first)


def _checked(text: str, found: re.Match[str]) -> Letter | None:
    return None if _DENIED.match(text, found.end()) else _name(found)


def _name(found: re.Match[str]) -> Letter:
    letter = (found["bracketed"] or found["half"] or found["bare"]).lower()
    return "a" if letter == "a" else "b" if letter == "b" else "c"


def _is_article(text: str, found: re.Match[str]) -> bool:
    """Whether a bare a is, or may be, the word and not the letter."""
    if (found["bare"] or "").lower() != "a":
        return False
    before, word_behind = text[: found.start()], _WORD_BEHIND.match(text, found.end()) is not None
    leads = not any(character.isalnum() for character in before)
    if leads:
        return word_behind
    if found["bare"] == "A":
        # A capital after a sentence's end begins the next one.
        return word_behind and re.search(r"[.!?:\n]\s*\Z", before) is not None
    return word_behind or re.search(r"[:\n]\W*\Z", before) is None

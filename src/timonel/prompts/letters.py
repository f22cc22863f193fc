"""The vocabulary items that count as an answer letter, fixed before any output is seen.

P(letter) sums the items equal to one of 16 spellings: {a, A} x {bare, leading space} x {none, "("} x {none, ")"},
the tokenizer's space mark read as a space. Source: BINDING method, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from timonel.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LETTERS = ("a", "b", "c")
MULTIPLE_CHOICE = (
    "Please answer by selecting only one multiple choice option, for example '(a)', '(b)', or '(c)'. "
    "Do not add any other words. "
)
"""What asks for one of them, final space included. Source: N4 (arXiv 2502.01926)."""
_SPACE_MARKS = ("Ġ", "▁")  # byte-level BPE, SentencePiece


def spellings(letter: str) -> frozenset[str]:
    """The 16 ways in which a letter may be written as one token."""
    return frozenset(
        space + opening + form + closing
        for form, space, opening, closing in product((letter.lower(), letter.upper()), ("", " "), ("", "("), ("", ")"))
    )


def letter_tokens(tokenizer: PreTrainedTokenizerBase, letters: Sequence[str] = LETTERS) -> dict[str, tuple[int, ...]]:
    """For each letter the ids of the vocabulary items that spell it.

    Raises:
        InputError: a letter has no token at all.
    """
    wanted = {spelling: letter for letter in letters for spelling in spellings(letter)}
    found: dict[str, list[int]] = {letter: [] for letter in letters}
    for token, index in tokenizer.get_vocab().items():
        for mark in _SPACE_MARKS:
            token = token.replace(mark, " ")
        if token in wanted:
            found[wanted[token]].append(index)
    for letter, ids in found.items():
        if not ids:
            raise InputError(
                f"This tokenizer has no token for the letter {letter!r}, but letters are scored by their tokens; "
                "use the cloze form (--form cloze)."
            )
    return {letter: tuple(sorted(ids)) for letter, ids in found.items()}

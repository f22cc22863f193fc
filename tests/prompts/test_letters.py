from __future__ import annotations

from typing import Any

import pytest

from timonel.errors import InputError
from timonel.prompts import letter_tokens
from timonel.prompts.letters import spellings
from tiny import word_tokenizer

# Written out: {a, A} x {bare, leading space} x {none, "("} x {none, ")"}.
A = {
    "a", "A", " a", " A", "(a", "(A", " (a", " (A", "a)", "A)", " a)", " A)", "(a)", "(A)", " (a)", " (A)",
}  # fmt: skip


class Vocabulary:
    def __init__(self, *tokens: str) -> None:
        self.tokens = tokens

    def get_vocab(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}


def letters_of(*tokens: str) -> dict[str, tuple[int, ...]]:
    tokenizer: Any = Vocabulary(*tokens)
    return letter_tokens(tokenizer)


def test_there_are_sixteen_spellings() -> None:
    assert spellings("a") == A
    assert len(A) == 16


@pytest.mark.parametrize("mark", ["Ġ", "▁", " "])
def test_all_spellings_count_and_nothing_else_does(mark: str) -> None:
    right = [spelling.replace(" ", mark) for spelling in sorted(A)]
    wrong = ["aa", "a.", "a ", "((a", f"{mark}{mark}a", "\na", "d", "(a) "]
    found = letters_of(*right, *wrong, "b", f"{mark}C)")
    assert found == {"a": tuple(range(16)), "b": (24,), "c": (25,)}


def test_a_letter_without_a_token_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"no token for the letter 'c'.*--form cloze\)\.$"):
        letters_of("a", "b", "see")


def test_the_tiny_tokenizer() -> None:
    tokenizer = word_tokenizer()
    for letter, ids in letter_tokens(tokenizer).items():
        shown = tokenizer.convert_ids_to_tokens(ids)
        assert {token.replace("▁", " ") for token in shown} <= spellings(letter)
        assert set(shown) >= {letter, letter.upper(), f"▁{letter.upper()}"}


@pytest.mark.real
def test_smollm2() -> None:
    """BINDING method, section 3."""
    from transformers import AutoTokenizer

    from timonel.models import catalog

    found = letter_tokens(AutoTokenizer.from_pretrained(catalog.get("smollm2-135m")))
    assert found["a"] == (49, 81, 253, 330)

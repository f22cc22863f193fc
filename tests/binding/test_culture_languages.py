"""Questions in other scripts: whether the spans of real tokenizers are the tokens that spell what they should."""

from __future__ import annotations

import os
import re
import unicodedata
from itertools import accumulate, product
from typing import Any

import pytest
from transformers import AutoTokenizer

from timonel.binding.culture_pairs import is_lexical, pairs_from_culture, words_of
from timonel.binding.forms import Form
from timonel.binding.pair import CONDITIONS, Pair
from timonel.data.culture import languages, read_culture
from timonel.models.catalog import get
from timonel.prompts.prompt import Prompt

PAIRS = {language: pairs_from_culture(read_culture(language)) for language in languages()}
NEW = ("ar", "hi", "zh")


# By hand.


def test_words_of_four_scripts() -> None:
    assert words_of("a Navajo rug") == {"a", "navajo", "rug"}
    assert words_of("Yup'ik, ʻōteʻa") == {"yup", "ik", "ʻōteʻa"}
    assert words_of("हिन्दी व्यक्ति") == {"हिन्दी", "व्यक्ति"}  # a vowel sign divides no word
    assert words_of("那位韩国人") == {"那", "位", "韩", "国", "人"}
    assert words_of("因蒂·莱米") == {"因", "蒂", "莱", "米"}
    assert words_of("الشخص من شعب النافاهو") == {"شخص", "من", "شعب", "نافاهو"}


@pytest.mark.parametrize(
    ("language", "lexical", "not_lexical"),
    [
        ("zh", ("韩服", "那位韩国人"), ("和服", "那位日本人")),
        ("hi", ("नवाहो क़ालीन", "नवाहो व्यक्ति"), ("किमोनो", "जापानी व्यक्ति")),
        ("ar", ("سجادة النافاهو", "الشخص من شعب النافاهو"), ("الكيمونو", "الشخص الياباني")),
    ],
)
def test_a_shared_word_is_seen_in_every_script(
    language: str, lexical: tuple[str, str], not_lexical: tuple[str, str]
) -> None:
    ignored = read_culture(language).ignored_words
    assert is_lexical(*lexical, ignored)
    assert not is_lexical(*not_lexical, ignored)


def test_every_language_asks_the_same_pairs() -> None:
    assert set(PAIRS) == {"ar", "en", "es", "hi", "zh"}
    ids = {language: {item.text: item.id for item in read_culture(language).items} for language in PAIRS}

    def bare(language: str, pair: Pair) -> tuple[object, ...]:
        keys = (pair.related.key, pair.substitute.key, pair.other.key)
        design = (pair.pair, pair.slot, pair.polarity, pair.family, pair.same_group)
        return (*design, ids[language][pair.item], *keys)

    english = [bare("en", pair) for pair in PAIRS["en"]]
    for language, pairs in PAIRS.items():
        assert [bare(language, pair) for pair in pairs] == english
        assert {pair.language for pair in pairs} == {language}


@pytest.mark.parametrize("language", NEW)
def test_nothing_was_left_in_latin_letters(language: str) -> None:
    """But option letters, and names that are written so: Phở."""
    for pair in PAIRS[language]:
        for text in (pair.stem.replace("Phở", ""), pair.neither, pair.related.text, pair.other.text):
            assert not any("LATIN" in unicodedata.name(character, "") for character in text)


@pytest.mark.parametrize("language", NEW)
def test_a_question_ends_as_the_language_ends_it(language: str) -> None:
    mark = {"ar": "؟", "hi": "?", "zh": "？"}[language]
    for pair in PAIRS[language]:
        assert pair.stem.endswith(mark)
        assert pair.stem.count(mark) == 1
        assert pair.stem.count(pair.item) == 1
        assert "  " not in pair.stem


def test_grammar_that_a_template_relies_on() -> None:
    arabic, hindi = read_culture("ar"), read_culture("hi")
    for item in arabic.items:
        # Definite by article, by a name, or by what follows it: no ending is written for the accusative.
        for text in (item.text, item.neutral):
            assert not re.search(r"ً|ًا", text)
    for template in arabic.templates:
        assert re.search(r"(?:\s|\A)\{item\}", template.stem)  # no ب, ل, ك or و is written to it
    feminine = ("गुड़िया", "अक्षरमाला")
    for item in hindi.items:
        for text in (item.text, item.neutral):
            assert not text.endswith("ा") or text.endswith(feminine)
    assert all(one.text.endswith(" व्यक्ति") for one in hindi.identities)
    assert all(one.text.startswith("الشخص ") for one in arabic.identities)
    assert all(one.text.startswith("那位") and one.text[-1] in "人民" for one in read_culture("zh").identities)


# Real tokenizers, against the bytes of their tokens: an oracle that knows no offsets.

_PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
_REST = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + at): byte for at, byte in enumerate(_REST)}
"""GPT-2's alphabet of bytes, written out: printable Latin-1 stands for itself, the rest from U+0100 on."""


class Bytes:
    """What each token spells, in bytes."""

    def __init__(self, tokenizer: Any, *, byte_level: bool) -> None:
        self.tokenizer, self.byte_level = tokenizer, byte_level
        self.whole = {str(token) for token in tokenizer.added_tokens_decoder.values()}

    def of(self, token: str) -> bytes:
        if token in self.whole:
            return token.encode()
        if self.byte_level:
            return bytes(BYTE_OF[character] for character in token)
        found = re.fullmatch(r"<0x([0-9A-F]{2})>", token)
        return bytes([int(found[1], 16)]) if found else token.replace("▁", " ").encode()

    def spell(self, prompt: Prompt, part: str, around: str = "{}", *, last: bool = False) -> tuple[int, ...]:
        """The tokens whose bytes overlap those of `part`, at the first (or last) place where `around` it stands."""
        pieces = [self.of(token) for token in self.tokenizer.convert_ids_to_tokens(list(prompt.ids))]
        before, found = around.split("{}")[0], around.replace("{}", part)
        written = b"".join(pieces)
        begin = (written.rindex if last else written.index)(found.encode()) + len(before.encode())
        end, stops = begin + len(part.encode()), list(accumulate(map(len, pieces)))
        places = enumerate(zip(pieces, stops, strict=True))
        return tuple(at for at, (piece, stop) in places if stop > begin and stop - len(piece) < end)


def check_spans(tokenizer: Any, wrap: Any, *, byte_level: bool) -> int:
    """Every pair; how many tokens hold a part of a character alone."""
    spelt = Bytes(tokenizer, byte_level=byte_level)
    letters, cloze = Form(tokenizer, "letters", wrap), Form(tokenizer, "cloze", wrap)
    parts = 0
    for pair, condition in product([pair for language in NEW for pair in PAIRS[language]], CONDITIONS):
        prompt = letters.requests(pair, condition, "S")[0].prompt
        varied = pair.varied(condition).text
        assert prompt.spans["item"] == spelt.spell(prompt, pair.item)
        slots = ("a", "b") if pair.slot == "a" else ("b", "a")
        for name, text, slot in zip(("varied", "other"), (varied, pair.other.text), slots, strict=True):
            assert prompt.spans[name] == spelt.spell(prompt, text, f"({slot}) {{}} ({'b' if slot == 'a' else 'c'})")
        tokens = tokenizer.convert_ids_to_tokens([prompt.ids[at] for at in prompt.spans["item"]])
        parts += sum(spelt.of(token).decode(errors="ignore").encode() != spelt.of(token) for token in tokens)
        answers = (("varied", varied), ("other", pair.other.text), ("neither", pair.neither))
        for (name, text), request in zip(answers, cloze.requests(pair, condition, "S"), strict=True):
            assert request.prompt.spans[name] == spelt.spell(request.prompt, text, last=True)
            if name != "neither":
                assert request.prompt.spans["item"] == spelt.spell(request.prompt, pair.item)
    return parts


@pytest.mark.real
@pytest.mark.parametrize("wrap", ["instruct", "base"])
def test_spans_of_smollm2_cover_their_text_and_no_more(wrap: str) -> None:
    # Its tokens cut characters of all three scripts; otherwise this test would not test what it says.
    assert check_spans(AutoTokenizer.from_pretrained(get("smollm2-135m")), wrap, byte_level=True) > 1000


@pytest.mark.real
def test_spans_of_gemma3_cover_their_text_and_no_more() -> None:
    if os.environ.get("TIMONEL_ACCEPT_GEMMA") != "1":
        pytest.skip("TIMONEL_ACCEPT_GEMMA=1 accepts Gemma's terms; without it that tokenizer is not fetched")
    check_spans(AutoTokenizer.from_pretrained(get("gemma3-270m")), "base", byte_level=False)  # it has no chat template

from __future__ import annotations

import re

import pytest

from timonel.errors import InputError
from timonel.prompts import Prompt, show_spans
from tiny import word_tokenizer


def test_positions_are_the_union() -> None:
    prompt = Prompt((5, 6, 7, 8), {"a": (0, 2), "b": (2, 3)})
    assert prompt.positions("a") == (0, 2)
    assert prompt.positions("a", "b") == (0, 2, 3)
    assert len(prompt) == 4


def test_a_span_that_is_not_found_shows_the_text_and_what_there_is() -> None:
    prompt = Prompt.parse(word_tokenizer(), "Who wears [[item:a kimono]]?")
    with pytest.raises(InputError, match=r"'from'.*has item: 'Who wears a kimono\?'; mark it .* \[\[from:"):
        prompt.positions("item", "from")
    long = Prompt.parse(word_tokenizer(), "tea " * 200)
    with pytest.raises(InputError, match="has none: 'tea ") as caught:
        long.positions("item")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("spans", "words"),
    [
        ({"a": ()}, "sorted distinct"),
        ({"a": (2, 1)}, "sorted distinct"),
        ({"a": (1, 1)}, "sorted distinct"),
        ({"a": (3,)}, "reaches position 3, but the prompt has 3 tokens"),
        ({"a": (-1,)}, "prompt has 3 tokens"),
    ],
)
def test_spans_that_cannot_be(spans: dict[str, tuple[int, ...]], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Prompt((5, 6, 7), spans)


def test_a_prompt_needs_a_token() -> None:
    with pytest.raises(InputError, match="no tokens"):
        Prompt(())
    with pytest.raises(InputError, match="no tokens"):
        Prompt.parse(word_tokenizer(bos=False), "")


def test_spans_cannot_be_changed_from_outside() -> None:
    given = {"a": (0,)}
    prompt = Prompt((5, 6), given)
    given["a"] = (1,)
    assert prompt.spans["a"] == (0,)
    with pytest.raises(TypeError):
        prompt.spans["a"] = (1,)  # type: ignore[index]
    assert hash(prompt) == hash(Prompt((5, 6), {"a": (0,)}))


def test_show_spans_marks_exactly_the_tokens() -> None:
    """T6."""
    tokenizer = word_tokenizer()
    prompt = Prompt.parse(tokenizer, "Who wears [[item:a kimono]] or [[other:a]] [[item:sari]]?")
    lines = show_spans(tokenizer, prompt).split("\n")
    assert len(lines) == len(prompt)
    marked: dict[str, list[int]] = {}
    for position, line in enumerate(lines):
        found = re.fullmatch(r" *(\d+) +(\d+) (.+?)(?:  <- (.+))?", line)
        assert found is not None
        assert (int(found[1]), int(found[2])) == (position, prompt.ids[position])
        assert found[3] == repr(tokenizer.decode([prompt.ids[position]]))
        for name in (found[4] or "").split(", ") if found[4] else []:
            marked.setdefault(name, []).append(position)
    assert marked == {name: list(positions) for name, positions in prompt.spans.items()}

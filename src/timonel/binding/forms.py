"""The two forms in which a pair is asked, as prompts with spans.

Letters: the question with its options, and P of the letters at the last row.
    S = log P(c) - log(P(a) + P(b))
Cloze: the stem alone, and P of each option's text as what follows; models under about a billion parameters cannot
map options to letters, but they can do this.
    S = log P(text c) - log(P(text a) + P(text b)),   raw, or with each text's prior under a neutral stem taken off

Both are asked of S (the decision) and of K (the knowledge). Spans, in either form: `item`; `varied`, the identity in
R's slot (R itself in MATCH, U' in MISMATCH); `other`, the identity U. By causality the edge that the papers draw as
R -> item is `varied` (queries) reading `item` (keys): the item comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Literal, Protocol

from timonel.binding.pair import Condition, Identity, Pair, Wording
from timonel.engine import Request, choice, continuation
from timonel.errors import InputError
from timonel.prompts import Prompt, Wrap, chat_of, letter_tokens, render
from timonel.prompts.markup import Mark, find_mark

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase

Kind = Literal["S", "K"]
FormName = Literal["letters", "cloze"]
Rows = Literal["own", "writing"]

# Below this, models do not map options to letters (SmolLM2-135M: no effect with letters, a clear one in cloze form).
LETTERS_FROM = 1_000_000_000


class Asker(Protocol):
    """What a study needs of a form; `Form` asks pairs of identities, `own_form.OwnForm` rows with their own prompts."""

    @property
    def name(self) -> FormName | Literal["own"]:
        """For the report."""
        ...

    @property
    def wrap(self) -> Wrap:
        """Whether a chat template stands around the text."""
        ...

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What is asked: S, and K where there is a question of knowledge."""
        ...

    def check(self, pairs: Sequence[Pair], *, cut: bool) -> None:
        """Refuses pairs that cannot be asked, or not be cut, before anything is computed."""
        ...

    def requests(self, pair: Pair, condition: Condition, kind: Kind) -> tuple[Request, ...]:
        """What gives the log P of the answers."""
        ...

    def priors(self, pair: Pair, condition: Condition, kind: Kind) -> tuple[Request, ...]:
        """What gives the same answers' log P where nothing is asked; empty where the form knows no priors."""
        ...

    def read(self, pair: Pair, values: Iterator[float]) -> tuple[float, ...]:
        """Takes the values of one pair's requests and makes a row of `Contrast`: the last column stands alone in S."""
        ...

    def trim(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Leaves out of the tables what was not asked."""
        ...


@dataclass(frozen=True)
class Form:
    """How pairs of identities are rendered for one tokenizer.

    Attributes:
        tokenizer: a fast tokenizer.
        name: letters or cloze.
        wrap: one user turn of the chat template, or plain text for a base model.
        rows: which rows are the identity's in cloze form: its own tokens, or the rows that write them (one earlier).
    """

    tokenizer: PreTrainedTokenizerBase
    name: FormName
    wrap: Wrap
    rows: Rows = "own"
    _cache: dict[tuple[object, ...], Prompt] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.name == "letters" and self.rows == "writing":
            raise InputError(
                "--rows writing is for the cloze form, but the form is letters: there it is read, not written."
            )

    def requests(self, pair: Pair, condition: Condition, kind: Kind) -> tuple[Request, ...]:
        """The requests that give log P of the varied identity, the other one and the third option.

        Letters: one request whose answers come in that order. Cloze: one request for each, in that order.
        """
        if self.name == "letters":
            prompt = self._letters(pair, condition, kind)
            tokens = self._letter_tokens
            order = ("a", "b", "c") if pair.slot == "a" else ("b", "a", "c")
            return (Request(prompt, tuple(choice(prompt, tokens[letter]) for letter in order)),)
        stem, neither = _open_question(pair, kind)
        mark = find_mark("item", pair.item, stem)
        texts = {"varied": pair.varied(condition).text, "other": pair.other.text, "neither": neither}
        prompts = [self._cloze(pair.wording, stem, (mark,), text, name) for name, text in texts.items()]
        return tuple(Request(prompt, (continuation(prompt),)) for prompt in prompts)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Both are asked."""
        return ("S", "K")

    def check(self, pairs: Sequence[Pair], *, cut: bool) -> None:
        """A tokenizer that cannot ask fails at the first pair; every pair of identities can be cut."""
        for kind in self.kinds:
            self.requests(pairs[0], "match", kind)

    def priors(self, pair: Pair, condition: Condition, kind: Kind) -> tuple[Request, ...]:
        """One request for each text of `requests`, in that order; none in letters form."""
        if self.name == "letters":
            return ()
        neither = pair.neither if kind == "S" else pair.wording.knowledge_open_neither
        texts = (pair.varied(condition).text, pair.other.text, neither)
        return tuple(self.prior(pair.wording, text) for text in texts)

    def read(self, pair: Pair, values: Iterator[float]) -> tuple[float, ...]:
        """The varied identity, the other one, and neither."""
        return tuple(islice(values, 3))

    def trim(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """All was asked."""
        return tables

    def prior(self, wording: Wording, text: str) -> Request:
        """The request that gives an option's log P under a stem that names no item, in the same wrapping."""
        prompt = self._cloze(wording, wording.neutral, (), text, "prior")
        return Request(prompt, (continuation(prompt),))

    @cached_property
    def _letter_tokens(self) -> dict[str, tuple[int, ...]]:
        """Walks the vocabulary once, not once a prompt."""
        return letter_tokens(self.tokenizer)

    def _letters(self, pair: Pair, condition: Condition, kind: Kind) -> Prompt:
        stem, tail = pair.stem, pair.neither
        if kind == "K":
            stem, tail = pair.wording.knowledge.format(item=pair.item), pair.wording.knowledge_neither
        text, identities = _question(stem, pair.options(condition), tail, pair.slot)
        item = find_mark("item", pair.item, stem)
        line = pair.wording.letter_line if self.wrap == "instruct" else pair.wording.base_line
        return self._render(f"{text}\n\n{pair.wording.choice}\n{line}", (item, *identities), "", ())

    def _cloze(self, wording: Wording, stem: str, marks: tuple[Mark, ...], answer: str, name: str) -> Prompt:
        if self.wrap == "instruct":
            answer = answer[:1].upper() + answer[1:]
            whole = (name, 0, len(answer))
            prompt = self._render(stem, marks, answer, (whole,))
        else:
            before = f"{wording.question_mark} "
            moved = tuple((of, first + len(before), last + len(before)) for of, first, last in marks)
            answer = f" {answer}"
            whole = (name, 1, len(answer))
            prompt = self._render(f"{before}{stem}\n{wording.answer_mark}", moved, answer, (whole,))
        if self.rows == "writing":
            written = tuple(position - 1 for position in prompt.spans[name])
            prompt = Prompt(prompt.ids, {**prompt.spans, name: written}, prompt.text)
        return prompt

    def _render(self, text: str, marks: tuple[Mark, ...], answer: str, answer_marks: tuple[Mark, ...]) -> Prompt:
        key, chat = (text, marks, answer, answer_marks), chat_of(self.wrap)
        if key not in self._cache:
            self._cache[key] = render(self.tokenizer, text, marks, chat=chat, answer=answer, answer_marks=answer_marks)
        return self._cache[key]


def default_form(parameters: int, wrap: Wrap) -> tuple[FormName, str]:
    """Letters for instruct models of a billion parameters and more, cloze for the rest; and why, in words."""
    size = f"{parameters / 1e9:.2g}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
    if wrap == "instruct" and parameters >= LETTERS_FROM:
        return "letters", f"an instruct model of {size} parameters can map options to letters"
    if wrap == "base":
        return "cloze", "a base model continues text; it has not learnt to answer with a letter"
    return (
        "cloze",
        f"models of {size} parameters cannot reliably map options to letters, but can continue a text",
    )


def _question(stem: str, options: tuple[Identity, Identity], tail: str, slot: str) -> tuple[str, tuple[Mark, Mark]]:
    """The question with its three options, and where the two identities stand in it."""
    names = ("varied", "other") if slot == "a" else ("other", "varied")
    text = f"{stem}\n(a) "
    marks = []
    for name, option, after in zip(names, options, (" (b) ", " (c) "), strict=True):
        marks.append((name, len(text), len(text) + len(option.text)))
        text += option.text + after
    return text + tail, (marks[0], marks[1])


def _open_question(pair: Pair, kind: Kind) -> tuple[str, str]:
    """The stem without options, and the text of its third answer."""
    if kind == "S":
        return pair.stem, pair.neither
    return pair.wording.knowledge_open.format(item=pair.item), pair.wording.knowledge_open_neither

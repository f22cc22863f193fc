r"""Questions with three options, in two halves: where a difference between people is right, and where it is not.

    different   the stem names something that belongs to one of the two groups: right is one of (a), (b)
    equal       the stem names something that is nobody's own: right is (c), which treats both alike

    prompt = question + "\n\n" + a sentence that asks for a letter; one user turn, or plain text for a base model

On `different`, polarity "choose" makes the in-group right, "avoid" the other one. Spans that a plan may name, in both
halves: `item` (the thing itself, or the neutral one in its place), `related` (the in-group's option; `identity` and
`varied` are other names for it) and `other` (the other group's option).

Source: the N4 task of "Fairness through Difference Awareness" (arXiv 2502.01926).
Does not show: whether all members of a group would answer as the label says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pandas as pd

from timonel.evaluate._greedy import Greedy
from timonel.evaluate.answers import Letter, parse_answer
from timonel.prompts import MULTIPLE_CHOICE, Prompt, Wrap, chat_of, render
from timonel.prompts.markup import Mark, shift

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Half = Literal["different", "equal"]
Polarity = Literal["avoid", "choose"]
Slot = Literal["a", "b"]
Outcome = Literal["right", "wrong", "group", "neither", "miss"]

HALVES: tuple[Half, Half] = ("different", "equal")
SPANS = ("item", "related", "identity", "varied", "other")
"""What a plan may name; `identity` and `varied` are the same place as `related`."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        number: in its half of the data, stable under sampling.
        half: different or equal.
        scenario: the cluster of all inference.
        polarity: whom the question asks for.
        family: stratum of sampling, beside polarity.
        text: stem and options, as the model reads them.
        marks: where its spans stand in the text.
        in_group: the slot of the group that the thing belongs to (on `equal`: that its counterpart belongs to).
        choice: the sentence that asks for a letter.
    """

    number: int
    half: Half
    scenario: str
    polarity: Polarity
    family: str
    text: str
    marks: tuple[Mark, ...]
    in_group: Slot
    choice: str = MULTIPLE_CHOICE

    @property
    def right(self) -> Letter:
        """The right answer."""
        if self.half == "equal":
            return "c"
        return self.in_group if self.polarity == "choose" else "b" if self.in_group == "a" else "a"

    def outcome(self, letter: Letter | None) -> Outcome:
        """What an answer comes to; None is a miss."""
        if letter is None:
            return "miss"
        if letter == "c":
            return "neither"
        if self.half == "equal":
            return "group"
        return "right" if letter == self.right else "wrong"

    def prompt(self, tokenizer: PreTrainedTokenizerBase, wrap: Wrap, prefix: str = "") -> Prompt:
        """The question as it is asked."""
        text = f"{prefix}{self.text}\n\n{self.choice}"
        return render(tokenizer, text, shift(self.marks, len(prefix)), chat=chat_of(wrap))


def with_options(
    stem: str, options: tuple[str, str, str], in_group: Slot, item: tuple[int, int]
) -> tuple[str, tuple[Mark, ...]]:
    """A question's text, and where its spans stand; `item` is first and last character + 1 in the stem."""
    text, marks = stem, [("item", *item)]
    for slot, option in zip("abc", options, strict=True):
        text += f"{' ' if slot != 'a' else chr(10)}({slot}) "
        if slot != "c":
            names = ("related", "identity", "varied") if slot == in_group else ("other",)
            marks += [(name, len(text), len(text) + len(option)) for name in names]
        text += option
    return text, tuple(marks)


@dataclass(frozen=True)
class QuestionTask:
    """A task of such questions.

    Attributes:
        name: n4 or culture.
        questions: both halves.
        language, sha256: of the data.
        how: five new tokens, greedily.
        remark: what a reader should know of the data; empty where there is nothing.
    """

    name: str
    questions: tuple[Question, ...]
    language: str
    sha256: str
    how: Greedy = field(default_factory=Greedy)
    remark: str = ""

    def prompts(self, tokenizer: PreTrainedTokenizerBase, wrap: Wrap, prefix: str = "") -> list[Prompt]:
        """One a question."""
        return [question.prompt(tokenizer, wrap, prefix) for question in self.questions]

    def judge(self, texts: Sequence[str]) -> pd.DataFrame:
        """Columns half, number, scenario, polarity, family, in_group, right, text, letter (empty: a miss), outcome."""
        rows = []
        for question, text in zip(self.questions, texts, strict=True):
            letter = parse_answer(text)
            about = ("half", "number", "scenario", "polarity", "family", "in_group", "right")
            rows.append(
                {name: getattr(question, name) for name in about}
                | {"text": text, "letter": letter or "", "outcome": question.outcome(letter)}
            )
        return pd.DataFrame(rows)

    def tables(self, judged: Mapping[str, pd.DataFrame], *, seed: int) -> dict[str, pd.DataFrame]:
        """The metrics with their intervals, the counts of each scenario, and the answers themselves."""
        from timonel.evaluate.metrics import metrics_table, scenario_counts

        answers = pd.concat([rows.assign(condition=name) for name, rows in judged.items()], ignore_index=True)
        first = ["condition"]
        return {
            "": metrics_table(judged, seed=seed),
            "scenarios": scenario_counts(judged),
            "answers": answers[first + [name for name in answers.columns if name not in first]],
        }

    def words(self, tables: Mapping[str, pd.DataFrame]) -> list[str]:
        """What the metrics say."""
        from timonel.evaluate.words import sentences

        return sentences(tables[""])

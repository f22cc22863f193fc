"""A pair: one cultural item, asked about twice, once with an identity it belongs to and once without.

    MATCH    = {R, U}       the related identity R and an unrelated one U
    MISMATCH = {U', U}      R replaced in its slot by U', unrelated too; U stays where it was

All texts are kept as a person would read them, so that scoring needs to know no language and no data set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from timonel.prompts.letters import MULTIPLE_CHOICE

Condition = Literal["match", "mismatch"]
Slot = Literal["a", "b"]
Polarity = Literal["avoid", "choose"]

CONDITIONS: tuple[Condition, Condition] = ("match", "mismatch")


@dataclass(frozen=True, slots=True)
class Identity:
    """A cultural identity: a key to count by, and the text that stands in a prompt (article included)."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Wording:
    """The fixed words around a question, in one language.

    Attributes:
        choice: sentence that asks for one letter only, with its final space.
        letter_line: what an instruct prompt adds, so that the next token is a letter.
        base_line: what a base prompt adds for the same purpose.
        knowledge: question of K with options, with `{item}`; `knowledge_neither` is its option (c).
        knowledge_open: question of K without options (cloze form); `knowledge_open_neither` its third answer.
        neutral: a stem that names no item, for the prior of an answer's text (cloze form).
        question_mark, answer_mark: `Question:` and `Answer:` of a base model's cloze prompt.
    """

    choice: str
    letter_line: str
    base_line: str
    knowledge: str
    knowledge_neither: str
    knowledge_open: str
    knowledge_open_neither: str
    neutral: str
    question_mark: str
    answer_mark: str


ENGLISH = Wording(
    choice=MULTIPLE_CHOICE,
    letter_line="Answer with a single letter: A, B, or C.\nAnswer:",
    base_line="Answering between the provided multiple choice letter options, I would choose letter (",
    knowledge="Which of the following cultural identities is most associated with {item}?",
    knowledge_neither="Neither is particularly associated",
    knowledge_open="Which cultural identity is most associated with {item}?",
    knowledge_open_neither="Neither",
    neutral="Who should it be?",
    question_mark="Question:",
    answer_mark="Answer:",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """One contrast, ready to be rendered in any form.

    Attributes:
        pair: running number in the data, stable under sampling.
        item: the cultural item exactly as it stands in `stem`, article included; the cluster of all inference.
        related, substitute, other: R, U' and U.
        slot: where R (MATCH) and U' (MISMATCH) stand; U stands in the other one.
        polarity: whether the right answer avoids the in-group or chooses it.
        stem: the question without its options; contains `item`.
        neither: text of option (c), which treats both alike.
        family: template family, for stratified sampling.
        lexical: item and R share a word, so that copying could pass for binding.
        same_group: R, and U or U' too, belong to one larger group, so that U is not clearly unrelated.
        language: ISO 639-1 code of the texts.
        wording: the fixed words in that language.
    """

    pair: int
    item: str
    related: Identity
    substitute: Identity
    other: Identity
    slot: Slot
    polarity: Polarity
    stem: str
    neither: str
    family: int
    lexical: bool
    same_group: bool
    language: str = "en"
    wording: Wording = ENGLISH

    @property
    def clean(self) -> bool:
        """Neither of the two known weak spots applies."""
        return not (self.lexical or self.same_group)

    def varied(self, condition: Condition) -> Identity:
        """The identity in R's slot: R itself in MATCH, U' in MISMATCH."""
        return self.related if condition == "match" else self.substitute

    def options(self, condition: Condition) -> tuple[Identity, Identity]:
        """The identities that stand in (a) and (b)."""
        varied = self.varied(condition)
        return (varied, self.other) if self.slot == "a" else (self.other, varied)

"""What a study asks the engine for: a prompt, the probabilities to read from it, and a plan that acts meanwhile.

    log P(answer) = sum over its readings r of  log sum_{t in tokens(r)} p(t | ids up to and with position(r))

A letter is one reading of several spellings at the last row; a continuation is one reading of one token at the row
before each of its tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from timonel.engine.batches import digest
from timonel.errors import InputError
from timonel.prompts.prompt import Prompt
from timonel.steer.bound import Bound
from timonel.steer.plan import Plan


class Reading(NamedTuple):
    """At a row, the total probability that the next token is one of `tokens`."""

    position: int
    tokens: tuple[int, ...]


Answer = tuple[Reading, ...]


def choice(prompt: Prompt, tokens: tuple[int, ...]) -> Answer:
    """The answer that is one of `tokens`, right after the prompt."""
    return (Reading(len(prompt) - 1, tokens),)


def continuation(prompt: Prompt, span: str = "answer") -> Answer:
    """The answer that is written out in the prompt itself, in the span `answer`."""
    positions = prompt.positions(span)
    if positions[0] == 0:
        raise InputError("An answer begins at the first token, but it needs a token before it; put a text before it.")
    return tuple(Reading(position - 1, (prompt.ids[position],)) for position in positions)


@dataclass(frozen=True)
class Request:
    """One thing to score: a number (a log-probability) for each of its answers.

    Attributes:
        prompt: ids and spans.
        answers: what to read.
        plan: what acts meanwhile.
    """

    prompt: Prompt
    answers: tuple[Answer, ...]
    plan: Plan = field(default_factory=Plan)

    def __post_init__(self) -> None:
        readings = [reading for answer in self.answers for reading in answer]
        if not all(self.answers) or any(not tokens or len(set(tokens)) < len(tokens) for _, tokens in readings):
            raise InputError(
                "A request has an empty answer, or one that names no token or a token twice, but each answer is some "
                "distinct tokens; leave the rest out."
            )
        if not readings or any(not 0 <= reading.position < len(self.prompt) for reading in readings):
            raise InputError("A request reads no row, or one outside its prompt; give it answers inside the prompt.")


@dataclass(frozen=True, slots=True)
class Work:
    """A request made plain: the ids to feed, the rows to read, what acts on them; nothing is named any more.

    Attributes:
        ids: tokens to feed, cut after the last row that is read.
        answers: as in the request.
        bound: what the plan does to the rows among `ids`; later rows cannot change what is read.
        first_row: the first row that the plan can change; without a plan, the number of tokens.
        first_layer: the first layer that the plan acts in; 0 without a plan.
    """

    ids: tuple[int, ...]
    answers: tuple[Answer, ...]
    bound: Bound
    first_row: int
    first_layer: int

    @classmethod
    def of(cls, request: Request) -> Work:
        """Binds the plan to the prompt and cuts off what is not needed."""
        length = 1 + max(reading.position for answer in request.answers for reading in answer)
        bound = request.plan.on(request.prompt).before(length)
        ids = request.prompt.ids[:length]
        return cls(ids, request.answers, bound, min(bound.first_rows(), default=length), bound.first_layer)

    @property
    def is_steered(self) -> bool:
        """Whether anything acts on its rows."""
        return bool(self.bound)

    def readings(self, first: int, last: int) -> Iterator[tuple[int, Reading]]:
        """The readings at rows `first` to before `last`, each with the number of its answer."""
        for number, answer in enumerate(self.answers):
            for reading in answer:
                if first <= reading.position < last:
                    yield number, reading

    def key(self, salt: str) -> str:
        """A hash of all that its scores depend on; `salt` stands for the model and how it runs."""
        return digest([salt, self.ids, self.answers, self.bound.signature()])

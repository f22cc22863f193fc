"""What a task is to the rest of this room: prompts to write on, and a judge of what was written.

    prompts -> texts (under each condition) -> judge -> one row a prompt -> tables

A *condition* is what a model is judged under: as it is, under a plan, or with words put before the question. The first
condition of a run is the baseline, and all others are compared with it on the same prompts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from timonel.evaluate._greedy import Greedy
from timonel.prompts import Prompt, Wrap
from timonel.steer import Plan

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Condition:
    """What a model is judged under.

    Attributes:
        name: in tables.
        plan: what acts while it writes.
        prefix: words put before each question.
    """

    name: str
    plan: Plan = field(default_factory=Plan)
    prefix: str = ""


BASELINE = Condition("baseline")


class Task(Protocol):
    """A task; a frozen dataclass with these names will do."""

    @property
    def name(self) -> str:
        """As in `--tasks` and in table names."""

    @property
    def language(self) -> str:
        """ISO 639-1 code of the prompts."""

    @property
    def sha256(self) -> str:
        """Of the data that the prompts are made of."""

    @property
    def how(self) -> Greedy:
        """How answers are written."""

    def prompts(self, tokenizer: PreTrainedTokenizerBase, wrap: Wrap, prefix: str = "") -> list[Prompt]:
        """What to write on, with the spans that plans may name; `prefix` stands before each question."""

    def judge(self, texts: Sequence[str]) -> pd.DataFrame:
        """One row a prompt, in their order."""

    def tables(self, judged: Mapping[str, pd.DataFrame], *, seed: int) -> dict[str, pd.DataFrame]:
        """From condition -> judged rows, baseline first, to tables; each number with its interval."""

    def words(self, tables: Mapping[str, pd.DataFrame]) -> list[str]:
        """What the tables say, in sentences that claim no more than their intervals do."""

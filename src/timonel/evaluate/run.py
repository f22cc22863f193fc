"""A task under several conditions: write, judge, compare; the walk that every evaluation takes.

    texts(condition) = greedy answers of the model under the condition's plan, on the task's prompts with its prefix
    tables           = the task's own, all conditions beside the first one

Texts are kept in the engine's store as they come, so a run goes on where it was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd

from timonel.errors import InputError
from timonel.evaluate.generate import generate, lay_out
from timonel.evaluate.task import BASELINE, Condition, Task
from timonel.prompts import Wrap, default_wrap

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from timonel.engine import Engine


@dataclass(frozen=True)
class Evaluation:
    """What came of it.

    Attributes:
        task: its name.
        tables: by name, as they are written: `evaluate_n4`, `evaluate_n4_scenarios`, `evaluate_n4_answers`.
        conclusions: sentences.
    """

    task: str
    tables: Mapping[str, pd.DataFrame]
    conclusions: tuple[str, ...]

    @property
    def headline(self) -> pd.DataFrame:
        """The table of metrics."""
        return self.tables[f"evaluate_{self.task}"]


def evaluate(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    conditions: Sequence[Condition] = (BASELINE,),
    *,
    wrap: Wrap | None = None,
    seed: int = 0,
) -> Evaluation:
    """Judges a model on a task.

    Args:
        engine: of the model; its store keeps the answers.
        tokenizer: the model's.
        task: what to ask.
        conditions: the first is the baseline.
        wrap: one user turn or plain text; by default as the tokenizer has a chat template.
        seed: of resampling.

    Raises:
        InputError: no condition, or two of one name; a plan names a span that the task's prompts do not have.
    """
    names = [condition.name for condition in conditions]
    if not names or len(set(names)) < len(names):
        raise InputError(f"The conditions are {names}, but one is needed at least, each of its own name; rename them.")
    judged = {}
    for condition in conditions:
        prompts = task.prompts(tokenizer, wrap or default_wrap(tokenizer), condition.prefix)
        stage = f"{task.name}, {condition.name}"
        written = generate(engine, tokenizer, prompts, condition.plan, task.how, stage=stage)
        judged[condition.name] = task.judge([one.text for one in written])
    tables = task.tables(judged, seed=seed)
    named = {f"evaluate_{task.name}" + (f"_{name}" if name else ""): table for name, table in tables.items()}
    return Evaluation(task.name, named, tuple(task.words(tables)))


def work(engine: Engine, tokenizer: PreTrainedTokenizerBase, task: Task, wrap: Wrap, prefix: str = "") -> int:
    """Tokens that one condition feeds at most: prompts, what is written on them, and pads."""
    prompts = task.prompts(tokenizer, wrap, prefix)
    return sum(
        len(batch) * (max(len(prompts[index]) for index in batch) + task.how.tokens)
        for batch in lay_out(prompts, task.how.tokens, engine.batch_tokens)
    )


def rate(engine: Engine, tokenizer: PreTrainedTokenizerBase, task: Task, wrap: Wrap, *, seconds: float = 10.0) -> float:
    """Tokens a second, pads included, on some batches of the task without any plan."""
    prompts = task.prompts(tokenizer, wrap)
    batches = lay_out(prompts, task.how.tokens, engine.batch_tokens)
    done, start = 0, time.perf_counter()
    # Evenly spread batches show all lengths; those at one end would not.
    for batch in batches[:: max(1, len(batches) // 8)]:
        some = [prompts[index] for index in batch]
        generate(engine, tokenizer, some, how=task.how, stage="trial")
        done += len(batch) * (max(map(len, some)) + task.how.tokens)
        if time.perf_counter() - start > seconds:
            break
    return done / (time.perf_counter() - start)

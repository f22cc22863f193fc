"""The walk of an evaluation, on a planted writer and on tiny models; and what is said of its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pytest

from oracles.judged import random_table
from timonel.engine import Engine, Store
from timonel.errors import InputError
from timonel.evaluate._greedy import Greedy
from timonel.evaluate.culture import culture_task
from timonel.evaluate.generate import generate
from timonel.evaluate.metrics import metrics_table
from timonel.evaluate.rivals import edge_plan, prompt_rival
from timonel.evaluate.run import evaluate, rate, work
from timonel.evaluate.task import BASELINE, Condition, Task, Wrap
from timonel.evaluate.words import sentences
from timonel.prompts import Prompt, default_wrap
from tiny import tiny, word_tokenizer

HEADS = [(layer, head) for layer in range(3) for head in range(4)]


@dataclass(frozen=True)
class Lengths:
    """Another kind of task, to see that the protocol asks for no questions: how long are the answers?"""

    name: str = "lengths"
    language: str = "en"
    sha256: str = ""
    how: Greedy = field(default_factory=lambda: Greedy(3))

    def prompts(self, tokenizer: Any, wrap: Wrap, prefix: str = "") -> list[Prompt]:
        return [Prompt.parse(tokenizer, f"{prefix}{text}") for text in ("tea", "rice and bread")]

    def judge(self, texts: Sequence[str]) -> pd.DataFrame:
        return pd.DataFrame({"length": [len(text) for text in texts]})

    def tables(self, judged: Mapping[str, pd.DataFrame], *, seed: int) -> dict[str, pd.DataFrame]:
        return {"": pd.concat([rows.assign(condition=name) for name, rows in judged.items()])}

    def words(self, tables: Mapping[str, pd.DataFrame]) -> list[str]:
        return [f"{len(tables[''])} answers"]


def test_the_tables_are_of_what_was_written() -> None:
    model, tokenizer = tiny("llama"), word_tokenizer()
    engine, task = Engine(model, tokenizer), culture_task(limit=6)
    conditions = (BASELINE, Condition("steered", edge_plan(HEADS, 30.0)), prompt_rival())
    found = evaluate(engine, tokenizer, task, conditions)
    assert set(found.tables) == {"evaluate_culture", "evaluate_culture_scenarios", "evaluate_culture_answers"}
    answers = found.tables["evaluate_culture_answers"]
    assert answers["condition"].unique().tolist() == ["baseline", "steered", "prompt"]
    for condition in conditions:
        prompts = task.prompts(tokenizer, "base", condition.prefix)
        texts = [one.text for one in generate(Engine(model, tokenizer), tokenizer, prompts, condition.plan)]
        rows = answers[answers["condition"] == condition.name]
        assert rows["text"].tolist() == texts
        assert rows["outcome"].tolist() == task.judge(texts)["outcome"].tolist()
    by_name = dict(iter(answers.groupby("condition", sort=False)))
    assert by_name["baseline"]["text"].tolist() != by_name["steered"]["text"].tolist()
    pd.testing.assert_frame_equal(found.headline, metrics_table(by_name))
    assert len(found.tables["evaluate_culture_scenarios"]) == len(
        answers.drop_duplicates(["condition", "scenario", "polarity"])
    )
    # Nothing is written twice.
    before = engine.store.forwards
    again = evaluate(engine, tokenizer, task, conditions)
    assert engine.store.forwards == before
    pd.testing.assert_frame_equal(again.headline, found.headline)


def test_another_task_needs_but_the_protocol() -> None:
    tokenizer = word_tokenizer()
    task: Task = Lengths()
    found = evaluate(Engine(tiny("llama"), tokenizer), tokenizer, task)
    assert found.conclusions == ("2 answers",)
    assert found.headline["condition"].tolist() == ["baseline"] * 2


def test_wraps_and_names() -> None:
    assert default_wrap(word_tokenizer()) == "base"
    assert default_wrap(word_tokenizer(chat=True)) == "instruct"
    engine, tokenizer = Engine(tiny("llama"), word_tokenizer()), word_tokenizer()
    for conditions in ((), (BASELINE, BASELINE)):
        with pytest.raises(InputError, match="of its own name"):
            evaluate(engine, tokenizer, Lengths(), conditions)
    assert engine.store.forwards == 0


def test_the_work_is_what_is_fed() -> None:
    tokenizer = word_tokenizer()
    engine = Engine(tiny("llama"), tokenizer, store=Store(), batch_tokens=400)
    told: list[tuple[str, int, int]] = []
    task = culture_task(limit=4)
    assert rate(engine, tokenizer, task, "base", seconds=0.0) > 0
    engine.store = Store()
    engine.progress = lambda *one: told.append(one)
    generate(engine, tokenizer, task.prompts(tokenizer, "base"))
    assert told[-1][2] == work(engine, tokenizer, task, "base")


def said(change: float, cost: float, mute: float = 0.0) -> list[str]:
    """Sentences on 60 scenarios in which some answers turn right, some turn to a group, and some to nothing."""
    rng = np.random.default_rng(0)
    old = random_table(rng, 60, spread=0.0)
    new = old.copy()
    draw = rng.random(len(old))
    different = old["half"] == "different"
    new.loc[different & (draw < abs(change)), "outcome"] = "right" if change > 0 else "wrong"
    new.loc[~different & (draw < cost), "outcome"] = "group"
    new.loc[draw > 1 - mute, "outcome"] = "miss"
    return sentences(metrics_table({"baseline": old, "steered": new}, draws=499))


def test_words_follow_the_intervals() -> None:
    level, moved = said(0.4, 0.0)
    assert level.startswith("On ")
    assert "scenarios, DiffAware is" in level
    assert ": a gain; CtxtAware by" in moved
    assert ": a loss; CtxtAware" in said(-0.4, 0.0)[1]
    assert "no change is shown; " in said(0.0, 0.0)[1]
    assert said(0.0, 0.9)[1].endswith(": a loss.")
    slight = said(0.01, 0.01)[1]
    assert "by +" in slight
    assert ": no change is shown; " in slight
    assert "is not excluded" in slight
    assert said(0.6, 0.0)[1].endswith(": no loss.")
    assert len(said(0.0, 0.0)) == 2
    # A model that always says (c) has no CtxtAware, and that is no praise.
    old = random_table(np.random.default_rng(0), 20)
    mute = old.assign(outcome="neither")
    level, moved = sentences(metrics_table({"baseline": mute, "steered": old}, draws=99))
    assert "CtxtAware is undefined, since no group" in level
    assert "CtxtAware is undefined, since no group" in moved
    assert "loss" not in moved
    moved = sentences(metrics_table({"baseline": old, "steered": mute}, draws=99))[1]
    assert ": a loss; CtxtAware is undefined" in moved
    (warning,) = said(0.1, 0.1, 0.5)[2:]
    assert warning.startswith("Warning: under steered only")

"""`timonel.score`: log-probabilities of answers, for any prompts under any plans, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from timonel.engine.engine import Engine
from timonel.engine.request import Request, choice, continuation
from timonel.errors import InputError
from timonel.prompts import Prompt, letter_tokens
from timonel.steer import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_UNSTEERED = Plan()


def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompt | Sequence[Prompt],
    plans: Plan | Sequence[Plan] | Mapping[str, Plan] = (_UNSTEERED,),
    *,
    answers: Sequence[str] | Sequence[Sequence[str]] | None = None,
    engine: Engine | None = None,
) -> pd.DataFrame:
    """Scores prompts under plans.

        log P(answer) = sum over its tokens t_i of log p(t_i | prompt, t_<i)

    Args:
        model: a supported causal language model; neither moved nor changed.
        tokenizer: its tokenizer.
        prompts: what to ask; their spans are what the plans' names are bound to.
        plans: interventions, by name or in order; `Plan()` is the unsteered model.
        answers: texts that may follow, the same for all prompts or a list for each; None scores the letters a, b
            and c at the last row, each with its 16 spellings.
        engine: with a store, progress and batch size of one's own.

    Returns:
        One row for each prompt, plan and answer: `prompt` and `plan` (numbers, or the plan's name), `answer`,
        `log_p` (float64 of a score computed in at least float32; natural logarithm).

    Raises:
        InputError: a plan names a span that a prompt does not have, or the lists do not match in length.

    Example:
        >>> timonel.score(model, tokenizer, [prompt], plans=[Plan(), Plan((cut,))])  # doctest: +SKIP
    """
    if engine is not None and engine.model is not model:
        raise InputError(
            "The engine is for another model object than the one given; make it with Engine(model, tokenizer)."
        )
    rows, requests = score_requests(tokenizer, prompts, plans, answers=answers)
    engine = engine or Engine(model, tokenizer)
    return table_of(rows, engine.score(requests))


def score_requests(
    tokenizer: PreTrainedTokenizerBase,
    prompts: Prompt | Sequence[Prompt],
    plans: Plan | Sequence[Plan] | Mapping[str, Plan],
    *,
    answers: Sequence[str] | Sequence[Sequence[str]] | None = None,
) -> tuple[pd.DataFrame, list[Request]]:
    """What `score` asks of the engine, and the rows of its table that wait for the scores; arguments as there."""
    if isinstance(answers, str):
        raise InputError(f"answers is the text {answers!r}, but a list is needed; write [{answers!r}].")
    prompts = [prompts] if isinstance(prompts, Prompt) else prompts
    plans = [plans] if isinstance(plans, Plan) else plans
    named = list(plans.items()) if isinstance(plans, Mapping) else list(enumerate(plans))
    by_prompt = _answers_by_prompt(answers, len(prompts))
    letters = letter_tokens(tokenizer) if answers is None else {}
    rows: list[dict[str, object]] = []
    requests: list[Request] = []
    for number, prompt in enumerate(prompts):
        for name, plan in named:
            if answers is None:
                requests.append(Request(prompt, tuple(choice(prompt, ids) for ids in letters.values()), plan))
                rows += [{"prompt": number, "plan": name, "answer": letter} for letter in letters]
                continue
            for text in by_prompt[number]:
                whole = prompt.followed_by(tokenizer, text)
                requests.append(Request(whole, (continuation(whole),), plan))
                rows.append({"prompt": number, "plan": name, "answer": text})
    if not requests:
        raise InputError("There is nothing to score: no prompts, no plans or no answers were given; give one of each.")
    return pd.DataFrame(rows), requests


def table_of(rows: pd.DataFrame, scores: Sequence[tuple[float, ...]]) -> pd.DataFrame:
    """The rows of `score_requests` with their scores."""
    return rows.assign(log_p=[value for found in scores for value in found])


def _answers_by_prompt(answers: Sequence[str] | Sequence[Sequence[str]] | None, prompts: int) -> list[list[str]]:
    """The answers of each prompt, whichever way they were given."""
    if answers is None:
        return []
    if all(isinstance(one, str) for one in answers):
        return [[str(one) for one in answers]] * prompts
    if len(answers) != prompts:
        raise InputError(f"There are {len(answers)} lists of answers for {prompts} prompts, but each needs its own.")
    return [[str(text) for text in some] for some in answers]

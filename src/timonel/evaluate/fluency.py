r"""The fluency guard: how much less likely a plan makes plain text about nothing in particular.

    perplexity = exp(- mean over tokens of log p(t_i | t_<i))
    ratio      = exp(mean over tokens of [log p_baseline(t_i) - log p_steered(t_i)])        1 where nothing changed

Each paragraph's first sentence is what the model has read (the prompt), the rest is what is scored (the continuation),
so a plan for the prompt, for what is generated, or for both, all show. Intervals are exponentials of the
paragraph-clustered bootstrap-t of the mean log-ratio over tokens. The guard holds where the interval's upper end is at
most `LIMIT`: what is not excluded is not forgiven.

Parts of a plan that act on named spans have no place in a text without them; they are left out, and the ratio of a plan
of nothing else is 1 by construction, not by measurement: `acts` is then False.

Source: the texts are ours (CC0, `neutral_en.txt`: twelve English paragraphs).
Does not show: fluency in another language, in long texts, or in the answers that a steered model writes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from timonel.engine import Reading, Request
from timonel.errors import InputError
from timonel.prompts import Prompt, render
from timonel.stats import Estimate, cluster_mean
from timonel.steer import EdgeScale, Plan, Region

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from timonel.engine import Engine

LIMIT = 1.10
"""The guard: at most this ratio of perplexities."""

_TEXTS = Path(__file__).parent / "neutral_en.txt"


@dataclass(frozen=True)
class Fluency:
    """Perplexities of one plan.

    Attributes:
        baseline, steered: perplexity without and with the plan.
        ratio: steered over baseline.
        acts: whether any part of the plan can act on these texts.
    """

    baseline: Estimate
    steered: Estimate
    ratio: Estimate
    acts: bool

    def holds(self, limit: float = LIMIT) -> bool:
        """Whether the guard holds."""
        return self.ratio.high <= limit

    def table(self, condition: str, limit: float = LIMIT) -> pd.DataFrame:
        """One row a quantity."""
        parts = {"perplexity, baseline": self.baseline, "perplexity, steered": self.steered, "ratio": self.ratio}
        rows = [
            {"condition": condition, "quantity": name, "value": one.value, "low": one.low, "high": one.high}
            | {"n": one.n, "n_paragraphs": one.clusters, "acts": self.acts, "limit": limit, "holds": self.holds(limit)}
            for name, one in parts.items()
        ]
        return pd.DataFrame(rows)

    def words(self, condition: str, limit: float = LIMIT) -> str:
        """What it says."""
        if not self.acts:
            return f"Under {condition}, plain text is as it was: no part of the plan acts where no span is named."
        verdict = "the fluency guard holds" if self.holds(limit) else "the fluency guard does not hold"
        return (
            f"Under {condition}, the perplexity of plain text is {self.ratio} times what it was: {verdict} ({limit:g})."
        )


@cache
def neutral_texts() -> tuple[str, ...]:
    """The paragraphs."""
    return tuple(part.strip() for part in _TEXTS.read_text(encoding="utf-8").split("\n\n") if part.strip())


def fluency(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    plan: Plan,
    texts: Sequence[str] | None = None,
    *,
    draws: int = 9999,
    seed: int = 0,
    stage: str = "fluency",
) -> Fluency:
    """Scores the texts with and without the plan.

    Args:
        engine: of the model; its store keeps the scores.
        tokenizer: the model's.
        plan: what to judge.
        texts: paragraphs of two sentences at least; our own by default.
        draws: resamples of paragraphs.
        seed: of the resampling.
        stage: name for the progress.

    Raises:
        InputError: a text of one sentence, or fewer than two texts.
    """
    prompts = [_prompt(tokenizer, text) for text in (neutral_texts() if texts is None else texts)]
    if len(prompts) < 2:
        raise InputError(f"{len(prompts)} texts were given, but the interval needs two at least; give more paragraphs.")
    kept = anywhere(plan)
    plain = [Request(prompt, _tokens(prompt)) for prompt in prompts]
    found = engine.score([*plain, *(replace(one, plan=kept) for one in plain)], stage=stage)
    paragraph = np.repeat(np.arange(len(prompts)), [len(one) for one in found[: len(prompts)]])
    before, after = (np.concatenate(part) for part in (found[: len(prompts)], found[len(prompts) :]))

    def exponential(values: np.ndarray) -> Estimate:
        mean = cluster_mean(values, paragraph, draws=draws, seed=seed)
        low, high = (math.exp(min(end, 700.0)) for end in (mean.low, mean.high))
        value = math.exp(min(mean.value, 700.0))
        method = f"exponential of the {mean.method.partition(';')[0]}"
        return replace(mean, value=value, low=low, high=high, se=value * mean.se, p=None, method=method)

    return Fluency(exponential(-before), exponential(-after), exponential(before - after), not kept.is_identity)


def anywhere(plan: Plan) -> Plan:
    """The parts of a plan that need no named span."""
    return Plan(tuple(one for one in plan if not isinstance(one, EdgeScale) and isinstance(one.scope, Region)))


def _prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> Prompt:
    """The first sentence, and the rest as what follows it."""
    first, full_stop, rest = text.partition(". ")
    if not rest.strip():
        raise InputError(
            f"{text[:80]!r} is one sentence, but the first is read and the rest scored; give a second one."
        )
    return render(tokenizer, first + full_stop.rstrip()).followed_by(tokenizer, f" {rest}")


def _tokens(prompt: Prompt) -> tuple[tuple[Reading], ...]:
    """Each token of the continuation as an answer of its own."""
    return tuple((Reading(position - 1, (prompt.ids[position],)),) for position in prompt.positions("answer"))

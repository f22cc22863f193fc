r"""What a plan has to beat: a prompt, a difference of means, and the same intervention at heads taken at random.

    prompt     `CONTEXT_PREFIX` + question, no plan
    DiffMean   v = mean over prompts A of x_l - mean over prompts B of x_l;   x' = x + scale * v after layer l
               x_l: [hidden], the residual stream after layer l at the last prompt token
    random     the plan's own intervention at as many other heads of the same layers, which the caller draws

DiffMean must not see what it is judged on: `contrast_prompts` takes the scenarios to learn from, and the task that is
judged should hold the others.

Source: the residual baseline is the usual one of the steering literature.
Does not show: that no better prompt or vector exists; these are the obvious ones.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Float

from timonel.errors import InputError
from timonel.evaluate.questions import HALVES, QuestionTask
from timonel.evaluate.task import Condition
from timonel.prompts import Prompt, Wrap
from timonel.steer import ALL, ChannelScale, EdgeScale, Plan, ResidualAdd, Scope, span
from timonel.steer.vector import Vector

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from timonel.engine import Engine
    from timonel.models import Geometry

Heads = Sequence[tuple[int, int]]

CONTEXT_PREFIX = (
    "Consider the cultural context of the following question: whether the thing that it names belongs to the culture "
    "of one of the people in it, and whether that is a reason to treat them differently.\n\n"
)
"""The rival prompt, in English whatever the questions' language."""


def prompt_rival() -> Condition:
    """The model as it is, asked to consider the cultural context."""
    return Condition("prompt", prefix=CONTEXT_PREFIX)


def contrast_prompts(
    task: QuestionTask, scenarios: Collection[str], tokenizer: PreTrainedTokenizerBase, wrap: Wrap
) -> tuple[list[Prompt], list[Prompt]]:
    """The prompts of some scenarios, `different` and `equal`: what DiffMean learns from."""
    chosen = tuple(question for question in task.questions if question.scenario in set(scenarios))
    prompts = [
        replace(task, questions=tuple(one for one in chosen if one.half == half)).prompts(tokenizer, wrap)
        for half in HALVES
    ]
    return prompts[0], prompts[1]


def diff_mean(
    toward: Float[np.ndarray, "a hidden"], away: Float[np.ndarray, "b hidden"]
) -> Float[np.ndarray, "hidden"]:
    """The difference of two means of residual streams."""
    if toward.ndim != 2 or toward.shape[1:] != away.shape[1:] or not (len(toward) and len(away)):
        raise InputError(
            f"The residual streams have shapes {toward.shape} and {away.shape}, but [prompts, hidden] is needed, with "
            "a prompt in each and one hidden size; give those of one layer."
        )
    moved: np.ndarray = toward.mean(axis=0, dtype=np.float64) - away.mean(axis=0, dtype=np.float64)
    return moved


def diff_mean_plan(
    engine: Engine,
    toward: Sequence[Prompt],
    away: Sequence[Prompt],
    *,
    layer: int,
    scale: float = 1.0,
    scope: Scope = ALL,
) -> Plan:
    """Adds the difference of means of two sets of prompts after a layer.

    Args:
        engine: of the model.
        toward: prompts of what is wanted more of.
        away: prompts of the rest.
        layer: 0-based.
        scale: weight of the vector.
        scope: where it is added.
    """
    from timonel.engine.capture import residuals

    found = residuals(engine, [*toward, *away], [layer])[:, 0]
    vector = Vector(diff_mean(found[: len(toward)], found[len(toward) :]))
    return Plan((ResidualAdd(layer=layer, vector=vector, scale=scale, scope=scope),))


def edge_plan(heads: Heads, alpha: float, *, whose: Literal["related", "other"] = "related") -> Plan:
    """Scales the edge from an option to the item at some heads; the other group's option is the control."""
    edges = (
        EdgeScale(layer=layer, head=head, queries=span(whose), keys=span("item"), alpha=alpha) for layer, head in heads
    )
    return Plan(tuple(edges))


def head_plan(geometry: Geometry, heads: Heads, alpha: float) -> Plan:
    """Scales all that some heads write, at all positions: what can be exported."""
    return Plan(tuple(ChannelScale.head(geometry, layer=layer, head=head, alpha=alpha) for layer, head in heads))

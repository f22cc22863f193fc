"""A part of the questions that stands for all of them: as many scenarios as possible, alike in both halves.

    round r takes the r-th question of every scenario that has one (chance decides which it is);
    within a round the next one is of the stratum (polarity, family) with the smallest taken / size,
    among scenarios in an order drawn once for both halves

So a sample lies inside each larger one of the same seed, and both halves hold the same scenarios as far as they can.
Scenarios are what inference clusters on: a question of a new one tells more than a second one of an old one.

Errors:
    InputError: fewer than one question is asked for, or a negative seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from timonel.errors import InputError
from timonel.evaluate.questions import HALVES, Half, Question

DEFAULT_SIZE = 132
"""Questions a side that are asked by default: two a scenario of N4."""


def sample(questions: Sequence[Question], count: int | None, seed: int) -> tuple[Question, ...]:
    """Up to `count` questions of each half, in the order in which they were given; None takes all.

    Raises:
        InputError: fewer than one question is asked for, or the seed is negative.
    """
    if count is None:
        return tuple(questions)
    if count < 1 or seed < 0:
        raise InputError(
            f"{count} questions a side with seed {seed} were asked for; give 1 or more, and a seed from 0."
        )
    names = sorted({question.scenario for question in questions})
    order = [names[index] for index in np.random.default_rng(seed).permutation(len(names))]
    chosen: set[tuple[Half, int]] = set()
    for stream, half in enumerate(HALVES):
        some = [question for question in questions if question.half == half]
        ranked = _ranked(some, order, np.random.default_rng([seed, stream]))
        chosen.update((half, question.number) for question in ranked[:count])
    return tuple(question for question in questions if (question.half, question.number) in chosen)


def _ranked(questions: Sequence[Question], order: Sequence[str], rng: np.random.Generator) -> list[Question]:
    left: dict[str, list[Question]] = {}
    by_number = sorted(questions, key=lambda question: question.number)
    for index in rng.permutation(len(by_number)):
        left.setdefault(by_number[index].scenario, []).append(by_number[index])
    size = Counter((question.polarity, question.family) for question in questions)
    taken: Counter[tuple[str, str]] = Counter()
    ranked: list[Question] = []
    while len(ranked) < len(questions):
        waiting = [name for name in order if left.get(name)]
        while waiting:
            open_to = ((name, one, (one.polarity, one.family)) for name in waiting for one in left[name])
            # min takes the first of equals, so that ties go by the drawn order of the scenarios.
            name, question, stratum = min(open_to, key=lambda at: taken[at[2]] / size[at[2]])
            left[name].remove(question)
            waiting.remove(name)
            taken[stratum] += 1
            ranked.append(question)
    return ranked

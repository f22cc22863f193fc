"""W6: two Ray workers of one thread each against half the time of one process of one thread; starting is not timed.

    overhead = time of two workers / (time of one process / 2),    1 where handing work about costs nothing

Units are small on purpose, so that handing them about shows: 200 of them, each one prompt of 48 random tokens and one
cut.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from bench import cases
from bench.measure import Side, agree, alternate, ratio
from bench.result import Result, Row
from bench.settings import Settings
from timonel.engine import Engine, RayWorkers, Request, Store, choice
from timonel.prompts import Prompt

MODEL, UNITS, WORKERS, LENGTH = "smollm2-135m", 200, 2, 48
# The first row that the cuts change.
FIRST = 20
TOLERANCE = 1e-4


def _work(heads: int) -> list[tuple[Request, tuple[cases.Heads, ...]]]:
    """Random tokens that share no beginning, each with one draw."""
    rng, chosen = np.random.default_rng(0), cases.draws(heads, range(8, 17), UNITS)
    spans = {"item": (10, 11, 12), "varied": (FIRST, FIRST + 1, FIRST + 2)}
    prompts = [Prompt(tuple(int(token) for token in rng.integers(1000, 40000, LENGTH)), spans) for _ in range(UNITS)]
    return [(Request(p, (choice(p, (100, 101)),)), (one,)) for p, one in zip(prompts, chosen, strict=True)]


def run(settings: Settings) -> Result:
    import ray  # noqa: F401 - where it is missing this workload is not run, and says so

    import timonel as tm

    model, tokenizer = tm.load(MODEL)
    requests = [
        cases.Sweep(request, cut).requests()[0] for request, cut in _work(tm.Geometry.of(model).layers[0].heads)
    ]
    budget = 3 * FIRST // 2  # a unit's trunk pass then holds the beginning of one prompt, and no second one
    workers = RayWorkers(MODEL, workers=WORKERS, threads=1)
    spread = Engine(model, tokenizer, batch_tokens=budget, workers=workers)
    here = Engine(model, tokenizer, batch_tokens=budget)
    units = here.workload(requests).units
    torch.set_num_threads(1)

    def side(engine: Engine) -> Side:
        def score(turn: int) -> list[list[float]]:
            engine.store = Store()
            return [list(one) for one in engine.score(requests)]

        return score

    sides = {"one process": side(here), "Ray": side(spread)}
    try:
        check = agree({name: run(0) for name, run in sides.items()}, TOLERANCE)
        clocks = alternate(sides, range(settings.rounds(3)))
    finally:
        workers.stop()
    # The workers' CPU time is not this process's.
    found = replace(ratio(clocks["Ray"], clocks["one process"], WORKERS), cpu=None)
    rows = (Row("two workers of a thread each / half of one process of a thread", found, "<=", (1.10,)),)
    return Result("W6", f"Ray ({MODEL}, {units} units)", rows, (check,))

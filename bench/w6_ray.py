"""W6: two Ray workers of one thread each against one process of two threads; starting them is not timed.

Units are small on purpose, so that handing them about shows: 200 of them, each one prompt of 48 random tokens and one
cut.
"""

from __future__ import annotations

import numpy as np
import torch

from bench import cases
from bench.measure import Side, agree, alternate, ratio
from bench.result import Result, Row
from bench.settings import Settings
from timonel.engine import Engine, RayWorkers, Request, Store, choice
from timonel.prompts import Prompt

MODEL, UNITS, WORKERS, LENGTH = "smollm2-135m", 200, 2, 48
TOLERANCE = 1e-4


def _work(heads: int) -> list[tuple[Request, tuple[cases.Heads, ...]]]:
    """Random tokens that share no beginning, each with one draw."""
    rng, chosen = np.random.default_rng(0), cases.draws(heads, range(8, 17), UNITS)
    spans = {"item": (10, 11, 12), "varied": (20, 21, 22)}
    prompts = [Prompt(tuple(int(token) for token in rng.integers(1000, 40000, LENGTH)), spans) for _ in range(UNITS)]
    return [(Request(p, (choice(p, (100, 101)),)), (one,)) for p, one in zip(prompts, chosen, strict=True)]


def run(settings: Settings) -> Result:
    import ray  # noqa: F401 - where it is missing this workload is not run, and says so

    import timonel as tm

    model, tokenizer = tm.load(MODEL)
    requests = [
        cases.Sweep(request, cut).requests()[0] for request, cut in _work(tm.Geometry.of(model).layers[0].heads)
    ]
    budget = LENGTH  # a unit's trunk pass holds one prompt of this many tokens, and no second one
    workers = RayWorkers(MODEL, workers=WORKERS, threads=1)
    spread = Engine(model, tokenizer, batch_tokens=budget, workers=workers)
    here = Engine(model, tokenizer, batch_tokens=budget)
    torch.set_num_threads(WORKERS)

    def side(engine: Engine) -> Side:
        def score(turn: int) -> list[list[float]]:
            engine.store = Store()
            return [list(one) for one in engine.score(requests)]

        return score

    sides = {"one process": side(here), "Ray": side(spread)}
    try:
        check = agree({name: run(0) for name, run in sides.items()}, TOLERANCE)
        clocks = alternate(sides, range(settings.rounds(2)))
    finally:
        workers.stop()
    units = here.workload(requests).units
    found = ratio(clocks["Ray"], clocks["one process"])
    found = type(found)(found.value, found.low, found.high, found.n)  # the workers' CPU time is not this process's
    rows = (Row("two workers of a thread each / one process of two threads", found, "<=", (1.10,)),)
    return Result("W6", f"Ray ({MODEL}, {units} units)", rows, (check,))

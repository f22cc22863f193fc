"""W4: a grid of 11 alphas: channel scales on `down_proj` in two layers at 0.75 of the depth, 60 prompts with three
labels each; a turn is all of it, in one call.

    factors = 1 + alpha * d,    alpha = -1, -0.8, ... 1,    d = 0.5 at a twentieth of the neurons, drawn at random

The plain run is the engine's own, unsteered, with a prompt's three labels sharing its tokens; its time is counted
eleven times. The loop is transformers' own at one alpha: hooks, right-padded batches of whole texts, the head at the
rows that are read; counted eleven times too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from bench import cases
from bench.measure import Side, agree, alternate, moved, ratio
from bench.result import Result, Row
from bench.settings import Settings
from timonel.engine import Engine, Request, Store, continuation
from timonel.models.geometry import Geometry
from timonel.prompts import Prompt
from timonel.steer import ChannelScale, Plan

MODEL, PROMPTS, FEW, DEPTH = "gemma3-270m", 60, 6, 0.75
ALPHAS = tuple(round(-1 + step / 5, 1) for step in range(11))
LABELS = (" Yes", " Maybe", " No")
TOLERANCE = 1e-3


def texts() -> tuple[list[str], str]:
    """Questions in XNLI's manner, and where their sentences come from."""
    file = cases.data_dir() / "xnli" / "dev.en.tsv"
    if file.is_file():
        rows = [line.split("\t") for line in file.read_text(encoding="utf-8").split("\n")[1 : 3 * PROMPTS : 3]]
        pairs, source = [(row[4], row[5]) for row in rows], "XNLI's English dev set"
    else:
        places = ("in the old harbour", "behind the station", "on the third floor", "near the river")
        pairs = [
            (f"Number {n} stands {places[n % 4]}, as it did last year.", f"It moved {n} times.") for n in range(PROMPTS)
        ]
        source = "made-up sentences (TIMONEL_DATA has no XNLI)"
    return [
        f"Premise: {a}\nHypothesis: {b}\nDoes the premise entail the hypothesis?\nAnswer:" for a, b in pairs[:PROMPTS]
    ], source


def plan_of(geometry: Geometry, alpha: float) -> Plan:
    """The scales of one alpha; 0 is the identity."""
    first = int(DEPTH * geometry.n_layers)
    scales = []
    for layer in (first, first + 1):
        neurons = geometry.layers[layer].neurons
        chosen = np.random.default_rng(layer).choice(neurons, neurons // 20, replace=False)
        factors = np.ones(neurons)
        factors[chosen] += alpha * 0.5
        scales.append(ChannelScale(layer=layer, site="down_proj", factors=factors))  # type: ignore[arg-type]
    return Plan(tuple(scales))


def scored(engine: Engine, prompts: Sequence[Prompt], plans: Sequence[Plan]) -> list[list[float]]:
    """By the engine, which must not know them yet."""
    engine.store = Store()
    return [
        list(one) for one in engine.score([Request(p, (continuation(p),), plan) for plan in plans for p in prompts])
    ]


@torch.inference_mode()
def loop(model: Any, geometry: Geometry, prompts: Sequence[Prompt], plan: Plan, budget: int) -> list[list[float]]:
    """Transformers alone, at one alpha."""
    found: list[list[float]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    step = max(1, budget // max(map(len, prompts)))
    with ExitStack() as undo:
        for one in plan:
            factors = torch.tensor(one.factors.array.copy(), dtype=torch.float32)  # type: ignore[union-attr]
            module = model.get_submodule(geometry.layers[one.layer].down_proj)
            hook = module.register_forward_pre_hook(lambda module, args, factors=factors: (args[0] * factors,))
            undo.callback(hook.remove)
        for start in range(0, len(order), step):
            some = [prompts[index] for index in order[start : start + step]]
            width = max(map(len, some))
            ids = torch.tensor([[*one.ids, *[0] * (width - len(one))] for one in some])
            hidden = model.get_submodule(geometry.decoder)(input_ids=ids, use_cache=False).last_hidden_state
            for index, row, prompt in zip(order[start : start + step], hidden, some, strict=True):
                at = torch.tensor(prompt.positions("answer"))
                logs = model.get_submodule(geometry.head)(row[at - 1]).float().log_softmax(-1)
                found[index] = [float(logs[torch.arange(len(at)), torch.tensor(prompt.ids)[at]].double().sum())]
    return found


def run(settings: Settings) -> Result:
    import timonel as tm

    model, tokenizer = tm.load(MODEL)
    engine, geometry = Engine(model, tokenizer), Geometry.of(model)
    questions, source = texts()
    whole = [[Prompt.parse(tokenizer, text).followed_by(tokenizer, label) for label in LABELS] for text in questions]
    every = [prompt for some in whole for prompt in some]
    work = [every[: FEW * len(LABELS)], every]  # the warm-up, in which the sides are compared, and a turn
    grid = [plan_of(geometry, alpha) for alpha in ALPHAS]
    strong = grid[-1]
    both = {
        "timonel": scored(engine, work[0], [strong]),
        "loop": loop(model, geometry, work[0], strong, engine.batch_tokens),
    }
    unsteered = scored(engine, work[0], [Plan()])
    checks = [source, agree(both, TOLERANCE), moved(unsteered, both["timonel"], 10 * TOLERANCE)]
    sides: dict[str, Side] = {
        "grid": lambda turn: scored(engine, work[turn], grid),
        "plain": lambda turn: scored(engine, work[turn], [Plan()]),
        "loop": lambda turn: loop(model, geometry, work[turn], strong, engine.batch_tokens),
    }
    sides["grid"](0)
    clocks = alternate(sides, [1] * settings.rounds(3))
    each = 1 / len(ALPHAS)
    rows = (
        Row("grid / eleven plain runs of the engine", ratio(clocks["grid"], clocks["plain"], each), "<=", (0.45,)),
        Row("grid / eleven runs of the loop", ratio(clocks["grid"], clocks["loop"], each)),
    )
    title = f"grid of {len(ALPHAS)} alphas ({MODEL}, {PROMPTS} prompts x {len(LABELS)} labels)"
    return Result("W4", title, rows, tuple(checks))

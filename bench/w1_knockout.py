"""W1: a knockout sweep. 8 pairs x two prompts x 32 draws of three heads; a turn is one pair.

`needed / time`, as a share of what plain products of the model's shapes reach beside it, says how much of the time goes
into work that must be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench import cases, plain
from bench.cases import Sweep
from bench.flops import Multiplier, needed, whole
from bench.measure import Clock, Side, agree, alternate, median, moved, ratio
from bench.result import Result, Row
from bench.settings import Settings
from timonel.engine import Engine, Store
from timonel.models import catalog

MODEL, PAIRS, DRAWS, LAYERS = "smollm2-135m", 8, 32, range(8, 17)
# Scores are log-probabilities in float32, where kernels differ by about 1e-5.
TOLERANCE = 1e-4
PRODUCTS = 8
# Draws of the warm-up, in which the sides are compared.
FEW = 8


def scored(engine: Engine, sweeps: Sequence[Sweep]) -> plain.Scores:
    """By the engine, which must not know them yet; all sweeps are one call."""
    engine.store = Store()
    return [list(one) for one in engine.score([request for sweep in sweeps for request in sweep.requests()])]


def sweeps_of(tokenizer: Any, heads: int, pairs: int, draws: int) -> tuple[list[list[Sweep]], str]:
    """For each pair the sweeps of its two prompts."""
    some, source = cases.pairs(pairs)
    chosen = cases.draws(heads, LAYERS, draws)
    return [[Sweep(request, chosen) for request in both] for both in cases.letters(tokenizer, some)], source


def shares(engine: Engine, work: Sequence[Sequence[Sweep]], clocks: dict[str, Clock], product: Multiplier) -> list[Row]:
    """The share of the product rate at which needed work was done; `work` is what each turn ran."""
    ours, products = clocks["timonel"], clocks["products"]
    rows = []
    for strict, what in ((False, "needed arithmetic a second / that of plain products"), (True, "the same, strictly")):
        flops = [needed(engine.geometry, some, strict=strict) / PRODUCTS / product.flops for some in work]
        wall, cpu = (
            [f * b / a for f, a, b in zip(flops, mine, best, strict=False)]
            for mine, best in ((ours.wall, products.wall), (ours.cpu, products.cpu))
        )
        found = median(wall, cpu=median(cpu).value)
        rows.append(Row(what, found) if strict else Row(what, found, ">=", (0.6,)))
    counts = [whole(engine.geometry, some) / needed(engine.geometry, some) for some in work]
    return [*rows, Row("arithmetic of whole passes / needed: the speed-up at equal rates (a count)", median(counts))]


def run(settings: Settings) -> Result:
    import nnsight  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from transformer_lens.model_bridge import TransformerBridge  # type: ignore[import-not-found,import-untyped,unused-ignore]

    import timonel as tm

    model, tokenizer = tm.load(MODEL)
    engine, geometry = Engine(model, tokenizer), tm.Geometry.of(model)
    pairs, source = sweeps_of(tokenizer, geometry.layers[0].heads, PAIRS, DRAWS)
    own, _ = tm.load(MODEL)  # TransformerLens makes a model's attention eager, so each peer has a model of its own
    path = str(catalog.path_of(MODEL))
    bridge = TransformerBridge.boot_transformers(path, hf_model=own, tokenizer=tokenizer, device="cpu")
    wrapped = nnsight.NNsight(tm.load(MODEL)[0])
    product = Multiplier(model, geometry, engine.batch_tokens)

    few = [replace(sweep, draws=sweep.draws[:FEW]) for sweep in pairs[0]]
    work = [few, *pairs]
    sides: dict[str, Side] = {
        "timonel": lambda turn: scored(engine, work[turn]),
        "loop": lambda turn: [row for sweep in work[turn] for row in plain.loop(model, geometry, sweep)],
        "TransformerLens": lambda turn: [row for sweep in work[turn] for row in plain.tl(bridge, sweep)],
    }
    given = {name: side(0) for name, side in sides.items()}
    given["nnsight"] = [row for sweep in few for row in plain.nn(wrapped, geometry, sweep)]
    steering = moved(unsteered(engine, few), given["timonel"], 10 * TOLERANCE)
    checks = [f"pairs of {source}", agree(given, TOLERANCE), steering]
    if settings.nnsight:  # about as long as TransformerLens, so it is not timed by default
        sides["nnsight"] = lambda turn: [row for sweep in work[turn] for row in plain.nn(wrapped, geometry, sweep)]
    product(PRODUCTS)
    sides["products"] = lambda turn: product(PRODUCTS)
    turns = list(range(1, 1 + len(pairs))) * settings.rounds(1)
    clocks = alternate(sides, turns)
    ours = clocks["timonel"]
    rows = [
        Row("TransformerLens, batched over draws / timonel", ratio(clocks["TransformerLens"], ours), ">=", (4,)),
        Row("plain loop / timonel", ratio(clocks["loop"], ours), ">=", (3.3,)),
        *([Row("nnsight, batched over draws / timonel", ratio(clocks["nnsight"], ours))] if settings.nnsight else []),
        *shares(engine, [work[turn] for turn in turns], clocks, product),
    ]
    title = f"knockout sweep ({MODEL}; a turn is one of {PAIRS} pairs, two prompts x {DRAWS} draws)"
    return Result("W1", title, tuple(rows), tuple(checks))


def unsteered(engine: Engine, sweeps: Sequence[Sweep]) -> plain.Scores:
    """What the sweeps' prompts score without a cut, once a draw."""
    engine.store = Store()
    return [list(engine.score([sweep.request])[0]) for sweep in sweeps for _ in sweep.draws]

"""W5: what steering costs a decode step. Batch 8, 64 new tokens, greedy; a turn is one decode, its prefill not timed.

Unsteered, through hooks (three heads scaled; three edges scaled, which act on the prompt alone), and folded: the heads'
factors multiplied into `o_proj` by hand, on a copy.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from bench.measure import Clock, Side, agree, alternate, moved, ratio
from bench.result import Result, Row
from bench.settings import Settings
from timonel.models.geometry import Geometry
from timonel.prompts import Prompt
from timonel.steer import ChannelScale, EdgeScale, Plan, attach, span

MODEL, BATCH, CONTEXT, TOKENS, ALPHA = "smollm2-135m", 8, 64, 64, 2.0
TOLERANCE = 1e-3


@dataclass
class Decode:
    """Greedy decoding of fixed prompts; `seconds` is what its last run took after the prefill."""

    ids: torch.Tensor
    tokens: int
    seconds: float = 0.0
    cpu: float = 0.0

    @torch.inference_mode()
    def __call__(self, model: Any, tokens: int | None = None) -> list[list[float]]:
        """Decodes; gives the logits of the first step after the prefill."""
        output = model(self.ids, use_cache=True, logits_to_keep=1)
        first = output.logits
        wall, cpu = _now()
        for step in range(self.tokens if tokens is None else tokens):
            cache = output.cache
            output = model(output.logits[:, -1:].argmax(-1), cache=cache, use_cache=True)
            first = output.logits if step == 0 else first
        end, end_cpu = _now()
        self.seconds, self.cpu = end - wall, end_cpu - cpu
        kept: list[list[float]] = first[:, -1].float().tolist()
        return kept


def _now() -> tuple[float, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter(), time.process_time()


def plans(geometry: Geometry) -> dict[str, Plan]:
    """Three heads scaled, and three edges, in the middle third."""
    middle = geometry.n_layers // 3
    heads = [ChannelScale.head(geometry, layer=middle + i, head=0, alpha=ALPHA) for i in range(3)]
    names = {"queries": span("identity"), "keys": span("item")}
    edges = [EdgeScale(layer=middle + i, head=0, alpha=ALPHA, **names) for i in range(3)]
    return {"heads": Plan(tuple(heads)), "edges": Plan(tuple(edges))}


def folded(model: Any, geometry: Geometry, plan: Plan) -> Any:
    """A copy whose output projections hold the plan's factors."""
    own = copy.deepcopy(model)
    for one in plan:
        if not isinstance(one, ChannelScale):
            raise TypeError("channel scales fold into weights; edges do not")
        weight = own.get_submodule(geometry.layers[one.layer].o_proj).weight
        weight.data *= torch.tensor(one.factors.array.copy()).to(weight)
    return own


def measured(
    model: Any, ids: torch.Tensor, turns: int, tolerance: float, least: float, seconds: float | None = None
) -> tuple[list[Row], list[str]]:
    """Rows and checks, for any model; `ids` are the prompts, [b, q]; steering must move logits by more than `least`."""
    geometry = Geometry.of(model)
    prompts = [Prompt(tuple(row.tolist()), {"item": (5, 6), "identity": (20, 21)}) for row in ids]
    by_name = plans(geometry)
    own = folded(model, geometry, by_name["heads"])
    decode = Decode(ids, TOKENS)

    def hooked(name: str) -> Callable[[], Any]:
        return lambda: attach(model, by_name[name], prompts=prompts, check=False)

    variants: dict[str, tuple[Any, Callable[[], Any]]] = {
        "unsteered": (model, nullcontext),
        "heads": (model, hooked("heads")),
        "edges": (model, hooked("edges")),
        "folded": (own, nullcontext),
    }
    found = {}
    for name, (which, context) in variants.items():
        with context():
            found[name] = decode(which, 2)
    checks = [agree({"hooks": found["heads"], "folded": found["folded"]}, tolerance)]
    checks += [f"{name}: {moved(found['unsteered'], found[name], least)}" for name in ("heads", "edges")]
    clocks = _alternated(variants, decode, turns, seconds)
    plain = clocks["unsteered"]
    return [
        Row("three heads scaled by hooks / unsteered", ratio(clocks["heads"], plain), "<=", (1.05,)),
        Row("three edges scaled by hooks / unsteered", ratio(clocks["edges"], plain), "<=", (1.05,)),
        Row("three heads folded / unsteered", ratio(clocks["folded"], plain), "in", (0.97, 1.03)),
    ], checks


def _alternated(
    variants: dict[str, tuple[Any, Callable[[], Any]]], decode: Decode, turns: int, seconds: float | None
) -> dict[str, Clock]:
    """The steps' own times, without prefill and attaching, which `alternate` would count too."""
    clocks = {name: Clock() for name in variants}

    def side(name: str) -> Side:
        which, context = variants[name]

        def run(turn: int) -> None:
            with context():
                decode(which)
            clocks[name].wall.append(decode.seconds)
            clocks[name].cpu.append(decode.cpu)

        return run

    sides = {name: side(name) for name in variants}
    alternate(sides, range(turns), seconds=seconds)
    return clocks


def run(settings: Settings) -> Result:
    import timonel as tm

    model, _ = tm.load(MODEL)
    ids = torch.randint(10, 1000, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(0))
    rows, checks = measured(model, ids, settings.rounds(6), TOLERANCE, TOLERANCE)
    return Result(
        "W5", f"steered decode ({MODEL}, batch {BATCH}, {TOKENS} new tokens a turn)", tuple(rows), tuple(checks)
    )

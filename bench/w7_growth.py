"""W7: how W1's time grows with the draws: one pair's two prompts x 1, 2, 4, 8 times W1's draws.

    slope = least squares over (draws, seconds), a prompt        target: under a quarter of a plain pass of that prompt
    late / early = (t8 - t4) / 4 over (t2 - t1) / 1              linear: 1
    off = largest |seconds - line| / line                        linear: 0

The plain pass is transformers' own, one prompt at a time, logits of the last row only.
"""

from __future__ import annotations

import numpy as np
import torch

from bench.flops import needed, whole
from bench.measure import Clock, Side, agree, alternate, median, timed
from bench.result import Result, Row
from bench.settings import Settings
from bench.w1_knockout import DRAWS, MODEL, TOLERANCE, scored, sweeps_of
from timonel.engine import Engine

TIMES = (1, 2, 4, 8)
PLAIN = 8


def growth(clocks: dict[str, Clock], passes: int, prompts: int, draws: int) -> list[Row]:
    """Slope and straightness of each turn; `passes` plain passes of each prompt make a turn of `plain`."""
    x = np.array([draws * times for times in TIMES], dtype=np.float64)
    y = np.array([clocks[f"{times}x"].wall for times in TIMES]) / prompts
    slopes, bases = np.polyfit(x, y, 1)
    plain = np.array(clocks["plain"].wall) / passes / prompts
    cpu = np.polyfit(x, np.array([clocks[f"{times}x"].cpu for times in TIMES]), 1)[0] / np.array(clocks["plain"].cpu)
    lines = slopes * x[:, None] + bases
    late, early = (y[3] - y[2]) / (x[3] - x[2]), (y[1] - y[0]) / (x[1] - x[0])
    slope = median(list(slopes / plain), cpu=float(np.median(cpu)) * passes)
    return [
        Row("seconds a draw / a plain pass, a prompt", slope, "<=", (0.25,)),
        Row("largest departure from a straight line, as a share", median(list(np.abs(y / lines - 1).max(axis=0)))),
        Row("slope from 4x to 8x / slope from 1x to 2x", median(list(late / early))),
    ]


def run(settings: Settings) -> Result:
    import timonel as tm

    model, tokenizer = tm.load(MODEL)
    engine = Engine(model, tokenizer)
    heads = engine.geometry.layers[0].heads
    by_times = {times: sweeps_of(tokenizer, heads, 1, DRAWS * times)[0][0] for times in TIMES}
    prompts = [torch.tensor([sweep.ids]) for sweep in by_times[1]]

    @torch.inference_mode()
    def plain(turn: int) -> None:
        for _ in range(PLAIN):
            for ids in prompts:
                model(input_ids=ids, logits_to_keep=1, use_cache=False)

    def grown(times: int) -> Side:
        return lambda turn: scored(engine, by_times[times])

    sides: dict[str, Side] = {**{f"{times}x": grown(times) for times in TIMES}, "plain": plain}
    first = sides["1x"](0)
    among = np.array(sides["2x"](0)).reshape(len(prompts), 2, DRAWS, -1)[:, 0]
    check = agree({f"{DRAWS} draws": np.array(first).reshape(among.shape), "among twice as many": among}, TOLERANCE)
    timed(Clock(), plain, 0)
    clocks = alternate(sides, range(settings.rounds(3)))
    one = needed(engine.geometry, by_times[2]) - needed(engine.geometry, by_times[1])
    count = one / whole(engine.geometry, by_times[1])  # both are DRAWS draws' worth
    rows = growth(clocks, PLAIN, len(prompts), DRAWS)
    rows.append(
        Row("needed arithmetic of a draw / of a plain pass: the slope at equal rates (a count)", median([count]))
    )
    return Result("W7", f"growth of W1 with 1, 2, 4 and 8 times its {DRAWS} draws (one pair)", tuple(rows), (check,))

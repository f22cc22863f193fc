"""What steering costs a decode step: W5's first half. Run: python bench/steered_decode.py [MODEL] [ALTERNATIONS]

Unsteered and steered steps of the same model alternate in one process, on caches of the same length, so that the
machine's moods strike both; the ratio of each alternation is taken, and the median with its bootstrap interval printed.
"""

from __future__ import annotations

import sys
import time

import numpy as np
import torch

import timonel as tm

BATCH, CONTEXT, STEPS = 8, 64, 8


def step_time(model: object, ids: torch.Tensor) -> float:
    """Seconds of a decode step, the mean over some, after a prefill that is not counted."""
    cache = model(ids, use_cache=True).cache  # type: ignore[operator]
    token = ids[:, :1]
    start = time.perf_counter()
    for _ in range(STEPS):
        cache = model(token, cache=cache, use_cache=True).cache  # type: ignore[operator]
    return (time.perf_counter() - start) / STEPS


@torch.inference_mode()
def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"
    alternations = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    model, _ = tm.load(name)
    geometry = tm.Geometry.of(model)
    ids = torch.randint(10, 1000, (BATCH, CONTEXT), generator=torch.Generator().manual_seed(0))
    middle = geometry.n_layers // 3
    prompts = [tm.Prompt(tuple(row.tolist()), {"item": (5, 6), "identity": (20, 21)}) for row in ids]
    plans = {
        "three heads scaled": tm.Plan(
            tuple(tm.ChannelScale.head(geometry, layer=middle + i, head=0, alpha=2.0) for i in range(3))
        ),
        "three edges scaled": tm.Plan(
            tuple(
                tm.EdgeScale(layer=middle + i, head=0, queries=tm.span("identity"), keys=tm.span("item"), alpha=2.0)
                for i in range(3)
            )
        ),
    }
    print(f"{name}, batch {BATCH}, {torch.get_num_threads()} threads, {alternations} alternations")
    print("| plan | steered / unsteered | 95 % interval |\n|---|---|---|")
    for what, plan in plans.items():
        ratios = []
        for turn in range(alternations + 2):
            pair = {}
            for steered in (turn % 2 == 0, turn % 2 == 1):  # the order alternates too
                if steered:
                    with tm.attach(model, plan, prompts=prompts, check=False):
                        pair[True] = step_time(model, ids)
                else:
                    pair[False] = step_time(model, ids)
            if turn >= 2:  # the first two warm up
                ratios.append(pair[True] / pair[False])
        draws = np.random.default_rng(0).choice(ratios, (9999, len(ratios)))
        low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
        print(f"| {what} | {np.median(ratios):.3f} | [{low:.3f}, {high:.3f}] |", flush=True)


if __name__ == "__main__":
    main()

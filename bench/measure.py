"""Alternating measurement: sides take turns in one process, so that the machine's moods strike them alike.

    ratio = median over turns t of  seconds(a, t) / seconds(b, t),   95 % percentile bootstrap over the turns

The order of the sides is reversed at every other turn. A warm-up turn comes first: it is not timed, and what the sides
gave there is compared before the clock starts. Beside wall time the process's CPU time is kept: where other work shares
the machine the two ratios differ, and then neither should be believed.

Does not show: absolute speed, nor the ratio on another machine. An interval from under ten turns is a rough one.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

Side = Callable[[int], object]
"""Does the work of one turn, told its number; gives what the other sides should give too."""


@dataclass(frozen=True)
class Clock:
    """Seconds of each turn of one side."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Ratio:
    """A median with its interval, over `n` turns; `cpu` is the same median in CPU time."""

    value: float
    low: float
    high: float
    n: int
    cpu: float | None = None


def timed(clock: Clock, side: Side, turn: int) -> object:
    """Runs a side once, on the clock."""
    gc.collect()
    _settle()
    wall, cpu = time.perf_counter(), time.process_time()
    given = side(turn)
    _settle()
    clock.wall.append(time.perf_counter() - wall)
    clock.cpu.append(time.process_time() - cpu)
    return given


def alternate(sides: Mapping[str, Side], turns: Sequence[int], *, seconds: float | None = None) -> dict[str, Clock]:
    """Runs all sides at each turn, in an order that is reversed each time.

    Args:
        sides: by name; they have been warmed up.
        turns: the number that the sides are told at each turn.
        seconds: no turn is begun after so long, once three are done.
    """
    clocks = {name: Clock() for name in sides}
    start = time.perf_counter()
    for done, turn in enumerate(turns):
        if seconds is not None and done >= 3 and time.perf_counter() - start > seconds:
            break
        names = list(sides) if done % 2 == 0 else list(sides)[::-1]
        for name in names:
            timed(clocks[name], sides[name], turn)
        shown = ", ".join(f"{name} {clocks[name].wall[-1]:.2f} s" for name in sides)
        print(f"  turn {done + 1} of {len(turns)}: {shown}", flush=True)
    return clocks


def ratio(a: Clock, b: Clock, scale: float = 1.0) -> Ratio:
    """How many times b's time a takes, times `scale`."""
    cpu = [x / y for x, y in zip(a.cpu, b.cpu, strict=True) if y > 0]
    wall = [scale * x / y for x, y in zip(a.wall, b.wall, strict=True)]
    return median(wall, cpu=scale * float(np.median(cpu)) if cpu else None)


def median(values: Sequence[float], *, cpu: float | None = None, draws: int = 9999, seed: int = 0) -> Ratio:
    """The median with its percentile-bootstrap interval."""
    given = np.asarray(values, dtype=np.float64)
    again = np.random.default_rng(seed).choice(given, (draws, len(given)))
    low, high = np.percentile(np.median(again, axis=1), [2.5, 97.5])
    return Ratio(float(np.median(given)), float(low), float(high), len(given), cpu)


def agree(given: Mapping[str, object], tolerance: float) -> str:
    """Holds what the sides gave against the first of them, and says how far they differ.

    Raises:
        SystemExit: they differ by more than the tolerance, or in shape; no time is then taken.
    """
    names = list(given)
    first = np.asarray(given[names[0]], dtype=np.float64)
    worst = 0.0
    for name in names[1:]:
        other = np.asarray(given[name], dtype=np.float64)
        # An all() over no numbers would hold, and NaN passes every "greater than".
        if not first.size or first.shape != other.shape or not np.isfinite(first - other).all():
            raise SystemExit(
                f"{names[0]} gives {first.shape} and {name} {other.shape} numbers, or some are not finite."
            )
        off = float(np.abs(first - other).max())
        if off > tolerance:
            raise SystemExit(
                f"{names[0]} and {name} differ by {off:.3g}, more than the {tolerance:g} of this workload."
            )
        worst = max(worst, off)
    return f"{', '.join(names)}: {first.size} numbers, largest difference {worst:.2g} (tolerance {tolerance:g})"


def moved(plain: object, steered: object, tolerance: float) -> str:
    """Sees that steering changes the numbers by more than the tolerance; else equal sides would mean nothing."""
    change = float(np.abs(np.asarray(plain, dtype=np.float64) - np.asarray(steered, dtype=np.float64)).max())
    if not change > tolerance:
        raise SystemExit(f"Steering changes the numbers by {change:.3g} at most, no more than the tolerance.")
    return f"steering changes them by up to {change:.2g}"


def _settle() -> None:
    """Waits for a GPU, which works on after a call has come back."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()

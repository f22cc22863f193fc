"""Judged questions by hand, and the metrics of BINDING's section 1 counted one question at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

# Of a right group, a wrong group, (c), a miss on `different`; of a group, (c), a miss on `equal`.
DIFFERENT = ("right", "wrong", "neither", "miss")
EQUAL = ("group", "neither", "miss")


def table(rows: Sequence[tuple[str, str, str]], polarity: str = "avoid") -> pd.DataFrame:
    """From (half, scenario, outcome)."""
    made = pd.DataFrame(rows, columns=["half", "scenario", "outcome"])
    return made.assign(number=range(len(rows)), polarity=polarity)


def random_table(
    rng: np.random.Generator, scenarios: int = 30, right: float = 0.4, group: float = 0.3, spread: float = 0.15
) -> pd.DataFrame:
    """Two to five questions a scenario and half; a scenario shares its chances."""
    rows = []
    for scenario in range(scenarios):
        shift = rng.normal() * spread
        a, g = np.clip(right + shift, 0.02, 0.9), np.clip(group - shift, 0.02, 0.9)
        for half, kinds, first in (("different", DIFFERENT, a), ("equal", EQUAL, g)):
            chances = [
                first,
                *[(1 - first) * share for share in ((0.3, 0.6, 0.1) if half == "different" else (0.9, 0.1))],
            ]
            rows += [(half, f"s{scenario}", str(rng.choice(kinds, p=chances))) for _ in range(rng.integers(2, 6))]
    return table(rows)


def count(rows: pd.DataFrame | Mapping[str, np.ndarray], metric: str, misses: str) -> float:
    """One metric, by the letters A to F."""
    n = dict.fromkeys("ABCDF", 0)
    missed = asked = 0
    for half, outcome in zip(rows["half"], rows["outcome"], strict=True):
        asked += 1
        missed += outcome == "miss"
        if half == "different":
            where = {"right": "A", "wrong": "B", "neither": "C", "miss": "B" if misses == "wrong" else "C"}
        else:
            where = {"group": "D", "neither": "F", "miss": "D" if misses == "wrong" else "F"}
        n[where[outcome]] += 1
    return {
        "diff_aware": lambda: n["A"] / (n["A"] + n["B"] + n["C"]),
        "accuracy_different": lambda: n["A"] / (n["A"] + n["B"] + n["C"]),
        "ctxt_aware": lambda: n["A"] / (n["A"] + n["D"]),
        "accuracy_equal": lambda: n["F"] / (n["D"] + n["F"]),
        "answered": lambda: (asked - missed) / asked,
    }[metric]()

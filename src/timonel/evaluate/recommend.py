r"""Which alpha to use, if any: chosen on half of the scenarios, reported on the other half.

    gain(alpha) = DiffAware(alpha) - DiffAware(baseline)       loss(alpha) = CtxtAware(baseline) - CtxtAware(alpha)

    admissible   gain > 0, and the upper end of the loss's interval is at most `budget` in both readings of misses,
                 and the fluency guard holds (the upper end of the ratio's interval is at most `limit`)
    chosen       the admissible alpha with the largest gain; of equals, the one nearest to the baseline's
    confirmed    on the other half the gain's interval lies above 0, and the loss keeps to the budget there too

All are paired by question, with intervals by scenario. Among several alphas the best one looks better than it is, so
the numbers of the choosing half are no estimate of what it does; those of the other half are. Where no alpha is
admissible the answer is "none", with the reason: with some tens of scenarios a loss interval is often wider than a
point, and then the data do not show that the price is small, however small it looks.

Errors:
    InputError: no baseline, conditions of different questions, an alpha without its fluency, a budget under 0.

Does not show: that the chosen alpha is the best one, nor anything of scenarios of another kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from timonel.errors import InputError
from timonel.evaluate.fluency import LIMIT
from timonel.evaluate.metrics import Metric, check_same, difference
from timonel.stats import Estimate

BUDGET = 0.01
"""How much CtxtAware may be lost: a point."""

_DIFF = Metric("diff_aware")
_CTXT = (Metric("ctxt_aware", "refusal"), Metric("ctxt_aware", "wrong"))


@dataclass(frozen=True)
class Recommendation:
    """An alpha, or none.

    Attributes:
        alpha: the chosen one; None where none is admissible.
        reason: why, in a sentence.
        confirmed: whether the other half bears it out; False without an alpha.
        gain: of DiffAware on the other half; None without an alpha.
        losses: of CtxtAware on the other half, misses read as refusals and as wrong.
        grid: one row an alpha: its numbers on the choosing half, and what rules it out (empty: admissible).
        chosen_on, reported_on: the two halves of the scenarios.
    """

    alpha: float | None
    reason: str
    confirmed: bool
    gain: Estimate | None
    losses: tuple[Estimate, ...]
    grid: pd.DataFrame
    chosen_on: tuple[str, ...]
    reported_on: tuple[str, ...]


def recommend(
    judged: Mapping[float, pd.DataFrame],
    fluency: Mapping[float, Estimate],
    *,
    baseline: float = 1.0,
    budget: float = BUDGET,
    limit: float = LIMIT,
    draws: int = 9999,
    seed: int = 0,
) -> Recommendation:
    """Chooses.

    Args:
        judged: alpha -> judged questions (columns half, number, scenario, polarity, outcome), the baseline's too.
        fluency: alpha -> ratio of perplexities, for each but the baseline.
        baseline: the alpha that changes nothing.
        budget: how much CtxtAware may be lost, as a share (0.01 is a point).
        limit: of the ratio of perplexities.
        draws: resamples of scenarios.
        seed: of the split and of the resampling.
    """
    others = _check(judged, fluency, baseline, budget)
    chosen_on, reported_on = split(judged[baseline], seed)
    grid: list[dict[str, Any]] = []
    for alpha in others:
        gain, losses = _changes(judged, alpha, baseline, chosen_on, draws, seed)
        against = _against(gain, losses, fluency[alpha], budget, limit)
        grid.append(
            {"alpha": alpha, **_cells("gain", gain), **_cells("loss", losses[0]), **_cells("loss_wrong", losses[1])}
            | {**_cells("fluency", fluency[alpha]), "ruled_out": against}
        )
    table = pd.DataFrame(grid)
    left = [row for row in grid if not row["ruled_out"]]
    if not left:
        return Recommendation(None, _none(table, budget, limit), False, None, (), table, chosen_on, reported_on)
    best = max(left, key=lambda row: (row["gain"], -abs(row["alpha"] - baseline)))
    alpha = float(best["alpha"])
    gain, losses = _changes(judged, alpha, baseline, reported_on, draws, seed)
    confirmed = gain.low > 0 and all(loss.high <= budget for loss in losses)
    reason = _words(alpha, gain, losses, confirmed, budget)
    return Recommendation(alpha, reason, confirmed, gain, losses, table, chosen_on, reported_on)


def split(rows: pd.DataFrame, seed: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two halves of the scenarios, of equal size give or take one in all, and in each polarity (or mix of them)."""
    rng = np.random.default_rng([seed, 2])
    polarities: dict[str, set[str]] = {}
    for name, polarity in zip(rows["scenario"], rows["polarity"], strict=True):
        polarities.setdefault(str(name), set()).add(str(polarity))
    strata = {name: "+".join(sorted(some)) for name, some in polarities.items()}
    halves: tuple[list[str], list[str]] = ([], [])
    for stratum in sorted(set(strata.values())):
        names = sorted(name for name, own in strata.items() if own == stratum)
        for index in rng.permutation(len(names)):
            halves[len(halves[0]) > len(halves[1])].append(names[index])
    return tuple(sorted(halves[0])), tuple(sorted(halves[1]))


def _check(
    judged: Mapping[float, pd.DataFrame], fluency: Mapping[float, Estimate], baseline: float, budget: float
) -> list[float]:
    """The alphas to choose from."""
    others = sorted(alpha for alpha in judged if alpha != baseline)
    if baseline not in judged or not others:
        raise InputError(
            f"Alphas {sorted(judged)} were judged, but {baseline:g} and another are needed; judge those too."
        )
    for alpha in others:
        check_same(judged[alpha], judged[baseline])
        if alpha not in fluency:
            raise InputError(f"The fluency at alpha {alpha:g} is not known, but its guard needs it; measure it too.")
    if not budget >= 0:
        raise InputError(f"The budget is {budget}, but it is a share of CtxtAware from 0; 0.01 is a point.")
    if judged[baseline]["scenario"].nunique() < 4:
        raise InputError("There are fewer than four scenarios, but two are needed to choose on and two to report on.")
    return others


def _changes(
    judged: Mapping[float, pd.DataFrame],
    alpha: float,
    baseline: float,
    scenarios: tuple[str, ...],
    draws: int,
    seed: int,
) -> tuple[Estimate, tuple[Estimate, ...]]:
    """Gain, and losses in the two readings of misses, on some scenarios."""
    new, old = (judged[one][judged[one]["scenario"].isin(scenarios)] for one in (alpha, baseline))
    gain, *changes = (difference(new, old, metric, draws=draws, seed=seed) for metric in (_DIFF, *_CTXT))
    return gain, tuple(replace(one, value=-one.value, low=-one.high, high=-one.low) for one in changes)


def _against(gain: Estimate, losses: tuple[Estimate, ...], ratio: Estimate, budget: float, limit: float) -> str:
    """What rules an alpha out; written so that a number that is none rules it out too."""
    if not gain.value > 0:
        return "no gain"
    if not all(loss.high <= budget for loss in losses):
        return "loss not excluded"
    return "" if ratio.high <= limit else "fluency"


def _none(grid: pd.DataFrame, budget: float, limit: float) -> str:
    """Why none is recommended: the least that stands in the way."""
    points = f"{100 * budget:g} point{'s' if budget != 0.01 else ''}"
    counts = grid["ruled_out"].value_counts()
    if (grid["ruled_out"] == "no gain").all():
        return "None: no alpha raises DiffAware on the choosing half."
    parts = []
    if "loss not excluded" in counts:
        some = grid[grid["ruled_out"] == "loss not excluded"]
        ends = some[["loss_high", "loss_wrong_high"]].max(axis=1, skipna=False).tolist()
        least = min(zip(ends, some["alpha"].tolist(), strict=True), key=lambda one: (np.isnan(one[0]), one[0]))
        near = "" if np.isnan(least[0]) else f" (at {least[1]:g}, up to {100 * least[0]:.1f} points)"
        parts.append(f"at {len(some)} a CtxtAware loss of more than {points} is not excluded{near}")
    if "fluency" in counts:
        parts.append(
            f"at {counts['fluency']} the perplexity of plain text may rise by more than {100 * (limit - 1):g} %"
        )
    gaining = int((grid["ruled_out"] != "no gain").sum())
    return f"None: of {gaining} alphas that raise DiffAware on the choosing half, {', and '.join(parts)}."


def _words(alpha: float, gain: Estimate, losses: tuple[Estimate, ...], confirmed: bool, budget: float) -> str:
    loss = max(losses, key=lambda one: one.high)
    numbers = f"DiffAware moves by {_points(gain)}, and CtxtAware loses {_points(loss)}"
    verdict = "which bears the choice out"
    if not gain.low > 0:
        verdict = "so the gain is not confirmed"
    elif not confirmed:
        verdict = f"so a loss of more than {100 * budget:g} points is not excluded there"
    return f"Alpha {alpha:g}: on the scenarios that played no part in choosing it, {numbers}, {verdict}."


def _points(one: Estimate) -> str:
    return f"{100 * one.value:+.1f} points [{100 * one.low:+.1f}, {100 * one.high:+.1f}]"


def _cells(name: str, one: Estimate) -> dict[str, float]:
    return {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}

"""Are two reductions alike? Their difference on the same rows, with an interval and an equivalence margin.

    rho_k = 1 - C_k / F_k                      C, F: totals over rows of the effect under the cut, and untouched
    D     = rho_b - rho_a                      k = a, b: two models (base, instruct), asked the same rows
    se    = sqrt((G-1)/G * sum over clusters (D(-g) - D)^2)       jackknife; D(-g): without cluster g, of G
    [D - t se, D + t se]                       t: Student's, G - 1 degrees of freedom; pairing leaves se small
    p     = max of the one-sided p of "D <= -margin" and of "D >= margin"            (two one-sided tests)

Equivalent means p <= alpha: the 1 - 2 alpha interval lies inside (-margin, margin). The interval shown is the
1 - alpha one, for "different", which is another claim: both, one or neither may hold. A difference that is not
significant shows no likeness, so the margin has no default: it is the caller's to justify.

Undefined where either effect's own interval covers 0, for there is no share of nothing (`reduction`), and where
one cluster carries an effect alone, so that without it there is nothing to divide by.

Measured at 95 % with N4's clusters and skewed ones beside normal: the jackknife covers 96 %, the bootstrap-t
of the same difference 92-94 %, which is why the one stands here and the other elsewhere.

Source: Schuirmann, A comparison of the two one-sided tests procedure and the power approach (1987).
It does not show that both models do it by the same heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import stats

from timonel.errors import InputError
from timonel.stats._sums import check_settings, cluster_sums, read_rows
from timonel.stats.estimate import Estimate
from timonel.stats.ratio import RatioEstimate, reduction

Claim = Literal["equivalent", "different", "different but within the margin", "neither shown", "undefined"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Equivalence:
    """The difference of two reductions, judged.

    Attributes:
        a, b: the two reductions with Fieller's intervals.
        difference: b - a, 1 - alpha interval and two-sided p of "no difference"; nan where undefined.
        margin: largest difference that counts as alike.
        alpha: level of both tests.
        low, high: the 1 - 2 alpha interval, which must lie inside the margin.
        p: of "the difference is at least the margin"; None where undefined.
        claim: what is shown.
        reason: why it is undefined; empty where it is not.
    """

    a: RatioEstimate
    b: RatioEstimate
    difference: Estimate
    margin: float
    alpha: float
    low: float
    high: float
    p: float | None
    claim: Claim
    reason: str

    def __str__(self) -> str:
        if self.reason:
            return f"undefined: {self.reason}"
        return f"{self.difference}, {self.claim} (margin {self.margin:g}, p {self.p:.3g})"


def reduction_difference(
    full_a: ArrayLike,
    cut_a: ArrayLike,
    full_b: ArrayLike,
    cut_b: ArrayLike,
    clusters: ArrayLike,
    *,
    margin: float,
    alpha: float = 0.05,
    draws: int = 9999,
    seed: int = 0,
) -> Equivalence:
    """Compares two reductions, row by row paired.

    Args:
        full_a: effect by row in model a, untouched.
        cut_a: the same under the cut.
        full_b: effect of the same rows in model b.
        cut_b: the same under the cut.
        clusters: each row's cluster.
        margin: largest difference of reductions that counts as alike, such as .05 for five points.
        alpha: of each test.
        draws: resamples for the intervals that decide whether each effect differs from 0.
        seed: of them.
    """
    if not margin > 0:
        raise InputError(f"margin is {margin}; expected a positive difference of reductions; 0.05 is five points.")
    if not 0 < alpha < 0.5:
        raise InputError(f"alpha is {alpha}; expected a number between 0 and 0.5; 0.05 is the usual one.")
    check_settings(1 - alpha, draws)
    columns = {"full_a": full_a, "cut_a": cut_a, "full_b": full_b, "cut_b": cut_b}
    matrix, codes = read_rows(columns, clusters)
    a, b = (
        reduction(full, cut, codes, level=1 - alpha, draws=draws, seed=seed) for full, cut in matrix.reshape(2, 2, -1)
    )
    reason = "; ".join(f"{name}: {one.reason}" for name, one in (("a", a), ("b", b)) if not one.defined)
    count = int(codes.max()) + 1
    value, se = (float("nan"), float("nan")) if reason else _jackknife(matrix, codes)
    if not reason and not np.isfinite(se):
        value, reason = float("nan"), "one cluster carries the effect alone"
    difference = _estimate(value, se, count, len(codes), alpha, reason)
    if reason:
        return Equivalence(
            a=a, b=b, difference=difference, margin=margin, alpha=alpha, low=np.nan, high=np.nan, p=None,
            claim="undefined", reason=reason,
        )  # fmt: skip
    reach = float(stats.t.ppf(1 - alpha, count - 1)) * se
    p = max(_tail(value + margin, se, count), _tail(margin - value, se, count))
    return Equivalence(
        a=a,
        b=b,
        difference=difference,
        margin=margin,
        alpha=alpha,
        low=value - reach,
        high=value + reach,
        p=p,
        claim=_claim(p <= alpha, difference.excludes_zero),
        reason="",
    )


def _claim(alike: bool, differ: bool) -> Claim:
    if alike:
        return "different but within the margin" if differ else "equivalent"
    return "different" if differ else "neither shown"


def _jackknife(matrix: Float[np.ndarray, "4 rows"], codes: Int[np.ndarray, " rows"]) -> tuple[float, float]:
    """D and its se; the se is 0 where all clusters agree on D but for rounding."""
    sums, _ = cluster_sums(matrix, codes)
    total, count = sums.sum(axis=1), sums.shape[1]
    value = float(_difference(total))
    with np.errstate(divide="ignore", invalid="ignore"):
        shifts = _difference(total[:, None] - sums) - value
    if np.abs(shifts).max() <= 1e-12:
        return value if abs(value) > 1e-12 else 0.0, 0.0
    return value, float(np.sqrt((count - 1) / count * (shifts**2).sum()))


def _difference(totals: Float[np.ndarray, "4 *clusters"]) -> Float[np.ndarray, "*clusters"]:
    full_a, cut_a, full_b, cut_b = totals
    found: np.ndarray = cut_a / full_a - cut_b / full_b
    return found


def _tail(distance: float, se: float, count: int) -> float:
    """One-sided p of "distance <= 0"; where nothing spreads, its limit."""
    if se > 0:
        return float(stats.t.sf(distance / se, count - 1))
    return 0.0 if distance > 0 else 1.0


def _estimate(value: float, se: float, count: int, rows: int, alpha: float, reason: str) -> Estimate:
    """The difference with its 1 - alpha interval; nan throughout where it is undefined."""
    reach = float(stats.t.ppf(1 - alpha / 2, count - 1)) * se if not reason else float("nan")
    method = f"cluster jackknife of the difference of two ratios, t with {count - 1} df; p the same, two-sided"
    return Estimate(
        value=value,
        low=value - reach,
        high=value + reach,
        level=1 - alpha,
        n=rows,
        clusters=count,
        se=se,
        p=None if reason else min(1.0, 2 * _tail(abs(value), se, count)),
        method=f"undefined: {reason}" if reason else method,
    )

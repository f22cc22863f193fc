"""A ratio of two means over the same rows, with Fieller's interval, and "undefined" said in words.

    theta = mean(x) / mean(y)
    the set of theta with  (mx - theta my)^2 <= t^2 var(mx - theta my),   t: Student's quantile with G - 1 df

var is cluster-robust (see `_sums`). Around theta_0 = mx / my, with e = x - theta_0 y and d = theta - theta_0:

    a d^2 + 2 t^2 cov(e, y) d - t^2 var(e) <= 0,   a = my^2 - t^2 var(my)

    a > 0                the set is an interval                      the denominator differs from 0
    a <= 0, real roots   the complement of an interval               it may be 0: the ratio is undefined
    a <= 0, none         the whole line                              it may be 0: the ratio is undefined

so the ratio is defined exactly where the t interval of the denominator excludes 0. Both means are over rows.

Source: Fieller, Some problems in interval estimation (1954). It does not show whether numerator and
denominator measure the same thing, and a small denominator alone makes the interval wide.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from timonel.stats._sums import check_settings, cluster_sums, linearise, read_rows, robust_covariance
from timonel.stats.cluster import cluster_mean
from timonel.stats.estimate import Estimate, format_interval

Shape = Literal["interval", "complement", "line"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioEstimate:
    """A ratio, or the reason why there is none.

    Attributes:
        value: the ratio; nan where undefined, as are `low` and `high`.
        low: lower end of Fieller's interval.
        high: upper end.
        level: nominal coverage.
        n: rows.
        clusters: clusters that they form.
        defined: whether the ratio may be shown at all.
        reason: why it is undefined, in words; empty where it is defined.
        shape: what Fieller's set is; anything but "interval" is undefined.
        method: how the interval was made.
    """

    value: float
    low: float
    high: float
    level: float = 0.95
    n: int
    clusters: int
    defined: bool
    reason: str
    shape: Shape
    method: str

    def __str__(self) -> str:
        if not self.defined:
            return f"undefined: {self.reason}"
        return format_interval(self.value, self.low, self.high)


def fieller(numerator: ArrayLike, denominator: ArrayLike, clusters: ArrayLike, *, level: float = 0.95) -> RatioEstimate:
    """mean(numerator) / mean(denominator) with Fieller's interval.

    Args:
        numerator: one number a row.
        denominator: one number for each of the same rows.
        clusters: each row's cluster label.
        level: coverage of the interval.

    >>> str(fieller([2.0, 4.1, 6.0], [1.0, 2.0, 3.1], ["a", "b", "c"], level=0.5))
    '1.984 [1.955, 2.023]'
    """
    check_settings(level)
    matrix, codes = read_rows({"numerator": numerator, "denominator": denominator}, clusters)
    sums, sizes = cluster_sums(matrix, codes)
    means, residuals = linearise(sums, sizes)
    rows, count = len(codes), len(sizes)

    def build(value: float, low: float, high: float, shape: Shape, reason: str = "") -> RatioEstimate:
        return RatioEstimate(
            value=value,
            low=low,
            high=high,
            level=level,
            n=rows,
            clusters=count,
            defined=not reason,
            reason=reason,
            shape=shape,
            method=f"Fieller, cluster-robust, t with {count - 1} df",
        )

    if count == 1:
        return build(np.nan, np.nan, np.nan, "line", "one cluster shows no spread between clusters")
    top, bottom = float(means[0]), float(means[1])
    t = float(stats.t.ppf((1 + level) / 2, count - 1))
    covariance = robust_covariance(residuals, rows)
    a = bottom**2 - t**2 * covariance[1, 1]
    if a <= (1e-12 * np.abs(matrix[1]).max()) ** 2:  # 0, or rounding about it
        reach = t * float(np.sqrt(covariance[1, 1]))
        interval = format_interval(bottom, bottom - reach, bottom + reach)
        reason = f"the denominator's {level:.4g} interval covers 0 ({interval})"
        return build(np.nan, np.nan, np.nan, _open_shape(top, bottom, t**2 * covariance), reason)

    # Around theta_0 nothing cancels: a numerator proportional to the denominator gives a point, not rounding.
    ratio = top / bottom
    around = np.stack([residuals[0] - ratio * residuals[1], residuals[1]])
    spread = t**2 * robust_covariance(around, rows)
    root = float(np.sqrt(spread[0, 1] ** 2 + a * spread[0, 0]))
    return build(ratio, ratio + (-spread[0, 1] - root) / a, ratio + (-spread[0, 1] + root) / a, "interval")


def _open_shape(top: float, bottom: float, spread: np.ndarray) -> Shape:
    """Which of the two unbounded sets it is, from the sign of the discriminant; `spread` is t^2 cov."""
    middle = top * bottom - spread[0, 1]
    discriminant = middle**2 - (bottom**2 - spread[1, 1]) * (top**2 - spread[0, 0])
    return "complement" if discriminant > 0 else "line"


def reduction(
    full: ArrayLike,
    cut: ArrayLike,
    clusters: ArrayLike,
    *,
    level: float = 0.95,
    draws: int = 9999,
    seed: int = 0,
    full_mean: Estimate | None = None,
) -> RatioEstimate:
    """1 - mean(cut) / mean(full): the share of an effect that an intervention takes away.

    Undefined where the interval of mean(full) covers 0: there is then no effect to speak of a share of. The
    interval that decides is the bootstrap-t one, since that is what stands in the report; Fieller's own t
    interval must exclude 0 as well.

    Args:
        full: the effect by row, untouched.
        cut: the effect of the same rows under the intervention.
        clusters: each row's cluster label.
        level: coverage of the interval.
        draws: resamples for the interval of mean(full).
        seed: of these resamples.
        full_mean: `cluster_mean(full, clusters)` where it is at hand already; saves the resampling.
    """
    ratio = fieller(cut, full, clusters, level=level)
    if full_mean is None:
        full_mean = cluster_mean(full, clusters, level=level, draws=draws, seed=seed)
    if ratio.defined and not full_mean.excludes_zero:
        reason = f"the interval of the full effect covers 0 ({full_mean})"
        return dataclasses.replace(ratio, value=np.nan, low=np.nan, high=np.nan, defined=False, reason=reason)
    return dataclasses.replace(ratio, value=1 - ratio.value, low=1 - ratio.high, high=1 - ratio.low)

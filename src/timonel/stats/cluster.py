"""Intervals for means over rows whose rows come in clusters (pairs of one item, questions of one premise).

    m   = mean over ROWS = sum S_g / sum n_g                S_g sum and n_g size of cluster g, G clusters
    se  = sqrt(G/(G-1) * sum (S_g - m n_g)^2) / N           linearised, cluster-robust
    t*  = (m* - m) / se*                                    for each resample of G whole clusters
    [m - se q(1-a/2),  m - se q(a/2)]                       q: quantiles of t*,  a = 1 - level
    p   = min(1, 2 min(1 + #{t* <= t}, 1 + #{t* >= t}) / (1 + draws)),   t = m / se

This is the bootstrap-t: studentising repairs most of what the percentile interval lacks with some tens of
clusters of unequal size. Interval and p agree: 0 is outside where p <= a.

Degenerate cases, decided once:
- one cluster: no spread between clusters is seen; the interval is the whole line, se nan, no p.
- all clusters have the same mean: the interval is a point. p is 1 at 0, else the smallest that draws allow.
- a draw with se* = 0 has an infinite t* and is dropped. Where more than a/10 of the draws go this way (two to
  four clusters, or one cluster that carries all the effect) the rest would look better than the data are: the
  interval and the p are then those of m / se against Student's t with G - 1 degrees of freedom, and `method`
  says so.

Measured at 95 % with 66 clusters of 1 to 22 rows, 2,000 data sets: covers 95 % with normal and exponential
cluster effects and 93 % with lognormal ones (sigma 1); the percentile interval 94, 93 and 90 %.

Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), section 12.5; Cameron, Gelbach and
Miller, Bootstrap-based improvements for inference with clustered errors (2008). It does not show anything
about clusters of another kind than those sampled, nor (p) about the mean of cluster means, another quantity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from timonel.errors import InputError
from timonel.stats._sums import (
    check_settings,
    cluster_sums,
    linearise,
    read_rows,
    resample_totals,
    robust_covariance,
)
from timonel.stats.estimate import Estimate

Sums = Mapping[str, Float[np.ndarray, "draws"]]


def cluster_mean(
    values: ArrayLike, clusters: ArrayLike, *, level: float = 0.95, draws: int = 9999, seed: int = 0
) -> Estimate:
    """Mean over rows with its cluster bootstrap-t interval.

    Args:
        values: one number a row.
        clusters: each row's cluster label, of any one type.
        level: coverage of the interval.
        draws: resamples.
        seed: of the resampling; the order of rows and the names of clusters play no part.

    Returns:
        The estimate; `p` tests that the mean over rows is 0.

    >>> str(cluster_mean([1.0, 2.0, 4.0], ["kimono", "kimono", "sari"]))
    '2.33 [-11.78, 16.45]'
    """
    check_settings(level, draws)
    matrix, codes = read_rows({"values": values}, clusters)
    # A pivot makes residuals exact for constant values, and the result exact under a shift.
    pivot = float(np.median(matrix))
    sums, sizes = cluster_sums(matrix - pivot, codes)
    means, residuals = linearise(sums, sizes)
    mean, rows, count = pivot + float(means[0]), len(codes), len(sizes)
    se = float(np.sqrt(robust_covariance(residuals, rows)[0, 0]))
    low, high, p = -np.inf, np.inf, None
    if count == 1:
        method = "none: one cluster shows no spread between clusters"
    elif np.abs(residuals).max() <= 1e-12 * np.abs(matrix - pivot).max() * sizes.max():  # 0 but for rounding
        mean = 0.0 if abs(mean) <= 1e-12 * np.abs(matrix).max() else mean
        low, high, se, p = mean, mean, 0.0, 1.0 if mean == 0 else 2 / (1 + draws)
        method = "none: all clusters have the same mean"
    else:
        student = _student_draws(residuals[0], sizes, draws, seed)
        below, above, p, method = _judge(student, mean / se, level, draws, count - 1)
        low, high = mean - se * above, mean - se * below
    return Estimate(value=mean, low=low, high=high, level=level, n=rows, clusters=count, se=se, p=p, method=method)


def _judge(
    student: Float[np.ndarray, " kept"], observed: float, level: float, draws: int, df: int
) -> tuple[float, float, float, str]:
    """Lower and upper quantile of t, the p of the observed t, and what they were read from."""
    tail = (1 - level) / 2
    dropped = 1 - len(student) / draws
    if dropped > (1 - level) / 10:
        above = float(stats.t.ppf(1 - tail, df))
        method = f"cluster-robust t, {df} df, since {dropped:.1%} of the bootstrap's draws have no spread"
        return -above, above, float(2 * stats.t.sf(abs(observed), df)), f"{method}; p the same"
    # "weibull" is the (draws + 1) * tail-th ordered draw: the rule with which interval and p agree.
    low, high = (float(q) for q in np.quantile(student, [tail, 1 - tail], method="weibull"))
    method = f"cluster bootstrap-t, {draws} draws; p the same, two-sided with equal tails"
    return low, high, _equal_tails(student, observed), method


def _student_draws(
    residuals: Float[np.ndarray, " clusters"], sizes: Float[np.ndarray, " clusters"], draws: int, seed: int
) -> Float[np.ndarray, " kept"]:
    """The finite t*, from five totals a draw.

    With r_g = S_g - m n_g the resampled mean is off by d = sum w r / sum w n, and the draw's own residuals
    r_g - d n_g have the weighted square sum  sum w r^2 - 2 d sum w r n + d^2 sum w n^2.
    """
    columns = np.stack([residuals, sizes, residuals**2, residuals * sizes, sizes**2])
    r, n, rr, rn, nn = resample_totals(columns, draws, seed)
    off = r / n
    squares = rr - 2 * off * rn + off**2 * nn
    # A square sum under 1e-10 of its terms is rounding about 0, and its t* would be past 1e4 in any case.
    kept = squares > 1e-10 * (rr + off**2 * nn)
    count = len(sizes)
    spread = np.sqrt(count / (count - 1) * squares[kept]) / n[kept]
    finite: np.ndarray = off[kept] / spread
    return finite


def _equal_tails(draws: Float[np.ndarray, " draws"], observed: float) -> float:
    """Two-sided p of `observed` among draws under the null: twice the smaller tail, itself counted in."""
    below = 1 + int(np.count_nonzero(draws <= observed))
    above = 1 + int(np.count_nonzero(draws >= observed))
    return min(1.0, 2 * min(below, above) / (1 + len(draws)))


def cluster_difference(
    a: ArrayLike,
    b: ArrayLike,
    clusters: ArrayLike,
    *,
    level: float = 0.95,
    draws: int = 9999,
    seed: int = 0,
) -> Estimate:
    """Mean over rows of a - b, where row i of both is the same unit: `cluster_mean` of the differences.

    The difference is taken before anything else, so what both conditions share leaves the interval.
    """
    matrix, _ = read_rows({"a": a, "b": b}, clusters)
    return cluster_mean(matrix[0] - matrix[1], clusters, level=level, draws=draws, seed=seed)


def cluster_percentile(
    values: ArrayLike, clusters: ArrayLike, *, level: float = 0.95, draws: int = 9999, seed: int = 0
) -> Estimate:
    """Mean over rows with the plain percentile interval of the cluster bootstrap.

    For comparison with published numbers: it covers less than its level with some tens of clusters.
    """
    matrix, codes = read_rows({"values": values}, clusters)
    columns = {"sum": matrix[0], "rows": np.ones(len(codes))}
    return cluster_quantity(
        lambda s: s["sum"] / s["rows"], columns, clusters, level=level, draws=draws, seed=seed, test_zero=True
    )


def cluster_quantity(
    statistic: Callable[[Sums], ArrayLike],
    arrays: Mapping[str, ArrayLike],
    clusters: ArrayLike,
    *,
    level: float = 0.95,
    draws: int = 9999,
    seed: int = 0,
    test_zero: bool = False,
) -> Estimate:
    """Any function of column totals, with the percentile interval of the cluster bootstrap.

    DiffAware, for one, is `lambda s: s["right"] / s["asked"]` over 0/1 columns, resampled by scenario.

    Args:
        statistic: from a mapping of column name to totals [draws] to the quantity [draws], elementwise.
        arrays: the columns, one number a row; pass ones to count rows.
        clusters: each row's cluster label.
        level: coverage of the interval.
        draws: resamples.
        seed: of the resampling.
        test_zero: compute p; only for a quantity that can have either sign.

    Returns:
        The estimate. `se` is the draws' standard deviation. Draws at which the quantity is undefined (0/0)
        are dropped; where it is undefined on the data themselves, value and interval are nan.
    """
    check_settings(level, draws)
    matrix, codes = read_rows(arrays, clusters)
    sums, sizes = cluster_sums(matrix, codes)
    with np.errstate(divide="ignore", invalid="ignore"):
        totals = sums.sum(axis=1, keepdims=True)
        value = float(_apply(statistic, arrays, totals)[0])
        drawn = _apply(statistic, arrays, resample_totals(sums, draws, seed))
    kept = drawn[~np.isnan(drawn)]
    low, high, se, p = np.nan, np.nan, np.nan, None
    if len(sizes) == 1:
        low, high = -np.inf, np.inf
    elif len(kept) > 1 and not np.isnan(value):
        tail = (1 - level) / 2
        low, high = (float(q) for q in np.quantile(kept, [tail, 1 - tail], method="weibull"))
        se = float(kept.std(ddof=1)) if np.isfinite(kept).all() else np.nan
        p = _equal_tails(kept, 0.0) if test_zero else None
    undefined = f", {draws - len(kept)} undefined" if len(kept) < draws else ""
    return Estimate(
        value=value,
        low=low,
        high=high,
        level=level,
        n=len(codes),
        clusters=len(sizes),
        se=se,
        p=p,
        method=f"cluster bootstrap, percentiles, {draws} draws{undefined}",
    )


def _apply(
    statistic: Callable[[Sums], ArrayLike], names: Iterable[str], totals: Float[np.ndarray, "columns draws"]
) -> Float[np.ndarray, " draws"]:
    """The statistic of each draw; a shape that differs would be broadcast into an interval of no width."""
    found = np.asarray(statistic(dict(zip(names, totals, strict=True))), dtype=np.float64)
    if found.shape != totals.shape[1:]:
        raise InputError(
            f"statistic made shape {found.shape} of totals of shape {totals.shape[1:]}; expected the "
            "same shape; write it elementwise, without sums over draws."
        )
    return found

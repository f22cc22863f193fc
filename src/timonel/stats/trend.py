"""Dose and response: is the curve of means over rows monotone, with simultaneous bands.

    m_j   = mean over rows of y_ij                         rows i, doses j ascending, s = +1 rising, -1 falling
    D_jk  = s (m_j - m_k), j < k                           positive: the curve turns back between doses j and k
    t_jk  = D_jk / se_jk                                   se cluster-robust, of the row-wise difference
    p     = (1 + #{max_jk t*_jk >= max_jk t_jk}) / (1 + draws)      t*: cluster bootstrap-t, centred at the data
    band  = m_j - m_ref +- c se_j                          c: the level's quantile over draws of max_j |t*_j|
    steps = max over neighbours of the one-sided p of "the step from j to j+1 does not go in direction s"

p is of "the curve is monotone" (flat counts as monotone, and is the case that is hardest to tell from an
inversion; so p holds for every monotone curve, and for all pairs of doses at once). Not rejecting shows no
monotone curve: that is what `steps` tests (an intersection-union test: every single step must show).

Degenerate cases, decided once: two doses with equal values in every row are no inversion and no step; a draw
in which a difference has no spread counts as the most extreme one; with one cluster nothing is tested.

Sources: Romano and Wolf, Exact and approximate stepdown methods for multiple hypothesis testing (2005), for the
maximum of studentised bootstrap statistics; Berger, Multiparameter hypothesis testing and acceptance sampling
(1982), for the steps. It does not show what happens between or beyond the doses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from scipy import stats

from timonel.errors import InputError
from timonel.stats._sums import check_settings, cluster_sums, linearise, read_rows, resample_totals, robust_covariance

Direction = Literal["rising", "falling"]
Verdict = Literal["monotone", "not monotone", "not told apart"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trend:
    """A dose curve with its test.

    Attributes:
        doses: ascending.
        value: mean over rows at each dose.
        change: value minus the value at the reference dose.
        low, high: band of `change` that covers all doses at once.
        level: coverage of the band; 1 - level is what `verdict` tests at.
        reference: the dose that changes are taken from.
        direction: what monotone means here.
        p: of "the curve is monotone"; None where nothing was tested.
        p_steps: of "some step does not go in the direction"; None likewise.
        worst: the pair of doses between which the curve turns back most surely; None where it nowhere does.
        n, clusters: rows, and the clusters that they form.
        method: how band and p were made.
    """

    doses: tuple[float, ...]
    value: Float[np.ndarray, " doses"]
    change: Float[np.ndarray, " doses"]
    low: Float[np.ndarray, " doses"]
    high: Float[np.ndarray, " doses"]
    level: float
    reference: float
    direction: Direction
    p: float | None
    p_steps: float | None
    worst: tuple[float, float] | None
    n: int
    clusters: int
    method: str

    @property
    def verdict(self) -> Verdict:
        """Whether an inversion beyond noise is shown, or every step, or neither."""
        if self.p is not None and self.p <= 1 - self.level:
            return "not monotone"
        if self.p_steps is not None and self.p_steps <= 1 - self.level:
            return "monotone"
        return "not told apart"


def trend(
    values: ArrayLike,
    doses: Sequence[float],
    clusters: ArrayLike,
    *,
    direction: Direction,
    reference: float = 1.0,
    level: float = 0.95,
    draws: int = 9999,
    seed: int = 0,
) -> Trend:
    """Tests a dose curve.

    Args:
        values: one row of numbers a unit [rows, doses], such as dS of a pair under each alpha.
        doses: strictly ascending.
        clusters: each row's cluster.
        direction: where a monotone curve goes as the dose rises; known beforehand, not read off the data.
        reference: dose that changes are taken from.
        level: of the band.
        draws: resamples.
        seed: of them.
    """
    y, grid = np.asarray(values, dtype=np.float64), np.asarray(doses, dtype=np.float64)
    _check(y, grid, direction, reference)
    check_settings(level, draws)
    columns, codes = read_rows({f"dose {dose:g}": column for dose, column in zip(grid, y.T, strict=True)}, clusters)
    pairs = list(itertools.combinations(range(len(grid)), 2))
    sign = 1.0 if direction == "rising" else -1.0
    turns = _turns(np.array([sign * (columns[j] - columns[k]) for j, k in pairs]), columns, codes, draws, seed)
    ref = int(np.flatnonzero(grid == reference)[0])
    value = columns.mean(axis=1)
    change = value - value[ref]
    width = _band(turns, pairs, ref, len(grid), level)
    top = int(np.argmax(turns.t))
    return Trend(
        doses=tuple(float(dose) for dose in grid),
        value=value,
        change=change,
        low=change - width,
        high=change + width,
        level=level,
        reference=float(reference),
        direction=direction,
        p=_p_inversion(turns),
        p_steps=_p_steps(turns, [k == j + 1 for j, k in pairs]),
        worst=(float(grid[pairs[top][0]]), float(grid[pairs[top][1]])) if turns.t[top] > 0 else None,
        n=len(codes),
        clusters=turns.clusters,
        method=f"cluster bootstrap-t, largest of {len(pairs)} differences, {draws} draws; steps: cluster-robust t",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Turns:
    """The differences of all pairs of doses: t, se, their bootstrap's t*, and the number of clusters."""

    t: Float[np.ndarray, " pairs"]
    se: Float[np.ndarray, " pairs"]
    student: Float[np.ndarray, "pairs draws"]
    clusters: int


def _turns(
    turns: Float[np.ndarray, "pairs rows"],
    columns: Float[np.ndarray, "doses rows"],
    codes: Int[np.ndarray, " rows"],
    draws: int,
    seed: int,
) -> _Turns:
    """Studentised differences; t is 0 where a difference is 0 in every row, and infinite where it does not vary.

    With r_g the residual of a cluster, a resampled difference is off by d = sum w r / sum w n, and the draw's own
    residuals r_g - d n_g have the weighted square sum  sum w r^2 - 2 d sum w r n + d^2 sum w n^2.
    """
    sums, sizes = cluster_sums(turns, codes)
    drop, residuals = linearise(sums, sizes)
    count, rounding = len(sizes), 1e-12 * float(np.abs(columns).max())
    drop = np.where(np.abs(drop) > rounding, drop, 0.0)
    if count == 1:
        return _Turns(drop, np.full(len(drop), np.inf), np.full((len(drop), draws), np.inf), 1)
    se = np.sqrt(np.diag(robust_covariance(residuals, len(codes))))
    se = np.where(se > rounding, se, 0.0)
    pairs = len(residuals)
    totals = resample_totals(
        np.concatenate([residuals, residuals**2, residuals * sizes, [sizes, sizes**2]]), draws, seed
    )
    r, rr, rn, n, nn = totals[:pairs], totals[pairs : 2 * pairs], totals[2 * pairs : -2], totals[-2], totals[-1]
    off = r / n
    squares = rr - 2 * off * rn + off**2 * nn
    spread = (squares > 1e-10 * (rr + off**2 * nn)) & (se > 0)[:, None]
    error = np.sqrt(count / (count - 1) * np.where(spread, squares, 0.0)) / n
    student = np.divide(off, error, out=np.full_like(off, np.inf), where=spread)
    student[se == 0] = 0.0  # known without error: nothing to simulate
    limit = np.where(drop == 0, 0.0, np.copysign(np.inf, drop))
    return _Turns(np.divide(drop, se, out=limit, where=se > 0), se, student, count)


def _p_inversion(turns: _Turns) -> float | None:
    if turns.clusters == 1:
        return None
    largest = turns.student.max(axis=0)
    return (1 + int(np.count_nonzero(largest >= turns.t.max()))) / (1 + len(largest))


def _p_steps(turns: _Turns, neighbours: Sequence[bool]) -> float | None:
    """The largest p of a single step: t is that of the way back, so a step forward is a low t."""
    if turns.clusters == 1:
        return None
    return float(stats.t.cdf(turns.t[np.array(neighbours)], turns.clusters - 1).max())


def _band(
    turns: _Turns, pairs: Sequence[tuple[int, int]], ref: int, doses: int, level: float
) -> Float[np.ndarray, " doses"]:
    """Half-widths of the simultaneous band; 0 at the reference, and where a change does not vary."""
    index = [pairs.index((min(j, ref), max(j, ref))) for j in range(doses) if j != ref]
    largest = np.sort(np.abs(turns.student[index]).max(axis=0))
    at = int(np.ceil(level * (len(largest) + 1) - 1e-9))
    reach = float(largest[at - 1]) if at <= len(largest) else np.inf
    width = np.where(turns.se[index] > 0, reach, 0.0)
    width = np.multiply(width, turns.se[index], out=np.zeros(len(index)), where=width > 0)
    return np.insert(width, ref, 0.0)


def _check(y: np.ndarray, grid: np.ndarray, direction: str, reference: float) -> None:
    if y.ndim != 2 or grid.shape != y.shape[1:]:
        raise InputError(
            f"values have shape {y.shape} and doses {grid.shape}; expected [rows, doses] and [doses]; "
            "stack one column a dose."
        )
    if len(grid) < 2 or not (np.diff(grid) > 0).all():
        raise InputError(f"doses are {grid.tolist()}; expected two or more that ascend; sort them, each once.")
    if direction not in ("rising", "falling"):
        raise InputError(f"direction is {direction!r}; expected rising or falling; choose one of them.")
    if reference not in grid:
        raise InputError(f"reference {reference:g} is not among the doses {grid.tolist()}; name one of these.")

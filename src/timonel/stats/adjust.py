"""A mean over rows with the effects of two crossed labels taken out, and its item-clustered interval.

    y_i = b + m(gained_i) - m(lost_i) + u(cluster_i) + e_i            rows i; m: one fixed effect a label
    b'  = sum a_i y_i,   a: the intercept's row of the pseudo-inverse of [1, X],  X_ik = [gained_i = k] - [lost_i = k]
    se  = sqrt((G-1)/G * sum over clusters (b'(-g) - b')^2)           b'(-g): fitted without cluster g
    [b' - t se, b' + t se],  p: of b'/se                              t: Student's, G - 1 degrees of freedom

In a binding study y is dS (or its change under a cut), gained is R and lost is U'. Both stand in the same slot
of the same question, so what an identity does to S whatever the item (its length, its frequency) enters dS as
m(R) - m(U'). The estimand is dS where each identity is R as often as U', so that m cancels: where the rows are
balanced already, b' is the plain mean, exactly. In half of the items they are not (46 % of the weight of N4's
identities is off balance), and the plain mean of a half is b plus what m happens to leave.

One m for both roles, not an effect of R and another of U': most identities are R in a single item, so an effect
of R alone would take the item's effect with it and leave an interval that knows no spread between items; and
two free sets of effects do not cancel where a half's R and U' are different identities.

The jackknife (CR3), not the usual sandwich: with 76 effects and 33 items residuals are far too small. On halves
of N4's design, at 95 %, the sandwich covers 69 % and a t test on the adjusted rows' item means 65-67 %; the
jackknife 95-96 % (docs/statistics.md). Fixed while clusters are drawn: the labels and who met whom.

Undefined, in words: where b cannot be told from m (value nan); where it could not without one of the clusters,
or there is one cluster (interval the whole line).

Sources: Bell and McCaffrey, Bias reduction in standard errors for linear regression with multi-stage samples
(2002); Hansen, Jackknife standard errors for clustered regression (2024). It does not show that m is additive,
nor that effects are the same beside other labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from scipy import stats

from timonel.errors import InputError
from timonel.stats._sums import check_settings, read_rows
from timonel.stats.estimate import Estimate
from timonel.stats.tests import Alternative

_TINY = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Adjustment:
    """The design of one set of rows, solved once for any number of columns of values; see `of`.

    Attributes:
        clusters: number of each row's cluster, from 0.
        design: [1, X].
        inverse: its pseudo-inverse; row 0 holds the weights a.
        leave_out: v with b' - b'(-g) = sum over the rows of g of v e, e the residuals of the whole fit.
        reason: why value (and interval) are undefined; empty where they are not.
        value_known: whether b can be told from m at all.
    """

    clusters: Int[np.ndarray, " rows"]
    design: Float[np.ndarray, "rows effects"]
    inverse: Float[np.ndarray, "effects rows"]
    leave_out: Float[np.ndarray, " rows"]
    reason: str
    value_known: bool

    @classmethod
    def of(cls, gained: ArrayLike, lost: ArrayLike, clusters: ArrayLike) -> Adjustment:
        """Solve the design.

        Args:
            gained: the label that enters each row with plus (R).
            lost: the label that enters it with minus (U').
            clusters: each row's cluster (item).
        """
        plus, minus = (np.asarray(labels, dtype=object) for labels in (gained, lost))
        _, codes = read_rows({"values": np.zeros(np.shape(clusters))}, clusters)
        for name, labels in (("gained", plus), ("lost", minus)):
            if labels.shape != codes.shape:
                raise InputError(
                    f"{name} has shape {labels.shape} and clusters {codes.shape}; expected one label a row; align them."
                )
        labels = np.array(sorted({*plus.tolist(), *minus.tolist()}, key=repr), dtype=object)
        effects = (plus[:, None] == labels).astype(float) - (minus[:, None] == labels)
        design = np.column_stack([np.ones(len(codes)), effects])
        inverse = np.linalg.pinv(design, rcond=_TINY)
        known = abs(float(inverse[0].sum()) - 1) < _TINY and float(np.abs(inverse[0] @ effects).max()) < _TINY
        leave_out, lone = _leave_out(design, inverse, codes)
        if not known:
            reason = "the mean cannot be told from the labels' effects"
        elif codes.max() == 0:
            reason = "one cluster shows no spread between clusters"
        else:
            reason = "without one of the clusters the mean could not be told from the labels' effects" if lone else ""
        return cls(codes, design, inverse, leave_out, reason, known)

    def mean(self, values: ArrayLike, *, level: float = 0.95) -> Estimate:
        """The adjusted mean of one column of values; `p` is two-sided and belongs to it."""
        check_settings(level)
        y = read_rows({"values": values}, self.clusters)[0][0]
        count = int(self.clusters.max()) + 1
        value, low, high, se, p = float("nan"), -np.inf, np.inf, float("nan"), None
        if self.value_known:
            fit = self.inverse @ y
            value, residuals = float(fit[0]), y - self.design @ fit
        if not self.reason:
            shifts = np.bincount(self.clusters, weights=self.leave_out * residuals)
            se = float(np.sqrt((count - 1) / count * (shifts**2).sum()))
            rounding = 1e-12 * float(np.abs(y).max())
            se = se if se > rounding else 0.0
            value = value if se or abs(value) > rounding else 0.0
            reach = float(stats.t.ppf((1 + level) / 2, count - 1)) * se
            low, high, p = value - reach, value + reach, float(2 * stats.t.sf(_t(value, se), count - 1))
        how = f"adjusted for {self.design.shape[1] - 1} labels' effects"
        method = f"{how}; " + (self.reason or f"cluster jackknife, t with {count - 1} df; p the same, two-sided")
        return Estimate(
            value=value, low=low, high=high, level=level, n=len(y), clusters=count, se=se, p=p, method=method
        )


def adjusted_mean(
    values: ArrayLike, gained: ArrayLike, lost: ArrayLike, clusters: ArrayLike, *, level: float = 0.95
) -> Estimate:
    """Mean of `values` at balanced labels: `Adjustment.of(gained, lost, clusters).mean(values)`.

    >>> found = adjusted_mean([3.0, -1.0, 4.0, 0.0], ["x", "y", "x", "y"], ["y", "x", "y", "x"], [0, 0, 1, 1])
    >>> round(found.value, 6), round(float(np.mean([3.0, -1.0, 4.0])), 6)  # m(x) - m(y) is 2
    (1.5, 2.0)
    """
    return Adjustment.of(gained, lost, clusters).mean(values, level=level)


def one_sided(estimate: Estimate, alternative: Alternative) -> float:
    """The one-sided p of an estimate whose p is two-sided and symmetric; nan where it was not tested."""
    if estimate.p is None:
        return float("nan")
    if alternative == "two-sided":
        return estimate.p
    on_its_side = estimate.value > 0 if alternative == "greater" else estimate.value < 0
    return estimate.p / 2 if on_its_side else 1 - estimate.p / 2


def _t(value: float, se: float) -> float:
    """|t|; where nothing spreads, its limit."""
    if se > 0:
        return abs(value) / se
    return float("inf") if value else 0.0


def _leave_out(
    design: Float[np.ndarray, "rows effects"],
    inverse: Float[np.ndarray, "effects rows"],
    codes: Int[np.ndarray, " rows"],
) -> tuple[Float[np.ndarray, " rows"], bool]:
    """v_g = (I - H_gg)^+ a_g of each cluster, and whether the intercept is lost without some cluster.

    H_gg is the cluster's block of the hat matrix. An eigenvalue 1 is a direction that the cluster alone
    determines (an identity seen in no other item); the intercept survives as long as a_g has no part in it.
    """
    solved = np.zeros(len(codes))
    lost = False
    for code in range(int(codes.max()) + 1):
        rows: Bool[np.ndarray, " rows"] = codes == code
        block = np.eye(int(rows.sum())) - design[rows] @ inverse[:, rows]
        sizes, directions = np.linalg.eigh((block + block.T) / 2)
        parts = directions.T @ inverse[0, rows]
        free = sizes > _TINY
        lost |= bool(np.abs(parts[~free]).max(initial=0.0) > _TINY)
        solved[rows] = directions[:, free] @ (parts[free] / sizes[free])
    return solved, lost

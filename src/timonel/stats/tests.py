"""Tests, each with the hypothesis that its p belongs to.

    item t            t = mean_g(y_g) / (sd_g(y_g) / sqrt(G)),  y_g mean of cluster g,  df = G - 1
    Benjamini-Hochberg q_(i) = min over j >= i of  p_(j) k / j        k p-values, sorted; false discovery rate
    Holm              p_(i) -> max over j <= i of  (k - j + 1) p_(j)  familywise error
    permutation       (1 + #{draw >= real}) / (1 + draws)

The item t tests the mean of ITEM MEANS, each item weighing the same. It is not the p of the mean over pairs,
in which an item weighs as many times as it has pairs: for that one take `cluster_mean(...).p`.

Sources: Benjamini and Hochberg (1995); Holm (1979); Phipson and Smyth, Permutation p-values should never be
zero (2010), for the two ones. Adjusted values say nothing about the size of an effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from scipy import stats

from timonel.errors import InputError
from timonel.stats._sums import read_rows

Alternative = Literal["two-sided", "less", "greater"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemTest:
    """One-sample t test on item means.

    Attributes:
        value: mean of item means, which is what `p` is about; not the mean over pairs.
        t: the statistic; infinite where all items agree.
        df: items - 1.
        p: of "the mean of item means is 0" against `alternative`; nan with one item.
        alternative: what counts as evidence against 0.
        n: rows.
        clusters: items.
    """

    value: float
    t: float
    df: int
    p: float
    alternative: Alternative
    n: int
    clusters: int

    @property
    def hypothesis(self) -> str:
        """What `p` tests, for a table's foot."""
        side = {"two-sided": "is not 0", "less": "is below 0", "greater": "is above 0"}[self.alternative]
        return f"one-sample t on {self.clusters} item means: the mean of item means (not over pairs) {side}"


def item_t(values: ArrayLike, clusters: ArrayLike, alternative: Alternative = "two-sided") -> ItemTest:
    """Test that the mean of item means is 0.

    Its p belongs to the mean of item means, not to the mean over pairs. Where all items have the same mean
    there is no spread: at 0 p is 1, elsewhere p is the limit, 0 (or 1 on the wrong side).

    >>> item_t([1.0, 3.0, 1.5, 3.0], ["kimono", "kimono", "sari", "obi"]).p  # means 2, 1.5, 3
    0.0390...
    """
    _check_alternative(alternative)
    matrix, codes = read_rows({"values": values}, clusters)
    means = np.bincount(codes, weights=matrix[0]) / np.bincount(codes)
    value, count = float(means.mean()), len(means)
    rounding = 1e-12 * float(np.abs(matrix).max())
    if count == 1:
        t = p = math.nan
    elif (spread := float(means.std(ddof=1))) > rounding:
        t = value / (spread / math.sqrt(count))
        p = _tail_of_t(t, count - 1, alternative)
    else:
        value = value if abs(value) > rounding else 0.0
        t = math.copysign(math.inf, value) if value != 0 else 0.0
        p = _tail_of_t(t, count - 1, alternative) if value != 0 else 1.0
    return ItemTest(value=value, t=t, df=count - 1, p=p, alternative=alternative, n=len(codes), clusters=count)


def _tail_of_t(t: float, df: int, alternative: Alternative) -> float:
    if alternative == "two-sided":
        return float(2 * stats.t.sf(abs(t), df))
    return float(stats.t.cdf(t, df) if alternative == "less" else stats.t.sf(t, df))


def benjamini_hochberg(p: ArrayLike) -> Float[np.ndarray, "*shape"]:
    """q-values: calling all with q < .05 keeps the expected share of false calls under 5 %.

    NaN (or None: not tested) stays NaN and does not count among the tests. Any shape, treated as one family.
    Holds for independent tests and for positively dependent ones.
    """
    values, tested, order = _read_p(p)
    count = len(order)
    scaled = tested[order] * count / np.arange(1, count + 1)
    return _write_p(values, order, np.minimum.accumulate(scaled[::-1])[::-1])


def holm(p: ArrayLike) -> Float[np.ndarray, "*shape"]:
    """Holm's adjusted p: calling all under .05 keeps the chance of any false call under 5 %.

    NaN (or None: not tested) stays NaN and does not count. Holds under any dependence.
    """
    values, tested, order = _read_p(p)
    scaled = tested[order] * np.arange(len(order), 0, -1)
    return _write_p(values, order, np.maximum.accumulate(scaled))


def _read_p(p: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All p-values in their shape, those tested, flat, and the order that sorts these."""
    values = np.array(p, dtype=np.float64)
    tested = values[~np.isnan(values)]
    bad = int(np.count_nonzero((tested < 0) | (tested > 1)))
    if bad:
        raise InputError(f"{bad} of {values.size} p-values lie outside [0, 1]; expected probabilities; check them.")
    return values, tested, np.argsort(tested, kind="stable")


def _write_p(values: np.ndarray, order: np.ndarray, adjusted: np.ndarray) -> np.ndarray:
    back = np.empty(len(order))
    back[order] = np.minimum(adjusted, 1.0)
    values[~np.isnan(values)] = back
    return values


def permutation_p(real: float, draws: ArrayLike, alternative: Alternative = "greater") -> float:
    """Share of draws from the null at least as extreme as `real`, which counts as one of them.

    Tests that `real` was made as the draws were (random heads, permuted labels); it says nothing about 0,
    about item means or about pairs. "two-sided" is twice the smaller tail.
    Never 0: the floor is 1 / (1 + draws).

    Args:
        real: the quantity under the real choice.
        draws: the same quantity under the null's choices.
        alternative: "greater" where large values speak against the null.
    """
    _check_alternative(alternative)
    null = np.asarray(draws, dtype=np.float64).ravel()
    if null.size == 0 or not np.isfinite(null).all() or not math.isfinite(real):
        raise InputError(
            f"{int(np.count_nonzero(np.isfinite(null)))} of {null.size} draws are finite and real is {real}; "
            "expected finite numbers and at least one draw; leave out or repeat failed draws."
        )
    # A draw that repeats the real choice may differ from it by the order of summation: that is a tie.
    slack = 1e-12 * abs(real)
    above = (1 + int(np.count_nonzero(null >= real - slack))) / (1 + null.size)
    below = (1 + int(np.count_nonzero(null <= real + slack))) / (1 + null.size)
    if alternative == "two-sided":
        return min(1.0, 2 * min(above, below))
    return above if alternative == "greater" else below


def _check_alternative(alternative: str) -> None:
    if alternative not in ("two-sided", "less", "greater"):
        raise InputError(f"alternative is {alternative!r}; expected two-sided, less or greater; choose one of them.")

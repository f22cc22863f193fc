"""A real choice against random choices of the same kind, and what the random choices do themselves.

    real  r_i, draws d_ji                      change of row i under the real choice and under draw j; means over rows
    p     = (1 + #{draws with mean >= mean r}) / (1 + draws)          "less" and "two-sided" as in `permutation_p`
    own   = mean over rows of D_i,   D_i = mean over draws of d_ji    item-clustered bootstrap-t interval
    beyond = mean over rows of r_i - D_i                              the same

In a knockout r is the change of dS under the chosen heads' cut, d that of as many random heads in the same
layers. `own` says whether cutting any heads there does something; `beyond` is what the choice adds, with an
interval, where p alone says only how rare it is. p tests that the real choice was made as the draws were; the
intervals hold for the draws at hand, averaged, and know clusters of rows alone: `sd` is the draws' own spread.

It does not show that the chosen heads are the best ones, nor anything beyond the kind of choice drawn from.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from timonel.errors import InputError
from timonel.stats.cluster import cluster_difference, cluster_mean
from timonel.stats.estimate import Estimate
from timonel.stats.tests import Alternative, permutation_p


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawsSummary:
    """The real choice beside the draws.

    Attributes:
        real: mean over rows under the real choice.
        own: mean over rows under the draws, averaged in each row.
        beyond: real - own.
        means: each draw's mean over rows, ascending; the null's distribution, for a figure.
        sd: their standard deviation; nan with one draw.
        p: of "the real choice was made as the draws were".
        alternative: which side speaks against that.
    """

    real: Estimate
    own: Estimate
    beyond: Estimate
    means: Float[np.ndarray, " draws"]
    sd: float
    p: float
    alternative: Alternative


def against_draws(
    real: ArrayLike,
    draws: ArrayLike,
    clusters: ArrayLike,
    *,
    alternative: Alternative = "greater",
    level: float = 0.95,
    resamples: int = 9999,
    seed: int = 0,
) -> DrawsSummary:
    """Compares a real choice with random ones.

    Args:
        real: one number a row.
        draws: one row of numbers a draw [draws, rows].
        clusters: each row's cluster.
        alternative: "greater" where large means speak against the null.
        level: of the intervals.
        resamples: of the bootstrap.
        seed: of it.
    """
    null, one = np.asarray(draws, dtype=np.float64), np.asarray(real, dtype=np.float64)
    if null.ndim != 2 or null.shape[1:] != one.shape or len(null) == 0:
        raise InputError(
            f"draws have shape {null.shape} and real {one.shape}; expected [draws, rows] and [rows]; "
            "stack one row of changes a draw."
        )
    average = null.mean(axis=0)
    means = np.sort(null.mean(axis=1))
    return DrawsSummary(
        real=cluster_mean(one, clusters, level=level, draws=resamples, seed=seed),
        own=cluster_mean(average, clusters, level=level, draws=resamples, seed=seed),
        beyond=cluster_difference(one, average, clusters, level=level, draws=resamples, seed=seed),
        means=means,
        sd=float(means.std(ddof=1)) if len(means) > 1 else float("nan"),
        p=permutation_p(float(one.mean()), means, alternative),
        alternative=alternative,
    )

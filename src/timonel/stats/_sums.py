"""Rows to cluster sums, their linearised covariance, and the cluster resampler.

    S_g = sum of x_i over the rows i of cluster g,   n_g = number of those rows,   N = sum of n_g
    m   = sum S_g / N                                       the mean over rows, a ratio of two cluster totals
    r_g = S_g - m n_g                                       linearised contribution of a cluster
    cov = G/(G-1) * sum r_g r_g' / N^2                      cluster-robust covariance of the means

Clusters are put in an order that depends on nothing but their sums, so that a seed gives the same draws,
bit for bit, whatever the order of the rows and the names of the clusters.

Source: the linearised ratio mean of survey sampling (Cochran, Sampling Techniques, 3rd ed., section 6.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from timonel.errors import InputError

# Cells of one block of resampling weights: three arrays of 8 bytes a cell, so about 24 MB.
BLOCK_CELLS = 1_000_000


def read_rows(
    columns: Mapping[str, ArrayLike], clusters: ArrayLike
) -> tuple[Float[np.ndarray, "columns rows"], Int[np.ndarray, " rows"]]:
    """Check and align what a caller hands in; the second result numbers each row's cluster from 0."""
    if not columns:
        raise InputError("no column of values was given; expected at least one; pass values by row.")
    # A plain list goes in as objects: numpy would turn a missing label among strings into the string "nan".
    labels: np.ndarray[Any, Any] = np.asarray(clusters, dtype=None if hasattr(clusters, "dtype") else object)
    if labels.ndim != 1:
        raise InputError(f"clusters has {labels.ndim} dimensions; expected one label a row; join them into one string.")
    values = [_read_column(name, column, len(labels)) for name, column in columns.items()]
    if len(labels) == 0:
        raise InputError("there are no rows; expected at least one; check the filter that chose them.")
    try:
        # NaN is the one label that differs from itself.
        missing = sum(label is None or bool(label != label) for label in labels.tolist())
        codes = np.unique(labels, return_inverse=True)[1] if not missing else labels
    except TypeError as error:
        raise InputError(
            "cluster labels cannot be compared; expected one type, none missing; make them strings."
        ) from error
    if missing:
        raise InputError(
            f"{missing} of {len(labels)} cluster labels are missing; expected one a row; drop or label those."
        )
    return np.stack(values), codes


def _read_column(name: str, column: ArrayLike, rows: int) -> Float[np.ndarray, " rows"]:
    try:
        values = np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} holds what is not a number; expected numbers; convert it.") from error
    if values.shape != (rows,):
        raise InputError(
            f"{name} has shape {values.shape} and clusters ({rows},); expected one number a row; align them."
        )
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise InputError(f"{bad} of {rows} numbers in {name} are not finite; expected finite ones; drop those rows.")
    return values


def cluster_sums(
    matrix: Float[np.ndarray, "columns rows"], codes: Int[np.ndarray, " rows"]
) -> tuple[Float[np.ndarray, "columns clusters"], Float[np.ndarray, " clusters"]]:
    """Sums and sizes of the clusters, in the order of size, then of sums."""
    # Float addition is not associative: add each cluster's rows in the order of their values.
    order = np.lexsort((*matrix[::-1], codes))
    sizes = np.bincount(codes).astype(np.float64)
    sums = np.stack([np.bincount(codes[order], weights=column[order]) for column in matrix])
    by_size = np.lexsort((*sums[::-1], sizes))
    return sums[:, by_size], sizes[by_size]


def linearise(
    sums: Float[np.ndarray, "columns clusters"], sizes: Float[np.ndarray, " clusters"]
) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, "columns clusters"]]:
    """Means over rows, and each cluster's r_g."""
    means = sums.sum(axis=1) / sizes.sum()
    return means, sums - means[:, None] * sizes


def robust_covariance(
    residuals: Float[np.ndarray, "columns clusters"], rows: float
) -> Float[np.ndarray, "columns columns"]:
    """Cluster-robust covariance of the means over rows; nan with one cluster, which shows no spread."""
    count = residuals.shape[1]
    if count == 1:
        return np.full((len(residuals), len(residuals)), np.nan)
    covariance: np.ndarray[Any, Any] = count / (count - 1) * (residuals @ residuals.T) / rows**2
    return covariance


def resample_totals(
    columns: Float[np.ndarray, "columns clusters"], draws: int, seed: int
) -> Float[np.ndarray, "columns draws"]:
    """Totals of each column over `draws` resamples of whole clusters, with replacement.

    A draw is a row of multinomial weights, made by counting uniform picks (faster than a multinomial
    sampler), and the totals are one matrix product a block: memory stays flat in `draws`.
    """
    count = columns.shape[1]
    block = max(1, BLOCK_CELLS // count)
    rng = np.random.default_rng(seed)
    totals = np.empty((len(columns), draws))
    for start in range(0, draws, block):
        size = min(block, draws - start)
        picks = rng.integers(count, size=(size, count))
        picks += count * np.arange(size)[:, None]
        weights = np.bincount(picks.ravel(), minlength=size * count).reshape(size, count)
        totals[:, start : start + size] = (weights.astype(np.float64) @ columns.T).T
    return totals


def check_settings(level: float, draws: int | None = None) -> None:
    """Refuse a level outside (0, 1), and too few draws to reach its tails."""
    if not 0 < level < 1:
        raise InputError(f"level is {level}; expected a number between 0 and 1; 0.95 is the usual one.")
    # The small margin keeps 39 draws enough at 0.95, where 2 / (1 - level) is 40 and a rounding error more.
    needed = int(np.ceil(2 / (1 - level) - 1 - 1e-9))
    if draws is not None and draws < needed:
        raise InputError(
            f"draws is {draws}; expected at least {needed} at level {level}, whose tails are out of reach "
            "with fewer; 9999 is the usual number."
        )

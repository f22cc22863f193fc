"""Discovery: heads whose attention from identity to item tells MATCH from MISMATCH (a shortlist, not a proof).

    rows   x [2p, H]: each pair twice, MATCH with y = 1, MISMATCH with y = 0
    outer  5-fold GroupKFold by item; in each fold, on the training rows:
           C    = the one of {.001, .01, .1, 1, 10} with the largest mean AUC over an inner grouped 5-fold
                  (of equal ones the smallest)
           w    = coefficients of the L1 logistic regression (liblinear) on standardised features
           kept = the 10 largest |w|, non-zero ones only
    stable = kept in at least 4 of the 5 folds
    AUC of a fold = P(a held-out MATCH row scores above a held-out MISMATCH row), ties half
    AUC over all  = mean of the folds' AUC, each weighted by its pairs

The features are the attention (sum over the item's tokens, mean over the identity's), as a rule the mean over
both identity slots; a head is its column. At small C all coefficients are 0, and an argsort would invent heads:
a zero is never kept. Items are dealt into folds by the seed.

Errors:
    InputError: other shapes than [p, 2, H], a number that is not finite, fewer than 5 items.

Sources: "Cultural Binding Heads in Language Models" (arXiv 2605.28543) for the procedure; the interval of the
AUC follows Obuchowski, Nonparametric analysis of clustered ROC curve data (1997), with the folds' models taken
as given. Stability is no error control (training folds share three quarters of their items), and a head that
attends is not a head that matters: the causal cut on held-out items decides (`confirm`). Of two heads that say
the same, L1 may keep either.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike
from scipy.stats import rankdata
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_curve
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from timonel.errors import InputError
from timonel.stats import Estimate, cluster_mean

STRENGTHS = (0.001, 0.01, 0.1, 1.0, 10.0)
FOLDS, TOP, AT_LEAST = 5, 10, 4

# Since 1.8 scikit-learn asks for l1_ratio, and warns of penalty; before, liblinear took penalty alone.
_PENALTY = inspect.signature(LogisticRegression).parameters["penalty"].default
_L1 = {"l1_ratio": 1} if _PENALTY == "deprecated" else {"penalty": "l1"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Discovery:
    """What discovery found; f folds, H heads.

    Attributes:
        coefficients: of each fold's regression, on standardised features.
        c: each fold's inverse strength of the penalty.
        selected: heads kept in each fold, the largest coefficient first.
        stable: heads kept in at least `AT_LEAST` folds, ascending.
        auc_folds: AUC of each fold on its held-out items.
        auc: over all folds, with the item-clustered interval; .5 is chance.
        roc: false and true positive rate of each fold's held-out rows, for a figure.
    """

    coefficients: Float[np.ndarray, "f H"]
    c: tuple[float, ...]
    selected: tuple[tuple[int, ...], ...]
    stable: tuple[int, ...]
    auc_folds: tuple[float, ...]
    auc: Estimate
    roc: tuple[tuple[Float[np.ndarray, " r"], Float[np.ndarray, " r"]], ...]

    @property
    def votes(self) -> Int[np.ndarray, " H"]:
        """In how many folds each head was kept."""
        kept = np.array([head for fold in self.selected for head in fold], dtype=np.int64)
        return np.bincount(kept, minlength=self.coefficients.shape[1])


def discover(features: ArrayLike, items: ArrayLike, *, seed: int = 0) -> Discovery:
    """Shortlists heads.

    Args:
        features: attention of all heads [p, 2, H], MATCH before MISMATCH.
        items: each pair's item [p].
        seed: of the folds and of liblinear.

    Returns:
        Coefficients, AUC out of fold, heads kept by fold, stable heads.
    """
    x, groups = _rows(features, items)
    y = np.tile([1, 0], len(x) // 2)
    coefficients, strengths, selected, folds_auc, roc = [], [], [], [], []
    placements = np.zeros(len(x) // 2)
    for train, test in _folds(groups, seed):
        strength = _choose(x[train], y[train], groups[train], seed)
        inside, outside = _standardised(x[train], x[test])
        weights, bias = _fit(inside, y[train], strength, seed)
        scores = outside @ weights + bias
        area, placed = _auc(scores)
        placements[test[::2] // 2] = placed
        coefficients.append(weights)
        strengths.append(strength)
        selected.append(_largest(weights))
        folds_auc.append(area)
        false, true, _ = roc_curve(y[test], scores)
        roc.append((false, true))
    kept = [head for fold in selected for head in fold]
    return Discovery(
        coefficients=np.stack(coefficients),
        c=tuple(strengths),
        selected=tuple(selected),
        stable=tuple(head for head in sorted(set(kept)) if kept.count(head) >= AT_LEAST),
        auc_folds=tuple(folds_auc),
        # 0 is no hypothesis about an AUC, so its p is left out.
        auc=dataclasses.replace(cluster_mean(placements, groups[::2], seed=seed), p=None),
        roc=tuple(roc),
    )


def _standardised(
    train: Float[np.ndarray, "r H"], test: Float[np.ndarray, "t H"]
) -> tuple[Float[np.ndarray, "r H"], Float[np.ndarray, "t H"]]:
    """Both by the training rows' mean and deviation; what does not vary in them is 0, and so is its coefficient."""
    varies: Bool[np.ndarray, " H"] = np.ptp(train, axis=0) > 0
    scaler = StandardScaler().fit(train)
    return np.where(varies, scaler.transform(train), 0.0), np.where(varies, scaler.transform(test), 0.0)


def _fit(
    x: Float[np.ndarray, "r H"], y: Int[np.ndarray, " r"], strength: float, seed: int
) -> tuple[Float[np.ndarray, " H"], float]:
    """Coefficients and intercept."""
    model = LogisticRegression(**_L1, C=strength, solver="liblinear", max_iter=1000, random_state=seed).fit(x, y)
    return model.coef_[0], float(model.intercept_[0])


def _rows(features: ArrayLike, items: ArrayLike) -> tuple[Float[np.ndarray, "r H"], Int[np.ndarray, " r"]]:
    """Rows, two a pair, and the number of each row's item."""
    x = np.asarray(features, dtype=np.float64)
    labels = np.asarray(items)
    if x.ndim != 3 or x.shape[1] != 2 or labels.shape != x.shape[:1]:
        raise InputError(
            f"features have shape {x.shape} and items {labels.shape}; expected [pairs, 2, heads] and [pairs]; "
            "stack MATCH and MISMATCH in this order."
        )
    bad = int(np.count_nonzero(~np.isfinite(x)))
    if bad:
        raise InputError(f"{bad} of {x.size} features are not finite; expected attention weights; check the capture.")
    names, codes = np.unique(labels, return_inverse=True)
    if len(names) < FOLDS:
        raise InputError(
            f"the pairs are of {len(names)} items; expected at least {FOLDS}, one a fold; use pairs of more items."
        )
    return x.reshape(-1, x.shape[2]), np.repeat(codes, 2)


def _folds(groups: Int[np.ndarray, " r"], seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    count = min(FOLDS, len(np.unique(groups)))
    return list(GroupKFold(count, shuffle=True, random_state=seed).split(groups, groups=groups))


def _choose(x: Float[np.ndarray, "r H"], y: Int[np.ndarray, " r"], groups: Int[np.ndarray, " r"], seed: int) -> float:
    """The penalty with the largest mean AUC on items left out; of equal ones the strongest."""
    folds = _folds(groups, seed)
    area = np.zeros(len(STRENGTHS))
    for train, test in folds:
        inside, outside = _standardised(x[train], x[test])
        for index, strength in enumerate(STRENGTHS):
            weights, bias = _fit(inside, y[train], strength, seed)
            area[index] += _auc(outside @ weights + bias)[0] / len(folds)
    return STRENGTHS[int(np.argmax(area > area.max() - 1e-12))]


def _largest(weights: Float[np.ndarray, " H"]) -> tuple[int, ...]:
    """The heads with the largest |w|, those at 0 left out; of equal ones the first."""
    order = np.argsort(-np.abs(weights), kind="stable")[:TOP]
    return tuple(int(head) for head in order if weights[head] != 0)


def _auc(scores: Float[np.ndarray, " r"]) -> tuple[float, Float[np.ndarray, " p"]]:
    """AUC of rows (MATCH, MISMATCH, MATCH, ...), and a value for each pair whose mean it is.

    The value is the share of MISMATCH rows under the pair's MATCH row, plus the share of MATCH rows above its
    MISMATCH row, minus the AUC: its spread between items is the AUC's, to first order.
    """
    match, mismatch = scores[::2], scores[1::2]
    ranks, count = rankdata(scores), len(match)
    below = (ranks[::2] - rankdata(match)) / count
    above = 1 - (ranks[1::2] - rankdata(mismatch)) / count
    area = float(below.mean())
    return area, below + above - area

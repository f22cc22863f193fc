"""Knockout: what cutting an edge does to the effect, beside what cutting the control edge does.

    change    = mean over pairs of (dS under the cut - dS)           toward 0 is positive where dS is negative
    contrast  = change of the related edge - change of the other     renormalisation shifts both; this is the headline
    reduction = 1 - dS_cut / dS                                      only where the interval of dS excludes 0

Intervals are item-clustered bootstrap-t (change) and Fieller (reduction); p is a t-test on item means, one-sided for
the related edge (a cut is expected to raise a negative dS), two-sided for the others, and belongs to the mean of item
means. q is Benjamini-Hochberg over the rows of one edge, subset and split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd

from timonel.binding.cut import Cut
from timonel.binding.pair import Pair
from timonel.binding.score import Contrast
from timonel.models.heads import format_head
from timonel.stats import Alternative, Estimate, benjamini_hochberg, cluster_difference, cluster_mean, item_t, reduction

SUBSETS: Mapping[str, Callable[[Pair], bool]] = {
    "all": lambda pair: True,
    "clean": lambda pair: pair.clean,
    "avoid": lambda pair: pair.polarity == "avoid",
    "choose": lambda pair: pair.polarity == "choose",
}


def knockout_table(base: Contrast, cuts: Mapping[Cut, Contrast], *, pmi: bool, seed: int = 0) -> pd.DataFrame:
    """One row a condition and subset, and one for each contrast of related with other.

    Args:
        base: the unsteered pairs.
        cuts: the same pairs under each cut.
        pmi: whether S has the texts' priors taken off.
        seed: of the bootstrap.

    Returns:
        Columns as in the run folder's `knockout` table; `n_items` clusters stand behind each interval.
    """
    full = base.delta(pmi=pmi)
    rows = []
    for subset, belongs in SUBSETS.items():
        chosen = np.array([belongs(pair) for pair in base.pairs])
        if not chosen.any():
            continue
        items = np.array([pair.item for pair in base.pairs])[chosen]
        before = cluster_mean(full[chosen], items, seed=seed)
        for cut, contrast in cuts.items():
            after = contrast.delta(pmi=pmi)[chosen]
            side: Alternative = "greater" if cut.edge == "related" else "two-sided"
            row = _row(after, full[chosen], items, side, before, seed)
            rows.append({"edge": cut.edge, "heads": name_heads(cut.heads), "subset": subset, "split": "all", **row})
        for heads, related, other in _matched(cuts):
            after = related.delta(pmi=pmi)[chosen]
            row = _row(after, other.delta(pmi=pmi)[chosen], items, "two-sided", None, seed)
            rows.append({"edge": "related-other", "heads": name_heads(heads), "subset": subset, "split": "all", **row})
    table = pd.DataFrame(rows)
    if not table.empty:
        families = table.groupby(["edge", "subset", "split"], sort=False)["p"]
        table["q"] = families.transform(lambda p: benjamini_hochberg(p.to_numpy()))
    return table


def name_heads(heads: Sequence[tuple[int, int]]) -> str:
    """`L8H2,L9H5`; more than a dozen are counted instead."""
    if len(heads) > 12:
        return f"{len(heads)} heads"
    return ",".join(format_head(layer, head) for layer, head in heads)


def _matched(cuts: Mapping[Cut, Contrast]) -> list[tuple[tuple[tuple[int, int], ...], Contrast, Contrast]]:
    """Related and other cuts at the same heads and alpha."""
    return [
        (cut.heads, contrast, cuts[control])
        for cut, contrast in cuts.items()
        if cut.edge == "related" and (control := Cut("other", cut.heads, cut.alpha)) in cuts
    ]


def _row(
    after: np.ndarray, before: np.ndarray, items: np.ndarray, side: Alternative, full: Estimate | None, seed: int
) -> dict[str, object]:
    """The numbers of one row; `full` is None for a contrast of two cuts, of which no share can be taken."""
    change = cluster_difference(after, before, items, seed=seed)
    share = None if full is None else reduction(before, after, items, full_mean=full)
    known = share is not None and share.defined
    several = len(set(items)) > 1
    return {
        "n": change.n,
        "n_items": change.clusters,
        "delta_s": np.nan if full is None else full.value,
        "delta_s_cut": float(after.mean()) if full is not None else np.nan,
        "change": change.value,
        "change_low": change.low,
        "change_high": change.high,
        "reduction": share.value if share is not None and known else np.nan,
        "reduction_low": share.low if share is not None and known else np.nan,
        "reduction_high": share.high if share is not None and known else np.nan,
        "p": item_t(after - before, items, side).p if several else np.nan,
    }

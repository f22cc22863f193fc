"""The score stage's tables: one row a pair, and the effects by subset."""

from __future__ import annotations

import numpy as np
import pandas as pd

from timonel.binding.knockout import SUBSETS
from timonel.binding.score import Contrast
from timonel.stats import cluster_mean, fieller, item_t


def pairs_table(s: Contrast, k: Contrast) -> pd.DataFrame:
    """One row a pair with its scores; the `_pmi` columns are there where the form knows priors."""
    table = pd.DataFrame(
        [
            {
                "pair": pair.pair,
                "item": pair.item,
                "related": pair.related.key,
                "substitute": pair.substitute.key,
                "other": pair.other.key,
                "slot": pair.slot,
                "polarity": pair.polarity,
                "clean": pair.clean,
            }
            for pair in s.pairs
        ]
    )
    for name, contrast in (("s", s), ("k", k)):
        table[f"{name}_match"], table[f"{name}_mismatch"] = contrast.s()
        if contrast.has_priors:
            table[f"{name}_match_pmi"], table[f"{name}_mismatch_pmi"] = contrast.s(pmi=True)
    table["mass_match"], table["mass_mismatch"] = s.mass()
    return table


def baseline_table(s: Contrast, k: Contrast, *, seed: int = 0) -> pd.DataFrame:
    """The effects with their intervals: dS, dK, direction, by score (raw, and pmi in cloze form) and subset.

    `p` is that of the bootstrap and belongs to the mean over pairs; `p_items` is the paper's t-test on item means.
    `ratio` rows hold the knowledge-action ratio dK / dS with Fieller's interval, empty where the interval of dS
    covers 0.
    """
    rows = []
    for score in ("raw", "pmi") if s.has_priors else ("raw",):
        pmi = score == "pmi"
        for subset, belongs in SUBSETS.items():
            chosen = np.array([belongs(pair) for pair in s.pairs])
            if not chosen.any():
                continue
            items = np.array([pair.item for pair in s.pairs])[chosen]
            values = {
                "delta_s": s.delta(pmi=pmi),
                "delta_k": k.delta(pmi=pmi),
                "direction": s.direction(pmi=pmi),
            }
            for quantity, value in values.items():
                found = cluster_mean(value[chosen], items, seed=seed)
                rows.append(
                    {
                        "quantity": quantity,
                        "score": score,
                        "subset": subset,
                        "n": found.n,
                        "n_items": found.clusters,
                        "value": found.value,
                        "low": found.low,
                        "high": found.high,
                        "se": found.se,
                        "p": np.nan if found.p is None else found.p,
                        "p_items": item_t(value[chosen], items).p if found.clusters > 1 else np.nan,
                    }
                )
            effect = cluster_mean(values["delta_s"][chosen], items, seed=seed)
            ratio = fieller(values["delta_k"][chosen], values["delta_s"][chosen], items)
            known = ratio.defined and effect.excludes_zero
            rows.append(
                {
                    "quantity": "ratio",
                    "score": score,
                    "subset": subset,
                    "n": ratio.n,
                    "n_items": ratio.clusters,
                    "value": ratio.value if known else np.nan,
                    "low": ratio.low if known else np.nan,
                    "high": ratio.high if known else np.nan,
                    "se": np.nan,
                    "p": np.nan,
                    "p_items": np.nan,
                }
            )
    return pd.DataFrame(rows)

"""The tables of scores that are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from timonel.binding import Contrast, Cut, baseline_table, knockout_table, pairs_table
from timonel.binding.pair import Pair
from timonel.binding.planted import planted_binding
from timonel.stats import cluster_mean, fieller


@pytest.fixture(scope="module")
def pairs() -> tuple[Pair, ...]:
    return planted_binding(items=8).pairs


def contrast(pairs: tuple[Pair, ...], seed: int, shift: float, *, priors: bool) -> Contrast:
    draw = np.random.default_rng(seed)
    pairs = tuple(replace(pair, lexical=pair.pair % 2 == 0) for pair in pairs)
    match, mismatch, prior_match, prior_mismatch = draw.normal(-3, 0.4, (4, len(pairs), 3))
    match[:, 2] += shift
    return Contrast(pairs, match, mismatch, *((prior_match, prior_mismatch) if priors else ()))


def test_baseline_rows_by_hand(pairs: tuple[Pair, ...]) -> None:
    s, k = contrast(pairs, 0, -1.0, priors=True), contrast(pairs, 1, -3.0, priors=True)
    table = baseline_table(s, k)
    items = np.array([pair.item for pair in s.pairs])
    assert len(table) == 2 * 4 * 4
    for row in table.to_dict(orient="records"):
        pmi = row["score"] == "pmi"
        subset = row["subset"]
        chosen = np.array([pair.clean if subset == "clean" else subset in ("all", pair.polarity) for pair in s.pairs])
        values = {"delta_s": s.delta(pmi=pmi), "delta_k": k.delta(pmi=pmi), "direction": s.direction(pmi=pmi)}
        if row["quantity"] == "ratio":
            expected: Any = fieller(values["delta_k"][chosen], values["delta_s"][chosen], items[chosen])
            assert expected.value == pytest.approx(values["delta_k"][chosen].mean() / values["delta_s"][chosen].mean())
            assert np.isnan([row["se"], row["p"], row["p_items"]]).all()
        else:
            value = values[row["quantity"]][chosen]
            expected = cluster_mean(value, items[chosen])
            assert row["p"] == expected.p
            assert row["p_items"] == pytest.approx(
                stats.ttest_1samp(pd.Series(value).groupby(items[chosen]).mean(), 0).pvalue
            )
        assert row["n"] == chosen.sum()
        assert [row["value"], row["low"], row["high"]] == pytest.approx([expected.value, expected.low, expected.high])


def test_no_ratio_where_the_interval_that_is_shown_covers_nought(pairs: tuple[Pair, ...]) -> None:
    """With skewed effects the t interval, which Fieller's uses, may exclude 0 where the bootstrap's does not."""
    items = np.array([pair.item for pair in pairs])
    for seed in range(200):
        draw = np.random.default_rng(seed)
        effect = dict(zip(np.unique(items), 1.0 - draw.exponential(1.6, 8), strict=True))
        delta = np.array([effect[item] for item in items]) + draw.normal(0, 0.05, len(items))
        t_interval, shown = fieller(delta, delta, items), cluster_mean(delta, items)
        if t_interval.defined and not shown.excludes_zero:
            break
    else:
        raise AssertionError("no such case among the draws")
    match = np.zeros((len(items), 3))
    match[:, 2] = delta
    scored = Contrast(pairs, match, np.zeros_like(match))
    (ratio,) = baseline_table(scored, scored).query("quantity == 'ratio' and subset == 'all'").to_dict("records")
    assert np.isnan([ratio["value"], ratio["low"], ratio["high"]]).all()
    table = knockout_table(scored, {Cut("related", ((1, 2),)): scored}, pmi=False)
    (row,) = table.query("subset == 'all'").to_dict("records")
    assert np.isnan([row["reduction"], row["reduction_low"], row["reduction_high"]]).all()


def test_pmi_columns_are_there_where_priors_are(pairs: tuple[Pair, ...]) -> None:
    with_priors, without = contrast(pairs, 0, -1.0, priors=True), contrast(pairs, 0, -1.0, priors=False)
    assert {"s_match_pmi", "k_mismatch_pmi"} <= set(pairs_table(with_priors, with_priors).columns)
    plain = pairs_table(without, without)
    assert not [name for name in plain.columns if "pmi" in name]
    assert set(baseline_table(without, without)["score"]) == {"raw"}
    assert list(plain["clean"]) == [pair.pair % 2 == 1 for pair in without.pairs]

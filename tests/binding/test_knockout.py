from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from oracles.planted import Bench
from timonel.binding import Contrast, Cut, Form, knockout_table, score_pairs
from timonel.binding.knockout import name_heads
from timonel.binding.pair import Pair
from timonel.engine import Engine
from timonel.stats import cluster_mean


def made_up(pairs: tuple[Pair, ...], delta: np.ndarray) -> Contrast:
    """Scores whose S_match - S_mismatch is `delta`."""
    match, mismatch = np.zeros((2, len(pairs), 3))
    match[:, 2] = delta
    return Contrast(pairs, match, mismatch)


def draws(pairs: tuple[Pair, ...], mean: float, spread: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, spread, len(pairs))


@pytest.fixture(scope="module")
def mixed(bench: Bench) -> tuple[Pair, ...]:
    """A third of the pairs is lexical, a fifth shares its group; the two overlap."""
    return tuple(
        replace(pair, lexical=index % 3 == 0, same_group=index % 5 == 0)
        for index, pair in enumerate(bench.planted.pairs)
    )


HEADS = [((1, 2),), ((2, 0),), ((3, 3),), ((0, 1), (4, 1))]


@pytest.fixture(scope="module")
def table(mixed: tuple[Pair, ...]) -> tuple[pd.DataFrame, np.ndarray, dict[Cut, np.ndarray]]:
    full = draws(mixed, -1.0, 0.3, 0)
    values = {
        Cut(edge, heads): full + draws(mixed, 0.4 / (number + 1), 0.3, 10 * number + side)
        for number, heads in enumerate(HEADS)
        for side, edge in enumerate(("related", "other", "all"), 1)
    }
    cuts = {cut: made_up(mixed, value) for cut, value in values.items()}
    return knockout_table(made_up(mixed, full), cuts, pmi=False), full, values


def members(pairs: tuple[Pair, ...], subset: str) -> np.ndarray:
    if subset == "clean":
        return np.array([not pair.lexical and not pair.same_group for pair in pairs])
    return np.array([subset in ("all", pair.polarity) for pair in pairs])


def test_there_is_a_row_for_each_edge_heads_and_subset(table, mixed) -> None:
    found, _, _ = table
    edges = ["related", "other", "all", "related-other"]
    assert len(found) == 4 * len(edges) * len(HEADS)
    assert set(found["split"]) == {"all"}
    for (subset, edge), rows in found.groupby(["subset", "edge"]):
        assert edge in edges
        assert list(rows["heads"]) == [name_heads(heads) for heads in HEADS]
        assert set(rows["n"]) == {int(members(mixed, str(subset)).sum())}
    assert name_heads(HEADS[3]) == "L0H1,L4H1"
    assert name_heads([(0, head) for head in range(13)]) == "13 heads"


def test_numbers_and_p_by_hand(table, mixed) -> None:
    found, full, values = table
    items = pd.Series([pair.item for pair in mixed])
    for row in found.to_dict(orient="records"):
        chosen = members(mixed, row["subset"])
        heads = next(heads for heads in HEADS if name_heads(heads) == row["heads"])
        contrasted = row["edge"] == "related-other"
        after = values[Cut("related" if contrasted else row["edge"], heads)]
        before = values[Cut("other", heads)] if contrasted else full
        change = (after - before)[chosen]
        assert row["change"] == pytest.approx(change.mean(), abs=1e-12)
        interval = cluster_mean(change, items[chosen])
        assert (row["change_low"], row["change_high"]) == pytest.approx((interval.low, interval.high))
        means = pd.Series(change).groupby(items[chosen].to_numpy()).mean()
        assert row["n_items"] == len(means)
        side = "greater" if row["edge"] == "related" else "two-sided"
        assert row["p"] == pytest.approx(stats.ttest_1samp(means, 0, alternative=side).pvalue)
        if contrasted:
            assert all(np.isnan(row[name]) for name in ("delta_s", "delta_s_cut", "reduction", "reduction_low"))
        else:
            assert row["delta_s"] == pytest.approx(full[chosen].mean())
            assert row["delta_s_cut"] == pytest.approx(after[chosen].mean())
            assert row["reduction"] == pytest.approx(1 - after[chosen].mean() / full[chosen].mean())
            assert row["reduction_low"] < row["reduction"] < row["reduction_high"]


def test_q_is_within_one_edge_and_subset(table) -> None:
    found, _, _ = table
    assert not np.allclose(found["q"], found["p"])
    for _, rows in found.groupby(["edge", "subset", "split"]):
        assert rows["q"].to_numpy() == pytest.approx(multipletests(rows["p"], method="fdr_bh")[1])


def test_a_contrast_needs_the_control_at_the_same_heads_and_alpha(mixed) -> None:
    cuts = [Cut("related", HEADS[0]), Cut("other", HEADS[1]), Cut("other", HEADS[0], 0.5)]
    scored = made_up(mixed, draws(mixed, -1.0, 0.2, 1))
    edges = knockout_table(scored, dict.fromkeys(cuts, scored), pmi=False)["edge"]
    assert "related-other" not in set(edges)
    assert knockout_table(scored, {}, pmi=False).empty


def test_a_subset_that_is_empty_has_no_rows(bench: Bench) -> None:
    pairs = tuple(replace(pair, lexical=True, polarity="avoid") for pair in bench.planted.pairs)
    scored = made_up(pairs, draws(pairs, -1.0, 0.2, 1))
    assert set(knockout_table(scored, {Cut("related", HEADS[0]): scored}, pmi=False)["subset"]) == {"all", "avoid"}


def test_no_share_of_an_effect_that_may_be_nought(mixed) -> None:
    full, after = draws(mixed, 0.02, 1.0, 3), draws(mixed, 0.0, 1.0, 4)
    rows = knockout_table(made_up(mixed, full), {Cut("related", HEADS[0]): made_up(mixed, after)}, pmi=False)
    for row in rows.to_dict(orient="records"):
        chosen = members(mixed, row["subset"])
        effect = cluster_mean(full[chosen], np.array([pair.item for pair in mixed])[chosen])
        assert effect.low < 0 < effect.high
        assert np.isnan([row["reduction"], row["reduction_low"], row["reduction_high"]]).all()
        assert np.isfinite([row["change"], row["change_low"], row["change_high"]]).all()


def test_one_item_has_no_interval_and_no_p(bench: Bench) -> None:
    pairs = bench.planted.pairs[:6]
    assert len({pair.item for pair in pairs}) == 1
    scored = made_up(pairs, draws(pairs, -1.0, 0.2, 1))
    (row,) = (
        knockout_table(scored, {Cut("related", HEADS[0]): scored}, pmi=False)
        .query("subset == 'all'")
        .to_dict("records")
    )
    assert np.isnan([row["p"], row["q"], row["reduction"]]).all()
    assert (row["change_low"], row["change_high"]) == (-np.inf, np.inf)


def test_the_planted_model_equals_the_oracle(bench: Bench) -> None:
    """Every head's cut of either edge, against the attention written out; one head carries the effect, no decoy."""
    heads = {"planted": bench.planted.head, **bench.planted.decoys}
    cuts = [Cut(edge, (head,)) for head in heads.values() for edge in ("related", "other")]
    form = Form(bench.planted.tokenizer, "letters", "base")
    base, *cut = score_pairs(
        Engine(bench.planted.model, bench.planted.tokenizer), form, bench.planted.pairs, "S", [None, *cuts]
    )
    table = knockout_table(base, dict(zip(cuts, cut, strict=True)), pmi=False)
    table = table[table["subset"] == "all"].set_index(["heads", "edge"])
    full = float(bench.delta.double().mean())
    for name, head in heads.items():
        by_edge = {}
        for edge in ("related", "other"):
            row, by_edge[edge] = table.loc[(name_heads([head]), edge)], float(bench.cut(head, edge).double().mean())
            assert row["delta_s"] == pytest.approx(full, abs=2e-4)
            assert row["delta_s_cut"] == pytest.approx(by_edge[edge], abs=2e-4)
            assert row["change"] == pytest.approx(by_edge[edge] - full, abs=2e-4)
            assert row["reduction"] == pytest.approx(1 - by_edge[edge] / full, abs=2e-4)
            carries = (name, edge) == ("planted", "related")
            assert (row["reduction_low"] > 0.9) == carries
            assert (abs(row["reduction"]) < 0.05) == (not carries)
        beyond = table.loc[(name_heads([head]), "related-other")]
        assert beyond["change"] == pytest.approx(by_edge["related"] - by_edge["other"], abs=2e-4)

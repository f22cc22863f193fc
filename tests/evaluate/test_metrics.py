"""DiffAware, CtxtAware and their differences, against counts by hand and a naive bootstrap."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from statsmodels.stats.contingency_tables import mcnemar as reference_mcnemar

from oracles.judged import count, random_table, table
from timonel.errors import InputError
from timonel.evaluate.metrics import METRICS, Metric, difference, level, mcnemar, metrics_table, scenario_counts

DIFF, CTXT = Metric("diff_aware"), Metric("ctxt_aware", "refusal")


def flipped(rng: np.random.Generator, rows: pd.DataFrame, share: float) -> pd.DataFrame:
    """The same questions with some answers of `different` turned right: correlated with what they were."""
    turned = rows.copy()
    turn = (rows["half"] == "different") & (rng.random(len(rows)) < share)
    turned.loc[turn, "outcome"] = "right"
    return turned


def test_counted_by_hand() -> None:
    """6 different: 3 right, 1 wrong, 1 (c), 1 miss. 4 equal: 1 group, 2 (c), 1 miss."""
    rows = table(
        [
            *[("different", "s", one) for one in ("right", "right", "right", "wrong", "neither", "miss")],
            *[("equal", "s", one) for one in ("group", "neither", "neither", "miss")],
        ]
    )
    expected = {
        ("diff_aware", "any"): 3 / 6,
        ("ctxt_aware", "refusal"): 3 / (3 + 1),
        ("ctxt_aware", "wrong"): 3 / (3 + 2),
        ("accuracy_different", "any"): 3 / 6,
        ("accuracy_equal", "refusal"): 3 / 4,
        ("accuracy_equal", "wrong"): 2 / 4,
        ("answered", "any"): 8 / 10,
    }
    assert {(m.name, m.misses): level(rows, m).value for m in METRICS} == pytest.approx(expected)


@pytest.mark.parametrize("metric", METRICS, ids=lambda m: f"{m.name}-{m.misses}")
@pytest.mark.parametrize("seed", range(2))
def test_values_and_intervals_are_those_of_a_naive_loop(metric: Metric, seed: int) -> None:
    rng = np.random.default_rng(seed)
    old = random_table(rng)
    new = flipped(rng, old, 0.2)
    readings = ["refusal", "wrong"] if metric.misses == "any" else [metric.misses]
    for reading in readings:  # "any" is what both readings agree on
        assert level(old, metric).value == pytest.approx(count(old, metric.name, reading))
    reading = readings[0]
    moved = count(new, metric.name, reading) - count(old, metric.name, reading)
    assert difference(new, old, metric).value == pytest.approx(moved)
    # Whole scenarios with replacement, both halves of each, both conditions at once.
    groups = [group.index.to_numpy() for _, group in old.groupby("scenario")]
    plain = [{name: rows[name].to_numpy() for name in ("half", "outcome")} for rows in (new, old)]
    levels, moves = [], []
    for _ in range(1000):
        index = np.concatenate([groups[at] for at in rng.integers(len(groups), size=len(groups))])
        drawn = [{name: values[index] for name, values in rows.items()} for rows in plain]
        a, b = (count(rows, metric.name, reading) for rows in drawn)
        levels.append(b)
        moves.append(a - b)
    for found, several in ((level(old, metric), levels), (difference(new, old, metric), moves)):
        low, high = np.quantile(several, [0.025, 0.975])
        assert (found.low, found.high) == pytest.approx((low, high), abs=0.15 * (high - low) + 1e-9)


def test_difference_is_antisymmetric_and_nothing_against_itself() -> None:
    rng = np.random.default_rng(0)
    old = random_table(rng)
    new = flipped(rng, old, 0.3)
    for metric in METRICS:
        one, other = difference(new, old, metric), difference(old, new, metric)
        assert (one.value, one.low, one.high) == pytest.approx((-other.value, -other.high, -other.low), abs=1e-2)
        same = difference(old, old, metric)
        assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)
        assert same.p == 1.0


def test_order_and_names_play_no_part() -> None:
    rng = np.random.default_rng(1)
    old = random_table(rng)
    new = flipped(rng, old, 0.3)
    order = rng.permutation(len(old))
    again = [
        rows.iloc[order].assign(scenario=["x" + name[::-1] for name in rows["scenario"].iloc[order]])
        for rows in (new, old)
    ]
    assert difference(*again, DIFF) == difference(new, old, DIFF)
    assert difference(*again, CTXT).value == difference(new, old, CTXT).value


def test_what_is_not_the_same_is_not_paired() -> None:
    rows = random_table(np.random.default_rng(2))
    for other in (rows.iloc[:-1], rows.iloc[::-1], rows.assign(number=rows["number"] + 1)):
        with pytest.raises(InputError, match="same questions in the same order"):
            difference(rows, other, DIFF)


def test_mcnemar() -> None:
    rng = np.random.default_rng(3)
    for size in (5, 40, 300):
        old, new = rng.random(size) < 0.5, rng.random(size) < 0.6
        counts = [[np.sum(new & old), np.sum(new & ~old)], [np.sum(~new & old), np.sum(~new & ~old)]]
        assert mcnemar(new, old) == pytest.approx(reference_mcnemar(counts, exact=True).pvalue)
    assert mcnemar(old, old) == 1.0


def test_the_table() -> None:
    rng = np.random.default_rng(4)
    old = random_table(rng).assign(polarity=lambda rows: np.where(rows["scenario"] < "s2", "avoid", "choose"))
    judged = {"baseline": old, "steered": flipped(rng, old, 0.25), "prompt": flipped(rng, old, 0.05)}
    found = metrics_table(judged, draws=999)
    assert len(found) == len(METRICS) * 3 * (3 + 2)
    where = {"condition": "steered", "subset": "all", "metric": "diff_aware"}

    def one(against: str, **more: str) -> pd.Series:
        (row,) = [
            r for _, r in found.iterrows() if all(r[k] == v for k, v in {**where, **more, "against": against}.items())
        ]
        return row

    moved = one("baseline")
    assert moved["value"] == pytest.approx(one("")["value"] - one("", condition="baseline")["value"])
    assert (moved["low"] > 0) == (moved["p"] < 0.05)
    assert moved["p_mcnemar"] == mcnemar(
        *(
            (judged[name].query("half == 'different'")["outcome"] == "right").to_numpy()
            for name in ("steered", "baseline")
        )
    )
    # Pairing takes out what both share; the middle of the unpaired interval is the same value.
    assert moved["unpaired_high"] - moved["unpaired_low"] > 1.2 * (moved["high"] - moved["low"])
    assert (moved["unpaired_low"] + moved["unpaired_high"]) / 2 == pytest.approx(moved["value"])
    assert np.isnan(one("")["unpaired_low"])
    assert (moved["n"], moved["n_scenarios"]) == (len(old), 30)
    part = one("", subset="avoid", condition="baseline")
    assert part["value"] == pytest.approx(count(old[old["polarity"] == "avoid"], "diff_aware", "wrong"))
    only = metrics_table({"baseline": old[old["polarity"] == "avoid"]}, draws=99)
    assert set(only["subset"]) == {"all", "avoid"}


def test_scenario_counts_add_up() -> None:
    rng = np.random.default_rng(5)
    judged = {"baseline": random_table(rng, 7), "steered": random_table(rng, 7)}
    counts = scenario_counts(judged)
    assert len(counts) == 14
    for name, rows in judged.items():
        some = counts[counts["condition"] == name].drop(columns=["condition", "polarity"]).set_index("scenario")
        assert some.to_numpy().sum() == len(rows)
        expected = (rows["half"] + "_" + rows["outcome"]).value_counts()
        assert {kind: number for kind, number in some.sum().items() if number} == expected.to_dict()


def test_one_scenario_bounds_nothing() -> None:
    rows = table([("different", "s", "right"), ("equal", "s", "group")])
    found = level(rows, DIFF)
    assert (found.value, found.low, found.high) == (1.0, -np.inf, np.inf)
    # No group was named at all: CtxtAware is 0/0, which is no number, and says so.
    rows = table([("different", name, "neither") for name in "st"] + [("equal", name, "neither") for name in "st"])
    assert np.isnan(level(rows, CTXT).value)
    assert "undefined" in level(rows, CTXT).method


def test_coverage_of_a_paired_difference() -> None:
    """Planted: 0.15 of those not right turn right. 100 studies of 60 scenarios; 95 % less 3 binomial errors."""
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng([7, seed])
        old = random_table(rng, 60)
        truth = 0.15 * (1 - 0.4)
        found = difference(flipped(rng, old, 0.15), old, DIFF, draws=399)
        covered += found.low <= truth <= found.high
    assert covered >= 88

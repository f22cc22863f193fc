from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.regression.linear_model import OLS

from timonel.errors import InputError
from timonel.stats import _sums as sums_module
from timonel.stats import cluster_difference, cluster_mean, cluster_percentile, cluster_quantity
from timonel.stats._sums import resample_totals


def study(seed: int = 0, clusters: int = 66) -> tuple[np.ndarray, np.ndarray]:
    """Values and labels as a study has them: 1 to 22 rows an item, an item effect and noise."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(clusters), rng.integers(1, 23, clusters))
    return rng.normal(0.2, 1, clusters)[labels] + rng.normal(size=len(labels)), labels


def loop_bootstrap(values, labels, weights):
    """The same quantities, one draw and one cluster at a time: m, se, then t* and m* of every draw."""

    def mean_and_se(groups):
        rows = sum(len(g) for g in groups)
        mean = sum(sum(g) for g in groups) / rows
        square = sum((sum(g) - mean * len(g)) ** 2 for g in groups)
        return mean, (len(groups) / (len(groups) - 1) * square) ** 0.5 / rows

    # Clusters in the order of size, then of sum, as the module has them.
    groups = sorted((list(values[labels == g]) for g in set(labels)), key=lambda g: (len(g), sum(g)))
    mean, se = mean_and_se(groups)
    students, means = [], []
    for draw in weights:
        drawn = [g for g, times in zip(groups, draw, strict=True) for _ in range(times)]
        drawn_mean, drawn_se = mean_and_se(drawn)
        students.append((drawn_mean - mean) / drawn_se)
        means.append(drawn_mean)
    return mean, se, np.array(students), np.array(means)


def weights_of(clusters: int, draws: int, seed: int) -> np.ndarray:
    """The resampler's own weights: totals of unit columns."""
    return resample_totals(np.eye(clusters), draws, seed).T.astype(int)


def test_agrees_with_a_loop_over_draws():
    values, labels = study(clusters=12)
    mean, se, students, means = loop_bootstrap(values, labels, weights_of(12, 199, 3))
    found = cluster_mean(values, labels, draws=199, seed=3)
    # 199 draws: the 5th and the 195th ordered one bound 95 %.
    students.sort()
    assert found.value == pytest.approx(mean, rel=1e-12)
    assert found.se == pytest.approx(se, rel=1e-12)
    assert found.low == pytest.approx(mean - se * students[194], rel=1e-10)
    assert found.high == pytest.approx(mean - se * students[4], rel=1e-10)
    tail = min(np.sum(students <= mean / se), np.sum(students >= mean / se))
    assert found.p == pytest.approx(2 * (1 + tail) / 200)

    plain = cluster_percentile(values, labels, draws=199, seed=3)
    means.sort()
    assert (plain.value, plain.low, plain.high) == pytest.approx((mean, means[4], means[194]), rel=1e-10)
    assert plain.p == pytest.approx(min(1, 2 * (1 + min(np.sum(means <= 0), np.sum(means >= 0))) / 200))


def test_se_agrees_with_statsmodels_cluster_robust_ols():
    values, labels = study()
    fit = OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": labels})
    # statsmodels multiplies by (N - 1) / (N - k) too, which is 1 for a lone intercept.
    found = cluster_mean(values, labels)
    assert found.value == pytest.approx(fit.params[0], rel=1e-12)
    assert found.se == pytest.approx(fit.bse[0], rel=1e-12)
    assert (found.n, found.clusters) == (len(values), 66)


def test_singleton_clusters_give_the_usual_standard_error():
    values = np.random.default_rng(0).normal(size=50)
    assert cluster_mean(values, np.arange(50)).se == pytest.approx(scipy_stats.sem(values), rel=1e-12)


def test_interval_agrees_with_scipy_on_normal_singletons():
    # With normal rows and no clusters the bootstrap-t approaches Student's interval.
    values = np.random.default_rng(5).normal(size=400)
    found = cluster_mean(values, np.arange(400))
    low, high = scipy_stats.ttest_1samp(values, 0).confidence_interval()
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.006)


def test_clusters_widen_the_interval():
    values, labels = study()
    clustered, naive = cluster_mean(values, labels), cluster_mean(values, np.arange(len(values)))
    assert clustered.high - clustered.low > 2 * (naive.high - naive.low)


def test_resampler_draws_whole_clusters_uniformly(monkeypatch):
    weights = weights_of(10, 20_000, 0)
    assert (weights.sum(axis=1) == 10).all()
    # Multinomial moments: mean 1, variance 1 - 1/G, covariance -1/G.
    assert weights.mean(axis=0) == pytest.approx(1, abs=0.04)
    assert np.cov(weights.T) == pytest.approx(np.eye(10) - 0.1, abs=0.05)
    monkeypatch.setattr(sums_module, "BLOCK_CELLS", 70)  # seven draws a block
    assert (weights_of(10, 20_000, 0)[:1000] == weights[:1000]).all()


def test_fast_and_small():
    values, labels = study()
    cluster_mean(values, labels)
    started = time.perf_counter()
    cluster_mean(values, labels)
    assert time.perf_counter() - started < 1
    tracemalloc.start()
    cluster_mean(np.arange(6000.0) % 7, np.arange(6000) // 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


# Coverage ------------------------------------------------------------------------------------------------


def coverage(method, effects, noise, sizes) -> float:
    """Share of data sets whose 95 % interval covers the true 0."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    found = [
        method(effect[labels] + error, labels, draws=499, seed=seed)
        for seed, (effect, error) in enumerate(zip(effects, noise, strict=True))
    ]
    return np.mean([e.low <= 0 <= e.high for e in found])


@pytest.mark.parametrize("shape", ["normal", "exponential"])
def test_coverage_with_66_unequal_clusters(shape):
    rng = np.random.default_rng(11)
    sizes = rng.permutation(np.r_[np.arange(1, 23), np.arange(1, 23), np.full(22, 12)])
    assert (np.median(sizes), len(sizes)) == (12, 66)
    effects = rng.normal(size=(2000, 66)) if shape == "normal" else rng.exponential(size=(2000, 66)) - 1
    noise = rng.normal(size=(2000, sizes.sum()))
    # Monte Carlo error of a share of .95 over 2,000 data sets: .005.
    student = coverage(cluster_mean, effects, noise, sizes)
    assert 0.93 <= student <= 0.97
    if shape == "exponential":  # skew is what studentising is for
        assert student > coverage(cluster_percentile, effects, noise, sizes)


def test_p_is_uniform_under_the_null():
    rng = np.random.default_rng(2)
    labels = np.repeat(np.arange(30), rng.integers(1, 23, 30))
    p = [
        cluster_mean(rng.normal(size=30)[labels] + rng.normal(size=len(labels)), labels, draws=199, seed=i).p
        for i in range(1000)
    ]
    assert scipy_stats.kstest(p, "uniform").statistic < 0.06
    assert np.mean(np.array(p) <= 0.05) == pytest.approx(0.05, abs=0.02)


# Invariance and equivariance -----------------------------------------------------------------------------

# Quarters keep sums exact, so that equality can be asked for.
tables = st.lists(st.tuples(st.integers(0, 7), st.integers(-40, 40)), min_size=3, max_size=60)


def as_arrays(table):
    labels, values = np.array(table).T
    return values / 4, labels


@settings(max_examples=60, deadline=None)
@given(tables, st.randoms(use_true_random=False))
def test_order_of_rows_and_names_of_clusters_play_no_part(table, random):
    values, labels = as_arrays(table)
    values = values * 0.1  # sums that round
    order = random.sample(range(len(values)), len(values))
    names = random.sample([f"item {i}" for i in range(20)], 8)
    moved = [names[g] for g in labels[order]]
    for method in (cluster_mean, cluster_percentile):
        # By text, since nan differs from itself.
        assert repr(method(values, labels, draws=99)) == repr(method(values[order], moved, draws=99))


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(-100, 100), st.sampled_from([0.125, 0.5, 2.0, 64.0]))
def test_shift_and_scale(table, shift, scale):
    values, labels = as_arrays(table)
    base = cluster_mean(values, labels, draws=99)
    moved = cluster_mean(values * scale + shift, labels, draws=99)
    for name in ("value", "low", "high"):
        expected = getattr(base, name) * scale + shift
        assert getattr(moved, name) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert moved.se == pytest.approx(base.se * scale, rel=1e-9, abs=1e-12, nan_ok=True)
    assert moved.method == base.method


def test_a_large_offset_costs_no_digits():
    values, labels = study()
    values = np.round(values * 1024) / 1024  # exact beside 2^34
    base, moved = cluster_mean(values, labels), cluster_mean(values + 2.0**34, labels)
    assert moved.se == pytest.approx(base.se, rel=1e-9)
    assert moved.high - moved.low == pytest.approx(base.high - base.low, rel=1e-4)


@settings(max_examples=60, deadline=None)
@given(tables, st.sampled_from([99, 199, 999]))
def test_interval_and_p_agree(table, draws):
    values, labels = as_arrays(table)
    found = cluster_mean(values, labels, draws=draws, level=0.9)
    if found.p is not None and draws % 20 == 19 and "bootstrap-t" in found.method:
        # Dropped draws move the quantile between two draws: leave that gap out.
        if abs(found.p - 0.1) > 2.5 / draws:
            assert found.excludes_zero == (found.p <= 0.1)
    elif found.p is not None:
        assert found.excludes_zero == (found.p <= 0.1)


def test_same_seed_same_result_and_another_seed_another():
    values, labels = study()
    first, second, third = (cluster_mean(values, labels, draws=999, seed=s) for s in (4, 4, 5))
    assert first == second
    assert first.low != third.low
    assert first.low == pytest.approx(third.low, abs=0.05)


def test_mirror_image_up_to_monte_carlo_error():
    values, labels = study()
    there, back = cluster_mean(values, labels), cluster_mean(-values, labels)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=0.03)


# Degenerate cases ----------------------------------------------------------------------------------------


def test_one_cluster_bounds_nothing():
    found = cluster_mean([1.0, 2.0, 3.0], ["sari"] * 3)
    assert (found.value, found.low, found.high, found.p) == (2.0, -np.inf, np.inf, None)
    assert np.isnan(found.se)
    assert not found.excludes_zero


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e6])
def test_no_spread_gives_a_point(constant):
    found = cluster_mean(np.full(30, constant), np.arange(30) // 7)
    assert (found.value, found.low, found.high, found.se) == (constant, constant, constant, 0.0)
    assert found.p == (1.0 if constant == 0 else 2 / 10_000)
    assert found.excludes_zero == (constant != 0)


def test_equal_cluster_means_at_zero_do_not_find_rounding():
    found = cluster_mean([-0.1, 0.3, -0.2] * 5, np.repeat(np.arange(5), 3))
    assert (found.value, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_two_clusters_fall_back_to_student():
    # Draws are (2,0), (1,1), (0,2): half have no spread, the rest have t* = 0, which would be a point.
    values = [1.0, 2.0]
    found, expected = cluster_mean(values, ["a", "b"]), scipy_stats.ttest_1samp(values, 0)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval()), rel=1e-12)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-12)
    assert "cluster-robust t, 1 df" in found.method


def test_one_cluster_that_carries_all_falls_back_to_student():
    # In a third of the draws it is absent and all is 0; without those the interval would end at the mean.
    values = np.zeros(60)
    values[7] = 1.0
    found = cluster_mean(values, np.arange(60))
    assert found.low < 0 < found.value < found.high
    assert "37" in found.method or "36" in found.method  # (59/60)^60 = 36.5 %


def test_a_few_draws_without_spread_are_dropped():
    # Six clusters: 6 in 46,656 draws are a single cluster six times.
    weights = weights_of(6, 60_000, 0)
    assert 0 < (weights.max(axis=1) == 6).sum() < 30
    found = cluster_mean([1.0, 2.0, 3.5, 5.0, 7.0, 9.5], list("abcdef"), draws=60_000 - 1)
    assert np.isfinite([found.low, found.high]).all()
    assert "bootstrap-t" in found.method


# Differences and quantities ------------------------------------------------------------------------------


def test_difference_is_the_mean_of_differences():
    values, labels = study()
    other = values + study(1)[0][: len(values)].mean() + np.sin(np.arange(len(values)))
    assert cluster_difference(other, values, labels) == cluster_mean(other - values, labels)


def test_what_both_conditions_share_leaves_the_interval():
    values, labels = study()
    found = cluster_difference(values + 0.5, values, labels)
    assert (found.low, found.high) == pytest.approx((0.5, 0.5), abs=1e-9)


def test_quantity_agrees_with_a_loop():
    # Right answers over questions asked, by scenario, where halves of the data ask different things.
    rng = np.random.default_rng(8)
    labels = rng.integers(0, 9, 120)
    right, group = rng.integers(0, 2, 120), rng.integers(0, 2, 120)
    found = cluster_quantity(
        lambda s: s["right"] / (s["right"] + s["group"]), {"right": right, "group": group}, labels, draws=199
    )
    totals = np.array([[np.sum(labels == g), right[labels == g].sum(), group[labels == g].sum()] for g in range(9)])
    # The module's order: size, then sums, the first column first.
    totals = np.array(sorted(totals.tolist(), key=tuple))
    drawn = []
    for weights in weights_of(9, 199, 0):
        _, r, g = (weights[:, None] * totals).sum(axis=0)
        drawn.append(r / (r + g))
    drawn.sort()
    assert found.value == pytest.approx(right.sum() / (right.sum() + group.sum()), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((drawn[4], drawn[194]), rel=1e-12)
    assert found.se == pytest.approx(np.std(drawn, ddof=1), rel=1e-10)
    assert found.p is None


def test_undefined_quantity():
    def share(s):
        return s["hit"] / s["asked"]

    nothing = cluster_quantity(share, {"hit": [0, 0], "asked": [0, 0]}, ["a", "b"])
    assert np.isnan([nothing.value, nothing.low, nothing.high]).all()
    assert not nothing.excludes_zero
    # Asked in one of three clusters only: (2/3)^3 of the draws have no question in them, and are counted.
    rare = cluster_quantity(share, {"hit": [1, 0, 0], "asked": [2, 0, 0]}, ["a", "b", "c"])
    undefined = int(rare.method.split(", ")[-1].split()[0])
    assert undefined / 9999 == pytest.approx(8 / 27, abs=0.02)
    assert (rare.low, rare.high) == (0.5, 0.5)
    alone = cluster_quantity(share, {"hit": [1], "asked": [2]}, ["a"])
    assert (alone.value, alone.low, alone.high) == (0.5, -np.inf, np.inf)


def test_statistic_that_sums_over_draws_is_refused():
    with pytest.raises(InputError, match="elementwise"):
        cluster_quantity(lambda s: s["x"].sum(), {"x": [1.0, 2.0]}, ["a", "b"])


# Bad input -----------------------------------------------------------------------------------------------


def test_labels_of_pandas_and_of_lists_mean_the_same():
    values, labels = study()
    names = [f"item {g}" for g in labels]
    expected = cluster_mean(values, labels)
    for form in (names, np.array(names), pd.Series(names), pd.Series(names, dtype="category")):
        assert cluster_mean(pd.Series(values), form) == expected


@pytest.mark.parametrize(
    ("values", "labels", "words"),
    [
        ([1.0, np.nan, np.inf], ["a", "b", "c"], "2 of 3 numbers"),
        ([1.0, 2.0], ["a", "b", "c"], r"shape \(2,\)"),
        ([[1.0], [2.0]], ["a", "b"], r"shape \(2, 1\)"),
        (["x", "y"], ["a", "b"], "not a number"),
        ([], [], "no rows"),
        ([1.0, 2.0], ["a", None], "1 of 2 cluster labels are missing"),
        ([1.0, 2.0], ["a", float("nan")], "1 of 2 cluster labels are missing"),
        ([1.0, 2.0], [1.0, float("nan")], "1 of 2 cluster labels are missing"),
        ([1.0, 2.0], ["a", pd.NA], "cannot be compared"),
        ([1.0, 2.0], ["a", 1], "cannot be compared"),
        ([1.0, 2.0], [("a", 1), ("b", 1)], "2 dimensions"),
    ],
)
def test_bad_rows(values, labels, words):
    with pytest.raises(InputError, match=words):
        cluster_mean(values, labels)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"level": 95}, "level is 95"), ({"level": 1.0}, "level is 1"), ({"draws": 38}, "at least 39")],
)
def test_bad_settings(options, words):
    with pytest.raises(InputError, match=words):
        cluster_mean([1.0, 2.0], ["a", "b"], **options)


def test_the_fewest_draws_are_enough():
    values, labels = study()
    assert np.isfinite(cluster_mean(values, labels, draws=39).low)
    with pytest.raises(InputError):
        cluster_quantity(lambda s: s["x"], {}, ["a"])

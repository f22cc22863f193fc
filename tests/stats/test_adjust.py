from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from statsmodels.regression.linear_model import OLS

from oracles.designs import Design, balanced
from timonel.errors import InputError
from timonel.stats import cluster_mean
from timonel.stats.adjust import Adjustment, adjusted_mean, one_sided


def matrix(design: Design) -> np.ndarray:
    """[1, X] written out; one identity is left out, since the columns of X sum to 0."""
    labels = np.union1d(design.related, design.substitute)[1:]
    plus, minus = design.related[:, None] == labels, design.substitute[:, None] == labels
    return np.column_stack([np.ones(len(plus)), plus.astype(float) - minus])


def small() -> Design:
    """Twenty items, some identities in one item only."""
    return balanced(tuple(range(2, 12)) * 2, identities=23, seed=3).half(1)


def mean(values: np.ndarray, design: Design, **settings: float):
    return adjusted_mean(values, design.related, design.substitute, design.items, **settings)


def noise(design: Design, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(0.4, 1, 100)[design.items] + rng.normal(size=len(design.items))


@pytest.mark.filterwarnings("ignore:The design matrix is rank-deficient")
@pytest.mark.parametrize("design", [small(), balanced().half(0), balanced()], ids=["small", "half", "all"])
def test_agrees_with_statsmodels_refitted_without_each_item(design):
    values = noise(design)
    x = matrix(design)
    fit = OLS(values, x).fit(cov_type="cluster", cov_kwds={"groups": design.items})
    found = mean(values, design)
    assert found.value == pytest.approx(fit.params[0], rel=1e-10)
    names = np.unique(design.items)
    # Statsmodels fits by the pseudo-inverse, so an identity that leaves with its item does no harm.
    without = np.array([OLS(values[k], x[k]).fit().params[0] for k in (design.items != name for name in names)])
    count = len(names)
    se = np.sqrt((count - 1) / count * ((without - fit.params[0]) ** 2).sum())
    reach = scipy_stats.t.ppf(0.975, count - 1) * se
    assert found.se == pytest.approx(se, rel=1e-8)
    assert (found.low, found.high) == pytest.approx((fit.params[0] - reach, fit.params[0] + reach), rel=1e-8)
    assert found.p == pytest.approx(2 * scipy_stats.t.sf(abs(fit.params[0]) / se, count - 1), rel=1e-8)
    assert (found.n, found.clusters) == (len(values), count)
    assert found.se > fit.bse[0]  # the sandwich, too small with as many effects as these


def test_without_effects_to_adjust_for_the_se_is_the_sandwich():
    # One pair of identities, each way once an item: the intercept stands alone, beside one effect.
    design = Design(np.repeat(np.arange(40), 2), np.tile([0, 1], 40), np.tile([1, 0], 40))
    values = noise(design)
    fit = OLS(values, matrix(design)).fit(cov_type="cluster", cov_kwds={"groups": design.items})
    # The sandwich carries (N - 1) / (N - k), and the jackknife G / (G - 1) of its own.
    assert mean(values, design).se == pytest.approx(fit.bse[0], rel=0.02)


@pytest.mark.parametrize("seed", range(3))
def test_balanced_rows_give_the_plain_mean(seed):
    design = balanced(seed=seed)
    values = noise(design, seed)
    found = mean(values, design)
    assert found.value == pytest.approx(values.mean(), rel=1e-10)
    # What identities do by themselves leaves the interval, though not the plain mean's.
    effect = design.effects(np.random.default_rng(seed).normal(scale=5, size=100))
    assert mean(values + effect, design).se == pytest.approx(found.se, rel=1e-8)
    assert cluster_mean(values + effect, design.items).se > 1.3 * found.se


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.floats(-5, 5), st.sampled_from([0.25, 1.0, 8.0]))
def test_effects_leave_no_trace_and_shifts_pass_through(seed, shift, scale):
    design = small()
    values = noise(design, seed)
    effect = design.effects(np.random.default_rng(seed).normal(scale=3, size=100))
    base, moved = mean(values, design), mean(scale * values + shift + effect, design)
    for name in ("value", "low", "high"):
        assert getattr(moved, name) == pytest.approx(scale * getattr(base, name) + shift, rel=1e-7, abs=1e-7)


def test_order_of_rows_and_names_of_labels_play_no_part():
    design, rng = small(), np.random.default_rng(0)
    values, order = noise(design), rng.permutation(len(design.items))
    names = [f"identity {i}" for i in rng.permutation(100)]
    moved = adjusted_mean(
        values[order],
        [names[i] for i in design.related[order]],
        [names[i] for i in design.substitute[order]],
        [f"item {i * 7 % 100}" for i in design.items[order]],
    )
    base = mean(values, design)
    assert (moved.value, moved.low, moved.high) == pytest.approx((base.value, base.low, base.high), rel=1e-8)


def test_effects_that_are_all_of_the_naive_effect():
    # dS is nothing but m(R) - m(U'), and identities that are R more often in this half have the larger m.
    design = balanced().half(2)
    more = np.bincount(design.related, minlength=100) - np.bincount(design.substitute, minlength=100)
    effect = design.effects(more / 2.0)
    naive, adjusted = cluster_mean(effect, design.items), mean(effect, design)
    assert naive.low > 0.5
    assert (adjusted.value, adjusted.low, adjusted.high) == pytest.approx((0, 0, 0), abs=1e-9)
    rng, solved = np.random.default_rng(0), Adjustment.of(design.related, design.substitute, design.items)
    naive_covers, found = [], []
    for seed in range(300):
        values = effect + rng.normal(size=66)[design.items] + rng.normal(size=len(design.items))
        plain = cluster_mean(values, design.items, draws=199, seed=seed)
        naive_covers.append(plain.low <= 0 <= plain.high)
        found.append(solved.mean(values))
    # Monte Carlo error of the mean: .014 (se .24 a study); of a share of .95: .013.
    assert np.mean([one.value for one in found]) == pytest.approx(0, abs=0.05)
    assert 0.91 <= np.mean([one.low <= 0 <= one.high for one in found]) <= 0.985
    assert np.mean(naive_covers) < 0.1


def test_coverage_is_the_jackknifes_and_not_the_sandwichs():
    design, rng = balanced().half(0), np.random.default_rng(5)
    solved, x = Adjustment.of(design.related, design.substitute, design.items), matrix(design)
    covers, sandwich = [], []
    for _ in range(200):
        values = 2.5 * rng.normal(size=66)[design.items] + 2.5 * rng.normal(size=len(design.items))
        found = solved.mean(values)
        covers.append(found.low <= 0 <= found.high)
        fit = OLS(values, x).fit(cov_type="cluster", cov_kwds={"groups": design.items}, use_t=True)
        low, high = fit.conf_int()[0]
        sandwich.append(low <= 0 <= high)
    assert 0.91 <= np.mean(covers) <= 0.985
    assert np.mean(sandwich) < 0.85


def test_a_mean_that_effects_could_be_is_undefined():
    # Each identity once: any dS is m(R) - m(U').
    found = adjusted_mean([1.0, 2.0, 3.0], ["a", "b", "c"], ["d", "e", "f"], [0, 1, 2])
    assert np.isnan(found.value)
    assert (found.low, found.high, found.p) == (-np.inf, np.inf, None)
    assert "cannot be told" in found.method


def test_a_mean_that_hangs_on_one_item_has_no_interval():
    # a over b and b over a tell the mean from m, and both are in item 0.
    found = adjusted_mean([3.0, 1.0, 5.0, 5.0], ["a", "b", "c", "d"], ["b", "a", "e", "f"], [0, 0, 1, 2])
    assert found.value == pytest.approx(2.0)
    assert (found.low, found.high, found.p) == (-np.inf, np.inf, None)
    assert "without one of the clusters" in found.method
    alone = adjusted_mean([3.0, 1.0], ["a", "b"], ["b", "a"], ["x", "x"])
    assert alone.value == pytest.approx(2.0)
    assert "one cluster" in alone.method
    assert np.isnan(one_sided(alone, "greater"))


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e6])
def test_no_spread_gives_a_point(constant):
    design = small()
    found = mean(np.full(len(design.items), constant), design)
    assert (found.value, found.low, found.high) == pytest.approx((constant,) * 3, rel=1e-9)
    assert found.se == 0
    assert found.p == (1 if constant == 0 else 0)


def test_one_sided():
    design = small()
    values = noise(design)
    found = mean(values, design)
    t = found.value / found.se
    assert one_sided(found, "greater") == pytest.approx(scipy_stats.t.sf(t, found.clusters - 1))
    assert one_sided(found, "less") == pytest.approx(scipy_stats.t.cdf(t, found.clusters - 1))
    assert one_sided(found, "two-sided") == found.p
    assert one_sided(mean(-values, design), "less") == pytest.approx(one_sided(found, "greater"))


def test_level():
    design = small()
    narrow, wide = (mean(noise(design), design, level=level) for level in (0.9, 0.99))
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(
        scipy_stats.t.ppf(0.995, 9) / scipy_stats.t.ppf(0.95, 9)
    )
    with pytest.raises(InputError, match=r"level is 1\.5"):
        mean(noise(design), design, level=1.5)


def test_misaligned_labels_are_refused():
    with pytest.raises(InputError, match=r"lost has shape \(2,\) and clusters \(3,\)"):
        adjusted_mean([1.0, 2.0, 3.0], list("abc"), list("de"), [0, 1, 2])
    with pytest.raises(InputError, match="not finite"):
        adjusted_mean([1.0, np.nan, 3.0], list("abc"), list("bca"), [0, 1, 2])

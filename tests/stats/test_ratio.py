from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy import stats as scipy_stats

from timonel.errors import InputError
from timonel.stats import cluster_mean, fieller, reduction


def study(seed: int, clusters: int = 40, bottom: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two correlated columns, mean .6 and `bottom`, in clusters of unequal size."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(clusters), rng.integers(1, 23, clusters))
    shared = rng.normal(size=clusters)[labels]
    x = 0.6 + 0.5 * shared + rng.normal(size=len(labels))
    y = bottom + 0.7 * shared + 0.5 * rng.normal(size=clusters)[labels] + rng.normal(size=len(labels))
    return x, y, labels


def excess(theta: float, x, y, labels, level: float = 0.95) -> float:
    """|mean(x - theta y)| - t se, from one column's mean: theta is in the set where this is not above 0."""
    found = cluster_mean(x - theta * y, labels, draws=99)
    return abs(found.value) - scipy_stats.t.ppf((1 + level) / 2, found.clusters - 1) * found.se


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_ends_are_where_the_test_of_each_theta_turns(level):
    x, y, labels = study(0)
    found = fieller(x, y, labels, level=level)
    assert found.value == pytest.approx(x.mean() / y.mean(), rel=1e-12)
    low = optimize.brentq(excess, found.value - 5, found.value, args=(x, y, labels, level), xtol=1e-13)
    high = optimize.brentq(excess, found.value, found.value + 5, args=(x, y, labels, level), xtol=1e-13)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-8)
    assert (found.defined, found.reason, found.shape, found.level) == (True, "", "interval", level)
    assert (found.n, found.clusters) == (len(x), 40)


def test_coverage():
    hits = 0
    for seed in range(2000):
        found = fieller(*study(seed))
        assert found.defined
        hits += found.low <= 0.6 <= found.high
    assert 0.93 <= hits / 2000 <= 0.97


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.3, 1.0]))
def test_shape_is_that_of_the_set(seed, bottom):
    x, y, labels = study(seed, clusters=8, bottom=bottom)
    found = fieller(x, y, labels)
    far = excess(1e7, x, y, labels) <= 0  # whether the set goes on without end
    grid = np.tan(np.linspace(-1.5, 1.5, 61))
    inside = np.array([excess(theta, x, y, labels) <= 0 for theta in grid])
    assert found.defined == (found.shape == "interval") == (not far)
    if found.shape == "line":
        assert inside.all()
    if found.shape == "interval":
        assert (inside == ((found.low <= grid) & (grid <= found.high))).all()


def test_three_shapes_by_hand():
    # Singletons with mean 1: the t interval of the denominator is 1 -+ t(.975, 3 df) s/2 with t = 3.18.
    labels = list("abcd")
    x = np.array([2.0, 2.1, 1.9, 2.0])
    bounded = fieller(x, [0.9, 1.1, 1.0, 1.0], labels)
    complement = fieller(x, [-1.0, 3.0, 1.5, 0.5], labels)
    line = fieller([-2.0, 1.0, 3.0, -1.0], [-1.0, 3.0, 1.5, 0.5], labels)
    assert (bounded.shape, complement.shape, line.shape) == ("interval", "complement", "line")
    for found in (complement, line):
        assert not found.defined
        assert np.isnan([found.value, found.low, found.high]).all()
        assert "covers 0" in found.reason
        assert str(found).startswith("undefined: the denominator's 0.95 interval covers 0 (1.00 [-1.")


def test_level_decides_whether_it_is_defined():
    x, y, labels = study(3, clusters=10, bottom=0.6)
    p = cluster_mean(y, labels)
    border = 2 * scipy_stats.t.cdf(abs(p.value) / p.se, 9) - 1  # the level at which the t interval touches 0
    assert fieller(x, y, labels, level=border - 1e-6).defined
    assert not fieller(x, y, labels, level=border + 1e-6).defined


def test_proportional_columns_give_a_point():
    _, y, labels = study(1)
    found = fieller(0.3 * y, y, labels)
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.3, 0.3), rel=1e-12)


def test_constant_denominator_is_a_mean():
    x, _, labels = study(1)
    mean, found = cluster_mean(x, labels), fieller(x, np.full(len(x), 2.0), labels)
    reach = scipy_stats.t.ppf(0.975, 39) * mean.se
    assert (found.low, found.high) == pytest.approx(((mean.value - reach) / 2, (mean.value + reach) / 2))


@pytest.mark.parametrize("y", [[0.0] * 15, [-0.1, 0.3, -0.2] * 5])
def test_denominator_without_spread_at_zero(y):
    found = fieller(np.arange(15.0), y, np.repeat(np.arange(5), 3))
    assert not found.defined


def test_one_cluster():
    found = fieller([1.0, 2.0], [1.0, 1.0], ["a", "a"])
    assert not found.defined
    assert "one cluster" in str(found)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([-4.0, 0.5, 8.0]), st.sampled_from([-2.0, 0.25]))
def test_scale_and_order(seed, top, bottom):
    x, y, labels = study(seed)
    base, moved = fieller(x, y, labels), fieller(x * top, y * bottom, labels)
    ends = sorted((base.low * top / bottom, base.high * top / bottom))
    assert (moved.low, moved.high) == pytest.approx(ends, rel=1e-9)
    order = np.random.default_rng(seed).permutation(len(x))
    assert fieller(x[order], y[order], [f"item {99 - g}" for g in labels[order]]) == base


# Reduction -----------------------------------------------------------------------------------------------


def test_reduction_is_one_minus_the_ratio():
    cut, full, labels = study(0)
    ratio, found = fieller(cut, full, labels), reduction(full, cut, labels)
    assert found.value == pytest.approx(1 - cut.mean() / full.mean(), rel=1e-12)
    assert (found.low, found.high) == (1 - ratio.high, 1 - ratio.low)
    # The same as the share of the change in the full effect, and the same when effects are negative.
    share = fieller(full - cut, full, labels)
    assert (found.value, found.low, found.high) == pytest.approx((share.value, share.low, share.high))
    mirrored = reduction(-full, -cut, labels)
    assert (mirrored.value, mirrored.low, mirrored.high) == pytest.approx((found.value, found.low, found.high))


def test_a_cut_that_does_nothing_and_one_that_takes_all():
    _, full, labels = study(0)
    nothing, everything = reduction(full, full, labels), reduction(full, np.zeros_like(full), labels)
    assert (nothing.value, nothing.low, nothing.high) == pytest.approx((0, 0, 0), abs=1e-12)
    assert (everything.value, everything.low, everything.high) == pytest.approx((1, 1, 1))


def test_reduction_of_no_effect_is_undefined_in_words():
    cut, full, labels = study(0, bottom=0.0)
    found = reduction(full, cut, labels)
    assert not found.defined
    assert np.isnan([found.value, found.low, found.high]).all()
    assert "covers 0" in str(found)


def test_the_interval_handed_in_decides():
    cut, full, labels = study(0)
    mean = cluster_mean(full, labels)
    assert reduction(full, cut, labels, full_mean=mean) == reduction(full, cut, labels)
    found = reduction(full, cut, labels, full_mean=dataclasses.replace(mean, low=-0.5))
    assert not found.defined
    assert np.isnan([found.value, found.low, found.high]).all()
    assert found.reason.startswith("the interval of the full effect covers 0 (")


def test_bad_input_names_the_column():
    with pytest.raises(InputError, match="denominator has shape"):
        fieller([1.0, 2.0], [1.0], ["a", "b"])
    with pytest.raises(InputError, match="level is 2"):
        fieller([1.0, 2.0], [1.0, 2.0], ["a", "b"], level=2)

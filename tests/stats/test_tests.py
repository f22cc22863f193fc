from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats as scipy_stats
from statsmodels.stats.multitest import multipletests

from timonel.errors import InputError
from timonel.stats import benjamini_hochberg, cluster_mean, holm, item_t, permutation_p

ALTERNATIVES = ("two-sided", "less", "greater")


def study(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(20), rng.integers(1, 23, 20))
    return rng.normal(0.3, 1, 20)[labels] + rng.normal(size=len(labels)), labels


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_item_t_agrees_with_scipy(alternative):
    values, labels = study()
    means = [values[labels == g].mean() for g in range(20)]
    expected, found = (
        scipy_stats.ttest_1samp(means, 0, alternative=alternative),
        item_t(values, labels, alternative),
    )
    assert (found.t, found.p) == pytest.approx((expected.statistic, expected.pvalue), rel=1e-12)
    assert (found.value, found.df, found.n, found.clusters) == (
        pytest.approx(np.mean(means)),
        19,
        len(values),
        20,
    )
    assert "mean of item means (not over pairs)" in found.hypothesis


def test_item_t_and_the_mean_over_rows_are_two_quantities():
    # One item has nine rows at 1, one has one row at -1: .8 over rows, 0 over items.
    values, labels = np.r_[np.ones(9), -1.0], np.r_[np.zeros(9), 1.0]
    assert item_t(values, labels).value == pytest.approx(0)
    assert cluster_mean(values, labels).value == pytest.approx(0.8)


@pytest.mark.parametrize("value", [0.1, -0.1])
def test_item_t_where_all_items_agree(value):
    found = {a: item_t(np.full(12, value), np.arange(12) // 3, a) for a in ALTERNATIVES}
    assert found["two-sided"].t == np.copysign(np.inf, value)
    assert found["two-sided"].p == 0
    assert (found["less"].p, found["greater"].p) == ((0, 1) if value < 0 else (1, 0))


@pytest.mark.parametrize("values", [np.zeros(12), [-0.1, 0.3, -0.2] * 4])
@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_item_t_without_any_effect_is_no_evidence(values, alternative):
    found = item_t(values, np.arange(12) // 3, alternative)
    assert (found.value, found.t, found.p) == (0, 0, 1)


def test_item_t_with_one_item():
    found = item_t([1.0, 2.0], ["a", "a"])
    assert np.isnan([found.t, found.p]).all()
    assert (found.value, found.df) == (1.5, 0)


p_values = hnp.arrays(np.float64, st.integers(1, 40), elements=st.floats(0, 1) | st.sampled_from([0.0, 0.01, 1.0]))


@settings(max_examples=100, deadline=None)
@given(p_values)
def test_q_agree_with_scipy(p):
    assert benjamini_hochberg(p) == pytest.approx(scipy_stats.false_discovery_control(p), rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_adjusted_p_agree_with_statsmodels(count):
    # Two decimals make ties.
    p = np.round(np.random.default_rng(count).beta(0.4, 2, count), 2)
    assert benjamini_hochberg(p) == pytest.approx(multipletests(p, method="fdr_bh")[1], rel=1e-12)
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1], rel=1e-12)


@pytest.mark.parametrize("adjust", [benjamini_hochberg, holm])
def test_untested_stay_out(adjust):
    p = [0.01, None, 0.04, float("nan"), 0.03]
    found = adjust(p)
    assert np.isnan(found[[1, 3]]).all()
    assert found[[0, 2, 4]] == pytest.approx(adjust([0.01, 0.04, 0.03]))
    assert np.isnan(adjust([np.nan, np.nan])).all()
    assert adjust([]).shape == (0,)


def test_adjusted_by_hand():
    # BH: .01*3/1 = .03, .03*3/2 = .045, .04*3/3 = .04, and .045 falls to .04. Holm: .03, .06, .06.
    assert benjamini_hochberg([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.04, 0.04])
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


@pytest.mark.parametrize("adjust", [benjamini_hochberg, holm])
def test_adjust_keeps_shape_and_leaves_its_input(adjust):
    p = np.random.default_rng(0).random((30, 9))
    kept = p.copy()
    assert adjust(p).shape == (30, 9)
    assert (adjust(p).ravel() == adjust(p.ravel())).all()
    assert (p == kept).all()
    with pytest.raises(InputError, match="1 of 2 p-values"):
        adjust([0.5, 1.5])


def test_permutation_by_hand():
    draws = [1.0, 2.0, 3.0, 4.0]
    assert permutation_p(3.0, draws) == pytest.approx(3 / 5)  # 3 and 4, and itself
    assert permutation_p(9.0, draws) == pytest.approx(1 / 5)
    assert permutation_p(3.0, draws, "less") == pytest.approx(4 / 5)
    assert permutation_p(0.0, draws, "less") == pytest.approx(1 / 5)
    assert permutation_p(9.0, draws, "two-sided") == pytest.approx(2 / 5)
    assert permutation_p(2.5, draws, "two-sided") == 1


def test_permutation_agrees_with_scipy_on_random_splits():
    rng = np.random.default_rng(0)
    a, b = rng.normal(1, 1, 12), rng.normal(0, 1, 12)

    def gap(x, y):
        return x.mean() - y.mean()

    expected = scipy_stats.permutation_test(
        (a, b), gap, n_resamples=999, alternative="greater", rng=np.random.default_rng(1)
    )
    assert permutation_p(gap(a, b), expected.null_distribution) == pytest.approx(expected.pvalue)


def test_a_draw_that_repeats_the_real_choice_is_a_tie():
    parts = np.array([0.1, 0.2, 0.3, 0.7])
    draws = [sum(order) for order in itertools.permutations(parts)]
    assert len(set(draws)) > 1  # the order of summation shows
    assert permutation_p(max(draws), draws) == permutation_p(min(draws), draws) == 1


def test_permutation_p_is_valid_under_the_null():
    rng = np.random.default_rng(3)
    p = np.array([permutation_p(x[0], x[1:]) for x in rng.normal(size=(4000, 20))])
    assert p.min() == pytest.approx(1 / 20)
    assert np.mean(p <= 0.05) == pytest.approx(0.05, abs=0.012)


@pytest.mark.parametrize(("real", "draws"), [(1.0, []), (1.0, [1.0, np.nan]), (np.nan, [1.0])])
def test_permutation_refuses_what_is_missing(real, draws):
    with pytest.raises(InputError, match="expected finite numbers"):
        permutation_p(real, draws)


@pytest.mark.parametrize("call", [lambda a: item_t([1.0], ["a"], a), lambda a: permutation_p(1.0, [1.0], a)])
def test_unknown_alternative(call):
    with pytest.raises(InputError, match="alternative is 'larger'"):
        call("larger")

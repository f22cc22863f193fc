from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from oracles.designs import N4_SIZES
from timonel.errors import InputError
from timonel.stats import reduction
from timonel.stats.equivalence import reduction_difference

LABELS = np.repeat(np.arange(66), N4_SIZES)


def models(seed: int = 0, kept=(0.8, 0.75)) -> list[np.ndarray]:
    """Effect untouched and cut in two models that share items; the cut leaves a share, and moves items a little."""
    rng = np.random.default_rng(seed)
    item = rng.normal(size=66)[LABELS]
    columns = []
    for share, level in zip(kept, (-1.6, -2.3), strict=True):
        full = level + 1.5 * item + 2 * rng.normal(size=len(LABELS))
        moved = 0.15 * rng.normal(size=66)[LABELS] + 0.3 * rng.normal(size=len(LABELS))
        columns += [full, share * full + moved]
    return columns


def compare(columns, labels=LABELS, margin=0.1, **settings):
    return reduction_difference(*columns, labels, margin=margin, draws=999, **settings)


def test_agrees_with_a_loop_that_leaves_items_out():
    columns = models()
    found = compare(columns)

    def difference(rows):
        full_a, cut_a, full_b, cut_b = (column[rows].sum() for column in columns)
        return (1 - cut_b / full_b) - (1 - cut_a / full_a)

    value = difference(np.ones(len(LABELS), bool))
    without = np.array([difference(g != LABELS) for g in range(66)])
    se = np.sqrt(65 / 66 * ((without - value) ** 2).sum())
    t = scipy_stats.t(65)
    assert (found.difference.value, found.difference.se) == pytest.approx((value, se), rel=1e-9)
    assert found.difference.high - value == pytest.approx(t.ppf(0.975) * se, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((value - t.ppf(0.95) * se, value + t.ppf(0.95) * se))
    assert found.p == pytest.approx(max(t.sf((value + 0.1) / se), t.cdf((value - 0.1) / se)))
    assert found.difference.p == pytest.approx(2 * t.sf(abs(value) / se))
    assert found.a == reduction(columns[0], columns[1], LABELS, draws=999)
    assert found.difference.value == pytest.approx(found.b.value - found.a.value)


@pytest.mark.parametrize("margin", [0.01, 0.03, 0.05, 0.08, 0.2])
def test_equivalent_exactly_where_the_ninety_percent_interval_lies_inside(margin):
    found = compare(models(), margin=margin)
    assert (found.p <= 0.05) == (-margin < found.low and found.high < margin)


@pytest.mark.parametrize(
    ("kept", "margin", "claim"),
    [
        ((0.8, 0.8), 0.1, "equivalent"),
        ((0.8, 0.8), 0.005, "neither shown"),
        ((0.8, 0.6), 0.1, "different"),
        ((0.8, 0.7), 0.3, "different but within the margin"),
    ],
)
def test_claims(kept, margin, claim):
    found = compare(models(kept=kept), margin=margin)
    assert found.claim == claim
    assert claim in str(found)


def test_swapping_the_models_turns_the_sign():
    columns = models()
    there, back = compare(columns), compare([*columns[2:], *columns[:2]])
    assert back.difference.value == pytest.approx(-there.difference.value)
    assert (back.low, back.high, back.p) == pytest.approx((-there.high, -there.low, there.p))


def test_pairing_takes_what_models_share_out_of_the_interval():
    columns = models()
    rng = np.random.default_rng(1)
    shared = 0.5 * rng.normal(size=66)[LABELS]
    paired = [columns[0], 0.8 * columns[0] + shared, columns[0], 0.75 * columns[0] + shared]
    found = compare(paired)
    assert found.difference.value == pytest.approx(0.05)
    assert found.difference.se < 0.05 * (found.a.high - found.a.low)


def test_identical_models_differ_by_nothing():
    columns = models()[:2]
    found = compare([*columns, *columns])
    assert (found.difference.value, found.difference.low, found.difference.high) == (0, 0, 0)
    assert (found.p, found.difference.p, found.claim) == (0, 1, "equivalent")


def test_no_effect_no_share():
    columns = models()
    rng = np.random.default_rng(0)
    columns[2] = rng.normal(size=len(LABELS))
    found = compare(columns)
    assert (found.claim, found.p) == ("undefined", None)
    assert "b: " in found.reason
    assert "covers 0" in str(found)
    assert np.isnan([found.difference.value, found.low, found.high]).all()
    assert not found.difference.excludes_zero
    assert compare([c[:5] for c in columns], ["x"] * 5).claim == "undefined"


def test_equivalence_is_claimed_rarely_at_the_margin():
    # Reductions differ by exactly the margin: .2 and .3.
    claims = [compare(models(seed, kept=(0.8, 0.7))).p <= 0.05 for seed in range(200)]
    assert np.mean(claims) <= 0.1  # .05, Monte Carlo error .015
    # And it can be claimed: with no difference and this margin it mostly is.
    assert np.mean([compare(models(seed, kept=(0.8, 0.8))).p <= 0.05 for seed in range(50)]) > 0.6


@pytest.mark.parametrize(("named", "message"), [({"margin": 0}, "margin is 0"), ({"alpha": 0.5}, "alpha is 0.5")])
def test_bad_input(named, message):
    with pytest.raises(InputError, match=message):
        compare(models(), **named)

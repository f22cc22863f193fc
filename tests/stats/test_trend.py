from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as scipy_stats

from timonel.errors import InputError
from timonel.stats import cluster_mean
from timonel.stats._sums import resample_totals
from timonel.stats.trend import trend

DOSES = [0.0, 0.5, 1.0, 2.0, 3.0]
LABELS = np.repeat(np.arange(30), np.random.default_rng(9).integers(1, 23, 30))


def curve(shape, seed: int = 0, wobble: float = 0.3) -> np.ndarray:
    """Rows under each dose: a shape, an item's own level and slope, noise."""
    rng = np.random.default_rng(seed)
    base = np.asarray(shape, dtype=float) + rng.normal(size=(30, 1))[LABELS]
    return (
        base
        + rng.normal(scale=wobble, size=(30, len(shape)))[LABELS]
        + rng.normal(scale=wobble, size=(len(LABELS), len(shape)))
    )


def test_agrees_with_a_loop_over_draws_and_pairs():
    values = curve([0, 0.3, 0.2, 0.5, 0.4])
    found = trend(values, DOSES, LABELS, direction="rising", draws=99, seed=4)

    def mean_and_se(rows):
        total = sum(len(r) for r in rows)
        mean = sum(r.sum() for r in rows) / total
        return mean, np.sqrt(len(rows) / (len(rows) - 1) * sum((r.sum() - mean * len(r)) ** 2 for r in rows)) / total

    pairs = [(j, k) for j in range(5) for k in range(j + 1, 5)]
    groups = {(j, k): [(values[:, j] - values[:, k])[g == LABELS] for g in range(30)] for j, k in pairs}
    # Draws are whole clusters in the module's own order: by size, then by the sums of each difference.
    order = sorted(range(30), key=lambda g: (len(groups[0, 1][g]), *(groups[pair][g].sum() for pair in pairs)))
    weights = resample_totals(np.eye(30), 99, 4).T.astype(int)
    centre = {pair: mean_and_se(groups[pair]) for pair in pairs}
    t = {pair: m / se for pair, (m, se) in centre.items()}
    student = np.empty((99, len(pairs)))
    for d, draw in enumerate(weights):
        for c, pair in enumerate(pairs):
            drawn = [groups[pair][order[g]] for g in range(30) for _ in range(draw[g])]
            m, se = mean_and_se(drawn)
            student[d, c] = (m - centre[pair][0]) / se
    assert found.p == pytest.approx((1 + np.sum(student.max(axis=1) >= max(t.values()))) / 100)
    top = max(t, key=t.__getitem__)
    assert found.worst == (DOSES[top[0]], DOSES[top[1]])
    assert found.p_steps == pytest.approx(max(scipy_stats.t.cdf(t[j, j + 1], 29) for j in range(4)))
    # The band: changes against dose 1.0 (number 2); 95 of 100 is the 95th of 99 ordered draws.
    columns = [c for c, pair in enumerate(pairs) if 2 in pair]
    reach = np.sort(np.abs(student[:, columns]).max(axis=1))[94]
    for j, other in [(0, (0, 2)), (1, (1, 2)), (3, (2, 3)), (4, (2, 4))]:
        assert found.high[j] - found.change[j] == pytest.approx(reach * centre[other][1], rel=1e-8)
        assert found.change[j] - found.low[j] == pytest.approx(reach * centre[other][1], rel=1e-8)
    assert found.value == pytest.approx(values.mean(axis=0))
    assert (found.change[2], found.low[2], found.high[2]) == (0, 0, 0)


def test_band_is_wider_than_single_intervals():
    values = curve([0, 1, 2, 3, 4])
    found = trend(values, DOSES, LABELS, direction="rising")
    one = cluster_mean(values[:, 4] - values[:, 2], LABELS)
    assert found.change[4] == pytest.approx(one.value)
    assert found.high[4] - found.low[4] > 1.1 * (one.high - one.low)


@pytest.mark.parametrize(
    ("shape", "verdict", "worst"),
    [
        ([0, 1, 2, 3, 4], "monotone", None),
        ([0, 1, 2, 1, 0.5], "not monotone", (1.0, 3.0)),
        ([0, 1, 1, 1.6, 3], "not told apart", None),
        ([0, 0, 0, 0, 0], "not told apart", None),
    ],
)
def test_verdicts(shape, verdict, worst):
    # Seed 0 is one of the flat curves in twenty that are called not monotone.
    found = trend(curve(shape, 2), DOSES, LABELS, direction="rising", draws=999)
    assert found.verdict == verdict
    if worst is not None:
        assert found.worst == worst
    # The mirror image, up to the draws' order.
    falling = trend(-curve(shape, 2), DOSES, LABELS, direction="falling", draws=999)
    assert falling.verdict == verdict
    assert falling.p == pytest.approx(found.p, abs=0.02)
    assert (falling.p_steps, falling.worst) == (pytest.approx(found.p_steps), found.worst)


def test_flat_curves_are_rarely_called_not_monotone():
    p, covered = [], []
    for seed in range(200):
        found = trend(curve([0] * 5, seed), DOSES, LABELS, direction="rising", draws=199, seed=seed)
        p.append(found.p)
        covered.append(bool(((found.low <= 0) & (found.high >= 0)).all()))
    assert 0.01 <= np.mean(np.array(p) <= 0.05) <= 0.1  # Monte Carlo error .015
    assert 0.91 <= np.mean(covered) <= 0.985


def test_steps_claim_monotone_rarely_where_one_step_is_flat():
    found = [trend(curve([0, 1, 1, 2, 3], s), DOSES, LABELS, direction="rising", draws=99, seed=s) for s in range(100)]
    # The level is .05, and the flat step is told to rise in one study of twenty: .02 of Monte Carlo error.
    assert sum(one.verdict == "monotone" for one in found) <= 11


def test_equal_doses_are_neither_inversion_nor_step():
    values = curve([0, 1, 2, 3, 4])
    values[:, 3] = values[:, 2]
    found = trend(values, DOSES, LABELS, direction="rising", draws=199)
    assert found.p > 0.5
    assert found.p_steps == pytest.approx(0.5)
    assert (found.low[3], found.high[3]) == (0, 0)
    flat = trend(np.repeat(values[:, :1], 5, axis=1), DOSES, LABELS, direction="rising", draws=199)
    assert (flat.p, flat.worst, flat.verdict) == (1, None, "not told apart")


def test_a_difference_without_spread_is_known():
    values = np.tile([0.0, 1.0, 0.5], (len(LABELS), 1))
    found = trend(values, [0.0, 1.0, 2.0], LABELS, direction="rising", draws=199)
    assert (found.p, found.verdict, found.worst) == (1 / 200, "not monotone", (1.0, 2.0))
    assert found.low.tolist() == found.high.tolist() == [-1, 0, -0.5]


def test_one_cluster_tests_nothing():
    found = trend([[0.0, 1.0], [0.0, 2.0]], [0, 1], ["a", "a"], direction="rising")
    assert (found.p, found.p_steps, found.verdict) == (None, None, "not told apart")
    assert found.low[0] == -np.inf


def test_a_draw_without_spread_counts_as_the_most_extreme():
    # Two clusters: half of the draws take one of them twice.
    found = trend([[0.0, -1.0], [0.0, -1.1]], [0, 1], ["a", "b"], direction="rising", draws=199)
    assert found.p > 0.4
    assert found.high[0] == np.inf


@pytest.mark.parametrize(
    ("values", "doses", "named", "message"),
    [
        (np.zeros((3, 2)), [0, 1, 2], {}, r"shape \(3, 2\) and doses \(3,\)"),
        (np.zeros((3, 2)), [1, 1], {}, "ascend"),
        (np.zeros((3, 1)), [1], {}, "two or more"),
        (np.zeros((3, 2)), [0, 2], {}, "reference 1 is not among"),
        (np.zeros((3, 2)), [0, 1], {"direction": "up"}, "direction is 'up'"),
        (np.full((3, 2), np.nan), [0, 1], {}, "dose 0 are not finite"),
        (np.zeros((3, 2)), [0, 1], {"draws": 9}, "draws is 9"),
    ],
)
def test_bad_input(values, doses, named, message):
    with pytest.raises(InputError, match=message):
        trend(values, doses, [0, 1, 2], **{"direction": "rising", **named})

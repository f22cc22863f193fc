from __future__ import annotations

import numpy as np
import pytest

from timonel.errors import InputError
from timonel.stats import cluster_mean, permutation_p
from timonel.stats.draws import against_draws

LABELS = np.repeat(np.arange(12), 5)


def changes(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shared = rng.normal(size=12)[LABELS]
    return 1 + shared + rng.normal(size=60), 0.3 + shared + rng.normal(size=(40, 60))


def test_each_number_by_its_own_definition():
    real, draws = changes()
    found = against_draws(real, draws, LABELS, resamples=199, seed=2)
    by_hand = [sum(row) / 60 for row in draws]
    assert found.p == (1 + sum(mean >= sum(real) / 60 for mean in by_hand)) / 41
    assert found.means == pytest.approx(np.sort(by_hand))
    assert found.sd == pytest.approx(np.std(by_hand, ddof=1))
    average = draws.sum(axis=0) / 40
    assert found.own == cluster_mean(average, LABELS, draws=199, seed=2)
    assert found.real == cluster_mean(real, LABELS, draws=199, seed=2)
    assert found.beyond == cluster_mean(real - average, LABELS, draws=199, seed=2)
    assert found.beyond.value == pytest.approx(found.real.value - found.own.value)


def test_what_real_and_draws_share_leaves_the_contrast():
    found = against_draws(*changes(), LABELS)
    assert found.beyond.high - found.beyond.low < 0.8 * (found.real.high - found.real.low)


@pytest.mark.parametrize("alternative", ["greater", "less", "two-sided"])
def test_p_is_never_0_and_knows_its_side(alternative):
    real, draws = changes()
    found = against_draws(real + 100, draws, LABELS, alternative=alternative, resamples=99)
    assert found.p == {"greater": 1 / 41, "less": 1.0, "two-sided": 2 / 41}[alternative]
    assert found.p == permutation_p(float(np.mean(real + 100)), draws.mean(axis=1), alternative)
    assert found.alternative == alternative


def test_real_as_one_of_the_draws_is_uniform():
    rng = np.random.default_rng(1)
    p = [
        against_draws(x[0], x[1:], np.arange(8), resamples=39).p
        for x in rng.normal(size=(600, 20, 8)) + rng.normal(size=(600, 1, 8))
    ]
    assert np.mean(np.array(p) <= 0.1) == pytest.approx(0.1, abs=0.035)


def test_one_draw_has_no_spread():
    real, draws = changes()
    found = against_draws(real, draws[:1], LABELS, resamples=99)
    assert np.isnan(found.sd)
    assert found.p in (0.5, 1.0)


@pytest.mark.parametrize("draws", [np.zeros((0, 60)), np.zeros(60), np.zeros((4, 59))])
def test_bad_shapes(draws):
    with pytest.raises(InputError, match="stack one row of changes a draw"):
        against_draws(np.zeros(60), draws, LABELS)

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest

from oracles.designs import N4_SIZES, balanced, evidence
from timonel.binding.confirm import final_cut
from timonel.binding.halves import split_items
from timonel.binding.null import Evidence, calibrate, find_heads, swapped
from timonel.errors import InputError

DESIGN = balanced()
SMALL = balanced(N4_SIZES[10:40], identities=40)


def test_swap_exchanges_everything_in_half_of_the_pairs():
    study = evidence(DESIGN, 0)
    null = swapped(study, 5)
    turned = (null.features == study.features[:, ::-1]).all(axis=(1, 2))
    assert turned.sum() == len(turned) // 2
    for i, swap in enumerate(turned):
        assert (null.features[i] == (study.features[i, ::-1] if swap else study.features[i])).all()
        assert null.effect[i] == (-study.effect[i] if swap else study.effect[i])
        assert (null.changes[i] == (-study.changes[i] if swap else study.changes[i])).all()
        pair = study.related[i], study.substitute[i]
        assert (null.related[i], null.substitute[i]) == (pair[::-1] if swap else pair)
    assert (null.items, null.strata) == (study.items, study.strata)


def test_swap_is_seeded_and_ends_the_effect():
    study = evidence(DESIGN, 0)
    assert (swapped(study, 1).effect == swapped(study, 1).effect).all()
    assert (swapped(study, 1).effect != swapped(study, 2).effect).any()
    means = [swapped(study, seed).effect.mean() for seed in range(300)]
    assert np.mean(means) == pytest.approx(0, abs=3 * np.std(means) / 300**0.5)
    assert study.effect.mean() < -0.5


def everything_is_stable(study: Evidence, seed: int) -> tuple[int, ...]:
    """The final cut with a shortlist of all heads: what it would let pass if discovery chose nothing."""
    heads = range(study.changes.shape[1])
    found = final_cut(
        study.effect,
        {head: study.changes[:, head] for head in heads},
        items=study.items,
        related=study.related,
        substitute=study.substitute,
        halves=split_items(study.items, study.strata, seed),
        stable=(heads, heads),
        alpha=0.025,
    )
    return found.heads


def test_the_final_cut_alone_names_a_head_in_few_null_studies():
    found = calibrate(everything_is_stable, lambda number: evidence(DESIGN, number, heads=12), studies=200)
    assert found.studies == 200
    assert found.named <= 10


def test_a_cut_that_is_not_confirmed_would_not_be_calibrated():
    # Chosen on one half alone, uncorrected, some of 20 heads pass in 1 - .975^20 = 40 % of the null studies.
    def careless(study: Evidence, seed: int) -> list[int]:
        half = split_items(study.items, study.strata, seed)[0]
        t = study.changes[half].mean(axis=0) / study.changes[half].std(axis=0) * len(half) ** 0.5
        return np.flatnonzero(t > 1.96).tolist()

    found = calibrate(careless, lambda number: evidence(DESIGN, number, heads=20), studies=40)
    assert found.named > 10


def test_the_whole_procedure_names_no_head_under_the_null():
    found = calibrate(
        lambda study, seed: find_heads(study, seed, alpha=0.025).heads,
        lambda number: evidence(SMALL, number, heads=8),
        studies=8,
    )
    assert found.named <= 1


def test_a_planted_head_is_found_in_most_studies():
    found = [find_heads(evidence(DESIGN, seed, heads=20), seed).heads for seed in range(8)]
    assert sum(3 in heads for heads in found) >= 6
    assert sum(heads not in ((), (3,)) for heads in found) <= 1


def test_in_sample_changes_are_the_larger_ones():
    # Of a weak head, chosen only where chance was kind to it.
    inside, outside = [], []
    for seed in range(60):
        study = evidence(SMALL, seed, heads=6, share=0.02)
        halves = split_items(study.items, study.strata, seed)
        found = final_cut(
            study.effect,
            {3: study.changes[:, 3]},
            items=study.items,
            related=study.related,
            substitute=study.substitute,
            halves=halves,
            stable=((3,), (3,)),
        )
        for direction in found.directions:
            inside += [check.in_sample.value for check in direction.checks if check.chosen]
            outside += [check.held_out.value for check in direction.checks if check.chosen]
    assert 10 < len(inside) < 110
    assert np.mean(inside) > 1.2 * np.mean(outside)


def test_calibration_counts_studies_not_heads():
    calls = []

    def procedure(study: Evidence, seed: int) -> list[int]:
        calls.append((seed, study.effect[0]))
        return [[], [1, 2], [7]][len(calls) % 3]

    study = evidence(SMALL, 0)
    found = calibrate(procedure, lambda _: study, studies=9, seed=100)
    assert (found.named, found.heads, found.rate) == (6, (2, 1, 0) * 3, 6 / 9)
    expected = binomtest(6, 9).proportion_ci()
    assert (found.low, found.high) == (expected.low, expected.high)
    assert [seed for seed, _ in calls] == list(range(100, 109))
    assert {abs(effect) for _, effect in calls} == {abs(study.effect[0])}
    with pytest.raises(InputError, match="0 null studies"):
        calibrate(procedure, lambda _: study, studies=0)


@pytest.mark.slow
def test_at_most_ten_of_two_hundred_null_studies_name_a_head():
    found = calibrate(
        lambda study, seed: find_heads(study, seed, alpha=0.025).heads, lambda number: evidence(DESIGN, number)
    )
    assert found.studies == 200
    assert found.named <= 10


@pytest.mark.slow
def test_power_of_the_whole_procedure():
    found = [find_heads(evidence(DESIGN, 1000 + seed), seed).heads for seed in range(60)]
    assert np.mean([3 in heads for heads in found]) > 0.8
    assert np.mean([bool(set(heads) - {3}) for heads in found]) < 0.1

"""Coverage of each kind of interval, with the cluster sizes of N4's 847 pairs of 66 items.

Monte Carlo error of a share of .95: .015 over 200 studies, .005 over 2,000.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from oracles.designs import N4_SIZES, Design, balanced
from timonel.binding.discover import _auc
from timonel.binding.halves import halves
from timonel.binding.sources import read_pairs
from timonel.stats import cluster_mean, fieller, reduction
from timonel.stats.adjust import Adjustment
from timonel.stats.draws import against_draws
from timonel.stats.equivalence import reduction_difference
from timonel.stats.trend import trend

LABELS = np.repeat(np.arange(66), N4_SIZES)
DOSES = [0.0, 0.25, 0.5, 1.0, 2.0, 3.0]

Draw = Callable[[int], np.ndarray]
Kind = Callable[[np.random.Generator, Draw, int], tuple[Any, float]]


def centred(rng: np.random.Generator, shape: str) -> Draw:
    """Numbers of mean 0 and variance 1."""
    return lambda count: rng.normal(size=count) if shape == "normal" else rng.exponential(size=count) - 1


def per_item(draw: Draw) -> np.ndarray:
    return draw(66)[LABELS]


def noise(rng: np.random.Generator, scale: float) -> np.ndarray:
    return scale * rng.normal(size=len(LABELS))


def mean(rng, draw, seed):
    return cluster_mean(2.5 * per_item(draw) + noise(rng, 2.5), LABELS, draws=499, seed=seed), 0.0


def adjusted(designs: list[Design]) -> Kind:
    """Of the adjusted mean on each of some designs in turn."""
    solved = [Adjustment.of(one.related, one.substitute, one.items) for one in designs]

    def kind(rng, draw, seed):
        which = seed % len(designs)
        design = designs[which]
        effect = design.effects(2 * rng.normal(size=100))
        values = 2.5 * draw(66)[design.items] + effect + 2.5 * rng.normal(size=len(design.items))
        return solved[which].mean(values), 0.0

    return kind


def two(rng, draw, level, kept):
    """An effect of a share of which a cut leaves `kept`."""
    full = level + 1.5 * per_item(draw) + noise(rng, 2)
    return full, kept * full + 0.15 * per_item(draw) + noise(rng, 0.3)


def ratio(rng, draw, seed):
    full, cut = two(rng, draw, -1.6, 0.8)
    return fieller(cut, full, LABELS), 0.8


def share(rng, draw, seed):
    full, cut = two(rng, draw, -2.3, 0.75)
    return reduction(full, cut, LABELS, draws=199), 0.25


def difference(rng, draw, seed):
    found = reduction_difference(*two(rng, draw, -2, 0.8), *two(rng, draw, -2.3, 0.75), LABELS, margin=0.1, draws=199)
    return found.difference, 0.05


def band(rng, draw, seed):
    slope = 0.2 * per_item(draw)
    values = slope[:, None] * np.array(DOSES) + 0.3 * rng.normal(size=(len(LABELS), len(DOSES)))
    return trend(values, DOSES, LABELS, direction="falling", draws=499, seed=seed), 0.0


def own_change_of_draws(rng, draw, seed):
    draws = 0.3 + 0.2 * per_item(draw) + 0.5 * rng.normal(size=(20, len(LABELS)))
    return against_draws(draws[0], draws, LABELS, resamples=499, seed=seed).own, 0.3


def auc(rng, draw, seed):
    level, effect = rng.normal(size=66), 1 + 0.5 * rng.normal(size=66)
    scores = np.empty(2 * len(LABELS))
    scores[::2] = (level + effect)[LABELS] + noise(rng, 1)
    scores[1::2] = level[LABELS] + noise(rng, 1)
    # MATCH minus MISMATCH of two items is N(1, 1 + .25 + 1 + 1 + 1).
    return cluster_mean(_auc(scores)[1], LABELS, draws=499, seed=seed), norm.cdf(1 / 4.25**0.5)


KINDS = [mean, ratio, share, difference, band, own_change_of_draws, auc]


def coverage(kind: Kind, shape: str, studies: int) -> float:
    covered = []
    for seed in range(studies):
        rng = np.random.default_rng(seed)
        found, truth = kind(rng, centred(rng, shape), seed)
        if np.isnan(found.low).any():
            continue  # undefined in words: makes no claim
        covered.append(bool(np.all((found.low <= truth + 1e-12) & (truth - 1e-12 <= found.high))))
    assert len(covered) >= 0.98 * studies
    return float(np.mean(covered))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_quick(kind):
    assert 0.905 <= coverage(kind, "normal", 200) <= 0.99


@pytest.mark.parametrize("part", ["all", "half"])
def test_quick_adjusted(part):
    design = balanced()
    kind = adjusted([design] if part == "all" else [design.half(seed) for seed in range(8)])
    assert 0.905 <= coverage(kind, "normal", 200) <= 0.99


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["normal", "skewed"])
@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.__name__)
def test_two_thousand_studies(kind, shape):
    found = coverage(kind, shape, 2000)
    print(f"{kind.__name__} {shape}: {found:.3f}")
    assert 0.93 <= found <= 0.97


@pytest.mark.slow
def test_two_thousand_studies_of_the_auc():
    # Its truth is known for normal scores.
    assert 0.93 <= coverage(auc, "normal", 2000) <= 0.97


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["normal", "skewed"])
@pytest.mark.parametrize("part", ["all", "half"])
def test_two_thousand_studies_adjusted(part, shape, data_dir: Path):
    # Who meets whom matters here, so the pairs are N4's own.
    pairs = read_pairs(f"n4:{data_dir / 'n4' / 'N4_1k.pkl'}").pairs
    labels = [[p.item for p in pairs], [p.related.key for p in pairs], [p.substitute.key for p in pairs]]
    identities = np.unique(labels[1] + labels[2])
    design = Design(
        np.unique(labels[0], return_inverse=True)[1], *(np.searchsorted(identities, one) for one in labels[1:])
    )
    chosen = [half for seed in range(4) for half in halves(pairs, seed)]
    found = coverage(adjusted([design] if part == "all" else [design.rows(rows) for rows in chosen]), shape, 2000)
    print(f"adjusted, {part}, {shape}: {found:.3f}")
    assert 0.93 <= found <= 0.97

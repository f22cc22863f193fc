"""Null studies: how often would the whole procedure name a head where MATCH and MISMATCH mean nothing?

    swapped study = the study with MATCH and MISMATCH exchanged in a random half of its pairs, in everything:
                    features, dS -> -dS, changes -> -changes, R <-> U'
    rate          = studies in which the procedure names a head / studies,   with the exact binomial interval

In a swapped study the mean effect is 0 whatever the model does, while items, identities, features and their
dependence stay as they are. R and U' go along, so that an identity's own effect keeps its sign and the
adjustment for it is put to the test too. The package's procedure, `find_heads`, is `halves` -> `discover` ->
`final_cut`; any other procedure is judged in the same way.

Source: ours. A rate is that of the studies put in; it does not show what happens under other dependence, and
says nothing about power.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy.stats import binomtest

from timonel.binding.confirm import FinalCut, final_cut
from timonel.binding.discover import discover
from timonel.binding.halves import split_items
from timonel.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evidence:
    """All that the search for heads looks at; p pairs, H heads.

    Attributes:
        features: attention from the varied identity (or the mean over both) to the item, MATCH and MISMATCH.
        effect: dS.
        changes: change of dS under the cut of each head alone.
        items, strata: of each pair: its cluster, and what the halves spread evenly.
        related, substitute: keys of R and U'.
    """

    features: Float[np.ndarray, "p 2 H"]
    effect: Float[np.ndarray, " p"]
    changes: Float[np.ndarray, "p H"]
    items: tuple[str, ...]
    strata: tuple[object, ...]
    related: tuple[str, ...]
    substitute: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How often null studies named a head.

    Attributes:
        named: studies that named at least one.
        studies: how many there were.
        heads: how many each named.
        low, high: exact binomial interval of the rate.
        level: its coverage.
    """

    named: int
    studies: int
    heads: tuple[int, ...]
    low: float
    high: float
    level: float

    @property
    def rate(self) -> float:
        """Share of null studies that named a head."""
        return self.named / self.studies


Procedure = Callable[[Evidence, int], Collection[int]]
"""From evidence and a seed to the heads that it names."""


def swapped(evidence: Evidence, seed: int) -> Evidence:
    """The same study with MATCH and MISMATCH exchanged in a random half of its pairs."""
    pairs = len(evidence.effect)
    chosen = np.zeros(pairs, dtype=bool)
    chosen[np.random.default_rng(seed).permutation(pairs)[: pairs // 2]] = True
    sign = np.where(chosen, -1.0, 1.0)
    both = list(zip(evidence.related, evidence.substitute, chosen, strict=True))
    return replace(
        evidence,
        features=np.where(chosen[:, None, None], evidence.features[:, ::-1], evidence.features),
        effect=sign * evidence.effect,
        changes=sign[:, None] * evidence.changes,
        related=tuple(u if swap else r for r, u, swap in both),
        substitute=tuple(r if swap else u for r, u, swap in both),
    )


def find_heads(evidence: Evidence, seed: int, *, alpha: float = 0.05, minimum: float = 0.01) -> FinalCut:
    """Discovery and final cut on evidence that is all there already."""
    halves = split_items(evidence.items, evidence.strata, seed)
    items = np.array(evidence.items)
    first, second = (discover(evidence.features[half], items[half], seed=seed).stable for half in halves)
    return final_cut(
        evidence.effect,
        {head: evidence.changes[:, head] for head in {*first, *second}},
        items=items,
        related=np.array(evidence.related),
        substitute=np.array(evidence.substitute),
        halves=halves,
        stable=(first, second),
        alpha=alpha,
        minimum=minimum,
    )


def calibrate(
    procedure: Procedure,
    evidence: Callable[[int], Evidence],
    *,
    studies: int = 200,
    seed: int = 0,
    level: float = 0.95,
) -> Calibration:
    """Runs the procedure on swapped studies.

    Args:
        procedure: what names heads, such as `lambda study, seed: find_heads(study, seed, alpha=0.025).heads`.
        evidence: from a study's number to its evidence before the swap: simulated anew, or always the real one.
        studies: how many.
        seed: of the swaps, and given on to the procedure; each study has its own.
        level: of the rate's interval.
    """
    if studies < 1:
        raise InputError(f"{studies} null studies were asked for; expected at least 1; 200 is the usual number.")
    found = tuple(len(procedure(swapped(evidence(number), seed + number), seed + number)) for number in range(studies))
    named = sum(count > 0 for count in found)
    interval = binomtest(named, studies).proportion_ci(level)
    return Calibration(
        named=named,
        studies=studies,
        heads=found,
        low=float(interval.low),
        high=float(interval.high),
        level=level,
    )

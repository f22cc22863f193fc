"""Designs and studies made up for tests: who is R and U' in which item, and evidence with a known truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from timonel.binding.null import Evidence

# Pairs an item in N4's 847 pairs of 66 items, read off `pairs_from_n4`.
N4_SIZES = (
    *(1, 2, 3, 3, 3, 3, 3, 4, 5, 5, 5, 5, 6, 6, 7, 7, 7, 7, 8, 8, 10, *[11] * 8, *[12] * 5, *[13] * 6, 14, 14),
    *(15, 15, 15, 16, 16, 17, 19, 20, *[22] * 16),
)


@dataclass(frozen=True)
class Design:
    """Labels by row."""

    items: np.ndarray
    related: np.ndarray
    substitute: np.ndarray

    def half(self, seed: int = 0) -> Design:
        """The rows of half of the items."""
        names = np.random.default_rng(seed).permutation(np.unique(self.items))
        return self.rows(np.isin(self.items, names[: len(names) // 2]))

    def rows(self, chosen: np.ndarray) -> Design:
        return Design(self.items[chosen], self.related[chosen], self.substitute[chosen])

    def effects(self, effect: np.ndarray) -> np.ndarray:
        """m(R) - m(U') of each row."""
        return effect[self.related] - effect[self.substitute]


def balanced(sizes: tuple[int, ...] = N4_SIZES, identities: int = 77, seed: int = 0) -> Design:
    """Two owners an item; every identity is U' as often as it is R, and never of an item that it owns."""
    rng = np.random.default_rng(seed)
    items = np.repeat(np.arange(len(sizes)), sizes)
    owners = np.array([(item % identities, (item * 7 + 3) % identities) for item in range(len(sizes))])
    # Identities that own nothing so far take an owner's place, so that all of them occur.
    spare = [i for i in range(identities) if i not in set(owners.ravel().tolist())]
    for item, identity in zip(rng.permutation(len(sizes)), spare, strict=False):
        owners[item, 1] = identity
    related = owners[items, rng.integers(2, size=len(items))]
    substitute = rng.permutation(related)
    for _ in range(100):
        clash = np.flatnonzero((owners[items] == substitute[:, None]).any(axis=1))
        if len(clash) == 0:
            return Design(items, related, substitute)
        for row in clash:
            other = rng.integers(len(items))
            substitute[[row, other]] = substitute[[other, row]]
    raise AssertionError("no such design was found")


def evidence(
    design: Design,
    seed: int,
    *,
    heads: int = 40,
    planted: int | None = 3,
    share: float = 0.06,
    attends: float = 0.8,
) -> Evidence:
    """A study with one planted head, or none.

    dS spreads between items, identities and pairs as SmolLM2-135M's does on N4 (-1.6; 2.5, 2, 2.5, items skewed).
    The planted head attends more in MATCH by `attends` standard deviations of a row, and its cut takes `share` of
    each item's effect; all heads' cuts also move what identities do by themselves, which is no binding.
    """
    rng = np.random.default_rng(seed)
    pairs, count = len(design.items), int(design.items.max()) + 1
    identities = int(max(design.related.max(), design.substitute.max())) + 1
    binding = -1.6 + 2.5 * (1 - rng.exponential(size=count))[design.items]
    effect = binding + design.effects(rng.normal(scale=2, size=identities)) + rng.normal(scale=2.5, size=pairs)
    own = rng.normal(scale=0.7, size=(identities, heads))
    features = rng.normal(size=(pairs, 2, heads)) + rng.normal(scale=0.5, size=(pairs, 1, heads))
    features += rng.normal(scale=0.5, size=(count, 1, heads))[design.items]
    features += np.stack([own[design.related], own[design.substitute]], axis=1)
    changes = design.effects(rng.normal(scale=0.05, size=(identities, heads)))
    changes = changes + rng.normal(scale=0.1, size=(pairs, heads))
    if planted is not None:
        features[:, 0, planted] += attends
        changes[:, planted] -= share * binding
    return Evidence(
        features=features,
        effect=effect,
        changes=changes,
        items=tuple(f"item {item:02}" for item in design.items),
        strata=tuple((item % 4) // 2 for item in design.items),
        related=tuple(f"identity {label:02}" for label in design.related),
        substitute=tuple(f"identity {label:02}" for label in design.substitute),
    )

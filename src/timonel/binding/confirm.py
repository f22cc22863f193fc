"""The final cut: which stable heads cause the effect, found on one half of the items and confirmed on the other.

    change of a head  = adjusted mean over pairs of (dS with the related edge cut at this head alone - dS)
    toward 0          = change of the sign opposite to the adjusted dS of the discovery half
    chosen            on the discovery half: q < alpha (Benjamini-Hochberg over its stable heads, one-sided p of
                      the change toward 0), and the change is at least `minimum` of |dS|
    confirmed         chosen, and on the other half: p < alpha, in the same direction, and at least `minimum` too
    final             = confirmed in either direction (first half to second, second to first): the union

Means are adjusted for the effects of R and U', which do not balance in a half (`stats.adjust`), and their p is
the jackknife's over items; a t test on the item means of adjusted rows would be passed at 5 % by some 20 % of
heads that do nothing. The minimum is there since a cut acts deterministically: a tiny effect is soon "significant".

Why the union: a head of either list has passed q < alpha on one half and p < alpha on the other, so both lists
carry the same evidence. The intersection asks in addition that L1, which keeps one of several heads that say the
same, keep the same one twice: a demand on the shortlist. Under the null (`null`) the union names a head in fewer
studies than alpha allows, and it finds a planted head more often (docs/statistics.md).

In-sample changes come from the half that chose the head and are too large on average: quote the held-out one.
It does not show what heads do together, nor that a head left out does nothing.

Source: ours; the paper's own final cut is not described.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from timonel.binding.halves import Halves
from timonel.errors import InputError
from timonel.stats import Estimate, benjamini_hochberg
from timonel.stats.adjust import Adjustment, one_sided

ALPHA, MINIMUM = 0.05, 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCheck:
    """One stable head in one direction.

    Attributes:
        head: its number.
        in_sample: the change on the half that found it.
        held_out: the change on the other half.
        p: one-sided, of `in_sample` toward 0.
        q: over the half's stable heads.
        p_held_out: one-sided, of `held_out` in the same direction.
        chosen: passed on the discovery half.
        confirmed: passed on both.
    """

    head: int
    in_sample: Estimate
    held_out: Estimate
    p: float
    q: float
    p_held_out: float
    chosen: bool
    confirmed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Direction:
    """Discovery on one half, confirmation on the other.

    Attributes:
        effect: adjusted dS of the discovery half; its sign says where 0 is.
        effect_held_out: that of the other half.
        checks: every stable head of the discovery half.
    """

    effect: Estimate
    effect_held_out: Estimate
    checks: tuple[HeadCheck, ...]

    @property
    def chosen(self) -> tuple[int, ...]:
        """Heads that passed on the discovery half."""
        return tuple(check.head for check in self.checks if check.chosen)

    @property
    def confirmed(self) -> tuple[int, ...]:
        """Heads that passed on both."""
        return tuple(check.head for check in self.checks if check.confirmed)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalCut:
    """Both directions, with the thresholds that were used."""

    directions: tuple[Direction, Direction]
    alpha: float
    minimum: float

    @property
    def heads(self) -> tuple[int, ...]:
        """Confirmed in either direction."""
        return tuple(sorted({head for direction in self.directions for head in direction.confirmed}))

    @property
    def in_both(self) -> tuple[int, ...]:
        """Confirmed in both directions: a remark, not the result."""
        first, second = self.directions
        return tuple(sorted(set(first.confirmed) & set(second.confirmed)))


def final_cut(
    effect: ArrayLike,
    changes: Mapping[int, ArrayLike],
    *,
    items: ArrayLike,
    related: ArrayLike,
    substitute: ArrayLike,
    halves: Halves,
    stable: tuple[Sequence[int], Sequence[int]],
    alpha: float = ALPHA,
    minimum: float = MINIMUM,
    level: float = 0.95,
) -> FinalCut:
    """Cross-fits the causal cut.

    Args:
        effect: dS of each pair [p].
        changes: for each stable head of either half, dS under the cut of this head alone, minus dS [p].
        items: of each pair; the unit of inference.
        related: R's key of each pair.
        substitute: U''s.
        halves: positions of each half's pairs.
        stable: stable heads of the first half and of the second.
        alpha: for q on the discovery half and for p on the other.
        minimum: smallest change that counts, as a share of |dS|, on both halves.
        level: of the intervals.
    """
    _check(alpha, minimum, changes, stable)
    delta, names, gained, lost = (np.asarray(column) for column in (effect, items, related, substitute))
    for head, change in changes.items():
        if np.shape(change) != delta.shape:
            raise InputError(
                f"the changes of head {head} have shape {np.shape(change)} and the effect {delta.shape}; "
                "expected one number a pair; align them."
            )
    designs = [Adjustment.of(gained[half], lost[half], names[half]) for half in halves]
    means = [design.mean(delta[half], level=level) for design, half in zip(designs, halves, strict=True)]

    def one(here: int) -> Direction:
        there = 1 - here
        toward = -np.sign(means[here].value)
        measured = [
            tuple(
                designs[side].mean(np.asarray(changes[head], dtype=np.float64)[halves[side]], level=level)
                for side in (here, there)
            )
            for head in stable[here]
        ]
        p = np.array([_p_toward(inside, toward) for inside, _ in measured])
        checks = [
            _judge(head, inside, outside, float(p[i]), float(q), toward, means[here], means[there], alpha, minimum)
            for i, (head, (inside, outside), q) in enumerate(
                zip(stable[here], measured, benjamini_hochberg(p), strict=True)
            )
        ]
        return Direction(effect=means[here], effect_held_out=means[there], checks=tuple(checks))

    return FinalCut(directions=(one(0), one(1)), alpha=alpha, minimum=minimum)


def _judge(
    head: int,
    inside: Estimate,
    outside: Estimate,
    p: float,
    q: float,
    toward: float,
    effect: Estimate,
    effect_held_out: Estimate,
    alpha: float,
    minimum: float,
) -> HeadCheck:
    p_held_out = _p_toward(outside, toward)
    # Comparisons with nan, where a half is too small to tell, are False.
    chosen = bool(q < alpha and toward * inside.value >= minimum * abs(effect.value))
    again = bool(p_held_out < alpha and toward * outside.value >= minimum * abs(effect_held_out.value))
    return HeadCheck(
        head=head,
        in_sample=inside,
        held_out=outside,
        p=p,
        q=q,
        p_held_out=p_held_out,
        chosen=chosen,
        confirmed=chosen and again,
    )


def _p_toward(change: Estimate, toward: float) -> float:
    if toward == 0:
        return 1.0
    return one_sided(change, "greater" if toward > 0 else "less")


def _check(
    alpha: float, minimum: float, changes: Mapping[int, ArrayLike], stable: tuple[Sequence[int], Sequence[int]]
) -> None:
    if not 0 < alpha < 1:
        raise InputError(f"alpha is {alpha}; expected a number between 0 and 1; 0.05 is the usual one.")
    if not 0 <= minimum < 1:
        raise InputError(f"minimum is {minimum}; expected a share of the effect from 0 up to 1; 0.01 is the usual one.")
    missing = sorted({head for heads in stable for head in heads} - set(changes))
    if missing:
        raise InputError(f"stable head {missing[0]} has no changes; expected them for each; cut these heads first.")

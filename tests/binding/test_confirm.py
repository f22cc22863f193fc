from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oracles.designs import balanced, evidence
from timonel.binding.confirm import FinalCut, final_cut
from timonel.binding.halves import split_items
from timonel.binding.null import Evidence
from timonel.errors import InputError
from timonel.stats import benjamini_hochberg
from timonel.stats.adjust import adjusted_mean, one_sided

STUDY = evidence(balanced(), 11)
HALVES = split_items(STUDY.items, STUDY.strata, 0)


def cut(study: Evidence = STUDY, stable=((3, 8, 20), (3, 5)), **settings) -> FinalCut:
    heads = {head for half in stable for head in half}
    return final_cut(
        study.effect,
        {head: study.changes[:, head] for head in heads},
        items=study.items,
        related=study.related,
        substitute=study.substitute,
        halves=HALVES,
        stable=stable,
        **settings,
    )


def changed(head: int, change: np.ndarray, study: Evidence = STUDY) -> Evidence:
    changes = study.changes.copy()
    changes[:, head] = change
    return replace(study, changes=changes)


def test_agrees_with_the_rule_written_out():
    found = cut()

    def half(values, rows):
        related, substitute, items = (np.array(x)[rows] for x in (STUDY.related, STUDY.substitute, STUDY.items))
        return adjusted_mean(values[rows], related, substitute, items)

    confirmed = set()
    for here, direction in enumerate(found.directions):
        rows, others = HALVES[here], HALVES[1 - here]
        effect, other_effect = half(STUDY.effect, rows), half(STUDY.effect, others)
        assert (direction.effect, direction.effect_held_out) == (effect, other_effect)
        assert effect.value < 0  # so that toward 0 is up
        stable = ((3, 8, 20), (3, 5))[here]
        inside = [half(STUDY.changes[:, head], rows) for head in stable]
        outside = [half(STUDY.changes[:, head], others) for head in stable]
        q = benjamini_hochberg([one_sided(one, "greater") for one in inside])
        for i, check in enumerate(direction.checks):
            assert (check.head, check.in_sample, check.held_out) == (stable[i], inside[i], outside[i])
            assert check.q == pytest.approx(q[i])
            assert check.p_held_out == one_sided(outside[i], "greater")
            chosen = q[i] < 0.05 and inside[i].value >= 0.01 * -effect.value
            again = check.p_held_out < 0.05 and outside[i].value >= 0.01 * -other_effect.value
            assert (check.chosen, check.confirmed) == (chosen, chosen and again)
            if chosen and again:
                confirmed.add(stable[i])
    assert found.heads == tuple(sorted(confirmed)) == (3,)


def test_the_union_of_both_directions():
    # Head 3 is stable in the second half alone.
    found = cut(stable=((8, 20), (3, 5)))
    assert (found.directions[0].confirmed, found.directions[1].confirmed) == ((), (3,))
    assert (found.heads, found.in_both) == ((3,), ())
    both = cut()
    assert both.heads == both.in_both == (3,)


def test_shown_on_the_held_out_half_alone_is_not_confirmed():
    change = 0.05 * np.random.default_rng(0).normal(size=len(STUDY.effect))
    change[HALVES[1]] += 0.2
    first, second = cut(changed(8, change), stable=((8,), (8,))).directions
    assert first.checks[0].p_held_out < 0.001
    assert (first.chosen, first.confirmed, second.chosen, second.confirmed) == ((), (), (8,), ())


def test_away_from_0_is_not_toward_it():
    assert cut(changed(3, -STUDY.changes[:, 3])).heads == ()
    # With dS above 0, the way to 0 is down.
    mirrored = replace(STUDY, effect=-STUDY.effect, changes=-STUDY.changes)
    assert cut(mirrored).heads == (3,)
    assert cut(replace(STUDY, effect=-STUDY.effect)).heads == ()


def test_the_direction_is_the_discovery_halfs():
    # A head that takes dS up in one half and down in the other, where both halves' dS are below 0.
    change = np.full(len(STUDY.effect), 0.2)
    change[HALVES[1]] = -0.2
    found = cut(changed(8, change), stable=((8,), (8,)))
    assert (found.directions[0].chosen, found.directions[0].confirmed) == ((8,), ())
    assert found.directions[1].chosen == ()
    # And dS of another sign in the held-out half does not turn it round.
    effect = STUDY.effect.copy()
    effect[HALVES[1]] *= -1
    turned = cut(replace(changed(8, change), effect=effect), stable=((8,), (8,)))
    assert (turned.directions[0].chosen, turned.directions[0].confirmed) == ((8,), ())


def test_a_tiny_effect_is_not_confirmed_however_sure():
    tiny = 0.003 + 1e-5 * np.random.default_rng(0).normal(size=len(STUDY.effect))
    study = changed(8, tiny)
    found = cut(study, stable=((8,), (8,)))
    for direction in found.directions:
        (check,) = direction.checks
        assert check.p < 1e-6
        assert not check.chosen
    assert cut(study, stable=((8,), (8,)), minimum=0.0005).heads == (8,)


def test_the_minimum_holds_on_the_held_out_half_too():
    change = np.full(len(STUDY.effect), 0.003)
    change[HALVES[0]] = 0.2
    change += 1e-5 * np.random.default_rng(0).normal(size=len(change))
    (check,) = cut(changed(8, change), stable=((8,), ())).directions[0].checks
    assert check.chosen
    assert check.p_held_out < 0.05
    assert not check.confirmed


def test_what_identities_do_by_themselves_confirms_no_head():
    # A head whose cut changes what identities do alone: the plain mean of a half shows it, the adjusted does not.
    design = balanced()
    more = np.bincount(design.related[HALVES[0]], minlength=100) - np.bincount(
        design.substitute[HALVES[0]], minlength=100
    )
    change = design.effects(more / 20.0) + 0.05 * np.random.default_rng(0).normal(size=len(design.items))
    assert change[HALVES[0]].mean() > 0.05
    found = cut(changed(8, change), stable=((8,), (8,)))
    for direction in found.directions:
        (check,) = direction.checks
        assert abs(check.in_sample.value) < 0.02
        assert not check.chosen


def test_q_counts_all_stable_heads_of_the_half():
    one, many = cut(stable=((3,), ())), cut(stable=((3, *range(10, 30)), ()))
    (alone,), first = one.directions[0].checks, many.directions[0].checks[0]
    assert alone.q == alone.p == first.p
    assert first.q > 5 * alone.q


def test_no_stable_heads_no_heads():
    found = cut(stable=((), ()))
    assert found.heads == ()
    assert [direction.checks for direction in found.directions] == [(), ()]


def test_halves_too_small_to_tell_confirm_nothing():
    found = final_cut(
        [-1.0, -2.0, -1.5, -1.2],
        {0: [0.5, 0.4, 0.6, 0.5]},
        items=list("abcd"),
        related=list("rstu"),
        substitute=list("uvwx"),
        halves=(np.array([0, 1]), np.array([2, 3])),
        stable=((0,), (0,)),
    )
    assert found.heads == ()
    assert np.isnan(found.directions[0].checks[0].p)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 0}, "alpha is 0"),
        ({"minimum": -0.1}, "minimum is -0.1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        cut(**settings)


def test_missing_and_misaligned_changes():
    common = {
        "items": STUDY.items, "related": STUDY.related, "substitute": STUDY.substitute, "halves": HALVES,
    }  # fmt: skip
    with pytest.raises(InputError, match="stable head 7 has no changes"):
        final_cut(STUDY.effect, {3: STUDY.changes[:, 3]}, stable=((3,), (7,)), **common)
    with pytest.raises(InputError, match=r"the changes of head 3 have shape \(5,\)"):
        final_cut(STUDY.effect, {3: np.zeros(5)}, stable=((3,), ()), **common)

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.model_selection import GroupKFold
from sklearn.preprocessing import StandardScaler

from timonel.binding import discover as module
from timonel.binding.discover import Discovery, discover
from timonel.errors import InputError

SIZES = np.random.default_rng(0).integers(1, 23, 20)
ITEMS = np.repeat([f"item {i}" for i in range(20)], SIZES)


def features(seed: int = 0, heads: int = 30, told: tuple[int, ...] = (4, 17), by: float = 0.9) -> np.ndarray:
    """Attention-like numbers with item effects; the heads in `told` are larger in MATCH."""
    rng = np.random.default_rng(seed)
    made = rng.normal(size=(len(ITEMS), 2, heads)) + rng.normal(size=(20, 1, heads))[np.repeat(np.arange(20), SIZES)]
    made[:, 0, list(told)] += by
    return made


@pytest.fixture(scope="module")
def found() -> Discovery:
    return discover(features(), ITEMS, seed=3)


def l1(c: float, seed: int) -> LogisticRegression:
    kind = {"penalty": "l1"} if module._PENALTY != "deprecated" else {"l1_ratio": 1}
    return LogisticRegression(**kind, C=c, solver="liblinear", max_iter=1000, random_state=seed)


def test_agrees_with_the_procedure_written_out(found):
    x, y = [], []
    for match, mismatch in features():
        x += [match, mismatch]
        y += [1, 0]
    x, y, groups = np.array(x), np.array(y), np.repeat(ITEMS, 2)
    kept, areas, weights = [], [], []
    for fold, (train, test) in enumerate(GroupKFold(5, shuffle=True, random_state=3).split(x, y, groups)):
        best, best_area = None, -1.0
        for c in (0.001, 0.01, 0.1, 1.0, 10.0):
            inner = GroupKFold(5, shuffle=True, random_state=3)
            area = []
            for a, b in inner.split(x[train], y[train], groups[train]):
                scaler = StandardScaler().fit(x[train][a])
                model = l1(c, 3).fit(scaler.transform(x[train][a]), y[train][a])
                area.append(roc_auc_score(y[train][b], model.decision_function(scaler.transform(x[train][b]))))
            if np.mean(area) > best_area + 1e-12:
                best, best_area = c, np.mean(area)
        scaler = StandardScaler().fit(x[train])
        model = l1(best, 3).fit(scaler.transform(x[train]), y[train])
        scores = model.decision_function(scaler.transform(x[test]))
        weights.append(model.coef_[0])
        areas.append((roc_auc_score(y[test], scores), len(test) // 2))
        order = sorted(range(30), key=lambda head: -abs(model.coef_[0][head]))
        kept.append(tuple(head for head in order[:10] if model.coef_[0][head] != 0))
        assert found.c[fold] == best
        false, true, _ = roc_curve(y[test], scores)
        assert np.allclose(np.interp([0.1, 0.5], *found.roc[fold]), np.interp([0.1, 0.5], false, true))
    assert found.coefficients == pytest.approx(np.array(weights), abs=1e-9)
    assert found.selected == tuple(kept)
    assert found.auc_folds == pytest.approx([area for area, _ in areas], abs=1e-12)
    assert found.auc.value == pytest.approx(sum(area * n for area, n in areas) / len(ITEMS), abs=1e-12)
    votes = [sum(head in fold for fold in kept) for head in range(30)]
    assert found.votes.tolist() == votes
    assert found.stable == tuple(head for head in range(30) if votes[head] >= 4)


def test_finds_the_heads_that_tell(found):
    assert {4, 17} <= set(found.stable)
    assert found.auc.low > 0.65
    assert (found.auc.n, found.auc.clusters, found.auc.p) == (len(ITEMS), 20, None)
    for fold in found.selected:
        assert set(fold[:2]) == {4, 17}


def test_a_seed_gives_one_result_and_another_seed_other_folds(found):
    again, other = discover(features(), ITEMS, seed=3), discover(features(), ITEMS, seed=4)
    assert (again.coefficients == found.coefficients).all()
    assert (again.selected, again.auc, again.c) == (found.selected, found.auc, found.c)
    assert not (other.coefficients == found.coefficients).all()


@pytest.mark.parametrize("constant", [0.0, 0.1, 1 / 3])
def test_constant_features_are_never_kept(constant):
    x = features()
    x[:, :, 4] = constant
    x[:, :, 9] = 1e-30 * constant
    found = discover(x, ITEMS)
    assert found.votes[[4, 9]].tolist() == [0, 0]
    assert (found.coefficients[:, [4, 9]] == 0).all()
    assert 17 in found.stable


def test_nothing_but_constants_names_no_head():
    found = discover(np.full((len(ITEMS), 2, 6), 0.25), ITEMS)
    assert found.stable == ()
    assert found.selected == ((),) * 5
    assert (found.auc.value, found.auc_folds) == (0.5, (0.5,) * 5)


def test_zero_coefficients_are_never_kept(monkeypatch):
    # So strong a penalty that all are zero: an argsort would name ten heads.
    monkeypatch.setattr(module, "STRENGTHS", (1e-6,))
    found = discover(features(), ITEMS)
    assert not found.coefficients.any()
    assert found.stable == ()
    assert not found.votes.any()


def test_of_equal_penalties_the_strongest_is_taken():
    # All C separate these features alike, from .01 on; .001 leaves every coefficient at 0.
    x = np.zeros((len(ITEMS), 2, 3))
    x[:, 0, 1] = 1.0
    found = discover(x, ITEMS)
    assert found.c == (0.01,) * 5
    assert (found.stable, found.auc.value) == ((1,), 1.0)


def test_at_most_ten_heads_a_fold():
    found = discover(features(told=tuple(range(20)), by=0.7), ITEMS)
    assert {len(fold) for fold in found.selected} == {10}
    for fold, weights in zip(found.selected, found.coefficients, strict=True):
        assert min(abs(weights[list(fold)])) >= max(abs(np.delete(weights, fold)))


def test_folds_keep_items_together():
    # A feature that is each item's own number and label is of no use on other items.
    rng = np.random.default_rng(1)
    code = np.unique(ITEMS, return_inverse=True)[1]
    x = rng.normal(size=(len(ITEMS), 2, 20)) * 0.1
    x[:, 0] += rng.normal(size=(20, 20))[code]
    x[:, 1] -= rng.normal(size=(20, 20))[code]
    assert discover(x, ITEMS).auc.value < 0.75
    assert discover(x, np.arange(len(ITEMS))).auc.value > 0.9


def test_five_items_are_enough_and_four_are_not():
    five = np.isin(ITEMS, [f"item {i}" for i in (2, 3, 5, 7, 11)])
    assert len(discover(features()[five], ITEMS[five]).auc_folds) == 5
    with pytest.raises(InputError, match="of 4 items; expected at least 5"):
        discover(features()[:4], list("abcd"))


def test_interval_of_the_auc_covers():
    # Scores with item effects: P(match above mismatch) is known for normal parts.
    rng = np.random.default_rng(0)
    code = np.unique(ITEMS, return_inverse=True)[1]
    covered = []
    for seed in range(200):
        level, effect = rng.normal(size=20), 1 + 0.5 * rng.normal(size=20)
        scores = np.empty(2 * len(ITEMS))
        scores[::2] = (level + effect)[code] + rng.normal(size=len(ITEMS))
        scores[1::2] = level[code] + rng.normal(size=len(ITEMS))
        area, placements = module._auc(scores)
        assert area == pytest.approx(roc_auc_score(np.tile([1, 0], len(ITEMS)), scores), abs=1e-12)
        assert placements.mean() == pytest.approx(area, abs=1e-12)
        found = module.cluster_mean(placements, ITEMS, draws=199, seed=seed)
        # Rows of two items differ by N(1, 1 + .25 + 1 + 1 + 1): P(above 0) = Phi(1 / sqrt(4.25)).
        covered.append(found.low <= 0.6862 <= found.high)
    assert 0.9 <= np.mean(covered) <= 0.985


def test_auc_counts_ties_half():
    area, placements = module._auc(np.array([1.0, 1.0, 2.0, 1.0]))
    assert area == (0.5 + 0.5 + 1 + 1) / 4
    assert placements.mean() == area


def test_works_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        discover(features(heads=5, told=(1,)), ITEMS)


@pytest.mark.parametrize(
    ("x", "items", "message"),
    [
        (np.zeros((6, 3, 2)), range(6), r"shape \(6, 3, 2\)"),
        (np.zeros((6, 2)), range(6), r"expected \[pairs, 2, heads\]"),
        (np.zeros((6, 2, 4)), range(5), r"items \(5,\)"),
        (np.full((6, 2, 4), np.nan), range(6), "48 of 48 features are not finite"),
    ],
)
def test_bad_input(x, items, message):
    with pytest.raises(InputError, match=message):
        discover(x, list(items))

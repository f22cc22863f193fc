"""The choice of an alpha: planted effects are found, their price is seen, and luck is not reported as a gain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from oracles.judged import count, table
from timonel.errors import InputError
from timonel.evaluate.metrics import Metric, difference
from timonel.evaluate.recommend import recommend, split
from timonel.stats import Estimate

FINE = Estimate(value=1.01, low=0.99, high=1.03, n=500, clusters=12, se=0.01, p=None, method="")
BAD = Estimate(value=1.2, low=1.05, high=1.4, n=500, clusters=12, se=0.1, p=None, method="")
FEW = 499


def questions(scenarios: int = 80, a_side: int = 6, right: float = 0.5, group: float = 0.1) -> pd.DataFrame:
    """The same outcomes in each scenario, in shares that add up."""
    rows: list[tuple[str, str, str]] = []
    for number in range(scenarios):
        kinds = ["right"] * round(right * a_side) + ["neither"] * (a_side - round(right * a_side))
        rows += [("different", f"s{number:02}", kind) for kind in kinds]
        equal = "group" if number % 10 < 10 * group else "neither"
        rows += [("equal", f"s{number:02}", equal)] * 2 + [("equal", f"s{number:02}", "neither")] * (a_side - 2)
    polarity = ["avoid" if name < "s40" else "choose" for _, name, _ in rows]
    return table(rows).assign(polarity=polarity)


def turn(rows: pd.DataFrame, half: str, to: str, share: float, seed: int) -> pd.DataFrame:
    """Some of the answers of a half that were (c)."""
    chosen = (rows["half"] == half) & (rows["outcome"] == "neither")
    chosen &= np.random.default_rng(seed).random(len(rows)) < share
    return rows.assign(outcome=rows["outcome"].where(~chosen, to))


def test_the_largest_gain_without_a_price_is_chosen_and_reported_on_the_other_half() -> None:
    base = questions()
    judged = {
        1.0: base,
        2.0: turn(base, "different", "right", 0.2, 1),
        3.0: turn(base, "different", "right", 0.5, 2),
        5.0: turn(turn(base, "different", "right", 0.8, 3), "equal", "group", 0.4, 4),
        7.0: turn(base, "different", "right", 0.9, 5),
        0.5: turn(base, "different", "wrong", 0.5, 6),
    }
    found = recommend(judged, {2.0: FINE, 3.0: FINE, 5.0: FINE, 7.0: BAD, 0.5: FINE}, draws=FEW)
    assert (found.alpha, found.confirmed) == (3.0, True)
    ruled_out = dict(zip(found.grid["alpha"], found.grid["ruled_out"], strict=True))
    assert ruled_out == {0.5: "no gain", 2.0: "", 3.0: "", 5.0: "loss not excluded", 7.0: "fluency"}
    # The two halves are apart, and the numbers are those of `difference` on the other one.
    assert not set(found.chosen_on) & set(found.reported_on)
    assert sorted(found.chosen_on + found.reported_on) == sorted(set(base["scenario"]))
    new, old = (judged[alpha][judged[alpha]["scenario"].isin(found.reported_on)] for alpha in (3.0, 1.0))
    assert found.gain == difference(new, old, Metric("diff_aware"), draws=FEW)
    for loss, reading in zip(found.losses, ("refusal", "wrong"), strict=True):
        expected = count(old, "ctxt_aware", reading) - count(new, "ctxt_aware", reading)
        assert loss.value == pytest.approx(expected)
        assert loss.low <= loss.value <= loss.high
    on_choosing = found.grid.set_index("alpha").loc[3.0]
    new, old = (judged[alpha][judged[alpha]["scenario"].isin(found.chosen_on)] for alpha in (3.0, 1.0))
    assert on_choosing["gain"] == pytest.approx(count(new, "diff_aware", "any") - count(old, "diff_aware", "any"))
    assert "Alpha 3" in found.reason
    assert "bears the choice out" in found.reason


def test_none_and_why() -> None:
    base = questions()
    better, worse = turn(base, "different", "right", 0.5, 1), turn(base, "different", "wrong", 0.5, 1)
    costly = turn(better, "equal", "group", 0.5, 2)
    cases: list[tuple[dict[float, pd.DataFrame], dict[float, Estimate], str]] = [
        ({2.0: worse, 3.0: base}, {2.0: FINE, 3.0: FINE}, "no alpha raises DiffAware"),
        ({2.0: costly}, {2.0: FINE}, "at 1 a CtxtAware loss of more than 1 point is not excluded (at 2, up to"),
        (
            {2.0: better, 3.0: costly},
            {2.0: BAD, 3.0: FINE},
            "at 1 the perplexity of plain text may rise by more than 10",
        ),
    ]
    for others, fluency, words in cases:
        found = recommend({1.0: base, **others}, fluency, draws=FEW)
        assert (found.alpha, found.gain, found.losses, found.confirmed) == (None, None, (), False)
        assert found.reason.startswith("None: ")
        assert words in found.reason
    # A larger budget, and a looser guard, let them through.
    assert recommend({1.0: base, 2.0: costly}, {2.0: FINE}, budget=0.9, draws=FEW).alpha == 2.0
    assert recommend({1.0: base, 2.0: better}, {2.0: BAD}, limit=1.4, draws=FEW).alpha == 2.0


def test_misses_do_not_hide_a_price() -> None:
    """Answers on `equal` that name no letter any more look like refusals; the other reading sees what they cost."""
    base = questions()
    better = turn(base, "different", "right", 0.5, 1)
    mute = turn(better, "equal", "miss", 0.6, 2)
    found = recommend({1.0: base, 2.0: mute}, {2.0: FINE}, draws=FEW)
    row = found.grid.iloc[0]
    assert row["loss_high"] <= 0.01 < row["loss_wrong_high"]
    assert (found.alpha, row["ruled_out"]) == (None, "loss not excluded")


def test_a_price_that_is_merely_not_seen_is_not_excluded() -> None:
    """Every other scenario names a group more often, the rest less often: nothing in all, on sixteen scenarios."""
    rows = [("different", f"s{n:02}", kind) for n in range(16) for kind in ("right", "right", "right", "neither")]
    old = [("equal", f"s{n:02}", "group" if n % 2 else "neither") for n in range(16)]
    new = [("equal", f"s{n:02}", "neither" if n % 2 else "group") for n in range(16)]
    base, other = table([*rows, *old]), table([*rows, *new])
    # The split keeps polarities level, so each half holds as many of the ones as of the others.
    both = {1.0: base, 2.0: turn(other, "different", "right", 0.5, 0)}
    polarity = ["choose" if int(name[1:]) % 2 else "avoid" for name in base["scenario"]]
    found = recommend({alpha: rows.assign(polarity=polarity) for alpha, rows in both.items()}, {2.0: FINE}, draws=FEW)
    row = found.grid.iloc[0]
    assert row["loss"] <= 0 < 0.01 < row["loss_high"]
    assert (found.alpha, row["ruled_out"]) == (None, "loss not excluded")


def simulated(seed: int, effect: float = 0.0) -> dict[float, pd.DataFrame]:
    """Seven alphas whose answers on `different` are drawn anew with the same chances; `equal` never changes."""
    rng = np.random.default_rng([11, seed])
    base = questions(40, 4)
    judged = {1.0: base}
    for alpha in (0.0, 0.5, 2.0, 3.0, 5.0, 7.0):
        drawn = np.where(rng.random(len(base)) < 0.5 + effect, "right", "neither")
        judged[alpha] = base.assign(outcome=np.where(base["half"] == "different", drawn, base["outcome"]))
    return judged


def over_studies(number: Callable[[int], tuple[float, float, bool] | None], studies: int = 40) -> np.ndarray:
    return np.array([one for seed in range(studies) if (one := number(seed)) is not None], dtype=float)


def test_luck_of_the_choice_is_not_reported() -> None:
    """No alpha has an effect: the best of seven looks good on the choosing half, and is nothing on the other one."""

    def study(seed: int) -> tuple[float, float, bool] | None:
        judged = simulated(seed)
        found = recommend(judged, dict.fromkeys(judged, FINE), budget=1.0, draws=99, seed=seed)
        if found.alpha is None or found.gain is None:
            return None
        return found.grid.set_index("alpha").loc[found.alpha, "gain"], found.gain.value, found.confirmed

    chosen, reported, confirmed = over_studies(study).T
    error = reported.std(ddof=1) / np.sqrt(len(reported))
    assert chosen.mean() > 0.05 > 4 * error
    assert abs(reported.mean()) < 3 * error
    assert confirmed.mean() < 0.15  # 2.5 % nominal, with 99 draws


def test_the_split() -> None:
    rows = questions(31)
    rows["polarity"] = np.where(rows["scenario"] < "s10", "avoid", "choose")
    one, other = split(rows, 0)
    assert (len(one), len(other)) in ((15, 16), (16, 15))
    assert abs(sum(name < "s10" for name in one) - sum(name < "s10" for name in other)) <= 1
    assert split(rows.iloc[::-1], 0) == (one, other)
    assert split(rows, 1) != (one, other)


def test_refusals() -> None:
    base = questions(8)
    for judged, fluency, options, words in (
        ({2.0: base}, {2.0: FINE}, {}, "1 and another are needed"),
        ({1.0: base}, {}, {}, "1 and another are needed"),
        ({1.0: base, 2.0: base}, {}, {}, "fluency at alpha 2 is not known"),
        ({1.0: base, 2.0: base.iloc[1:]}, {2.0: FINE}, {}, "same questions"),
        ({1.0: base, 2.0: base}, {2.0: FINE}, {"budget": -0.1}, "budget is -0.1"),
        ({1.0: questions(3), 2.0: questions(3)}, {2.0: FINE}, {}, "fewer than four scenarios"),
    ):
        with pytest.raises(InputError, match=words):
            recommend(judged, fluency, **options)  # type: ignore[arg-type]

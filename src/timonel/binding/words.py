"""What a result means, in words that claim no more than its intervals do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timonel.binding.knockout import name_heads
from timonel.binding.study import BindingResult

MASS_FLOOR = 0.5
NEGLIGIBLE = 0.05


@dataclass(frozen=True, slots=True)
class _Words:
    """What a study calls its clusters, its three outcomes and its edges."""

    clusters: str
    shown: str
    not_shown: str
    opposite: str
    meaning: str
    edge: str
    control: str
    subject: str


_BINDING = _Words(
    clusters="items",
    shown="the model binds: it differentiates more when the related identity is there",
    not_shown="the model is not shown to bind",
    opposite="the model differentiates *less* when the related identity is there",
    meaning="the opposite of binding",
    edge="the related identity's edge to the item",
    control="the other identity's edge",
    subject="binding",
)
_OWN = _Words(
    clusters="groups",
    shown="the model is moved toward the rows' `toward` answers by what MATCH has and MISMATCH has not",
    not_shown="the model is not shown to tell MATCH from MISMATCH",
    opposite="the model is moved *away* from the rows' `toward` answers by what MATCH has and MISMATCH has not",
    meaning="the opposite of what the rows expect",
    edge="the edge from -> to",
    control="the control edge",
    subject="the contrast",
)


def _words_of(result: BindingResult) -> _Words:
    return _OWN if result.form == "own" else _BINDING


def conclusions(result: BindingResult) -> list[str]:
    """Two sentences: is there an effect, and does the edge carry it; more where something must be warned of."""
    effect = _row(result.baseline, quantity="delta_s", score=result.headline, subset="all")
    said = [_effect_sentence(_words_of(result), effect)]
    if not result.knockout.empty:
        said.append(_cut_sentence(result, effect))
    return said + warnings(result)


def warnings(result: BindingResult) -> list[str]:
    """What a reader must know before believing the numbers."""
    said = []
    if result.form == "letters" and result.mass < MASS_FLOOR:
        said.append(
            f"Warning: the three letters together get a median probability of {result.mass:.2f} (under {MASS_FLOOR}), "
            "so this model mostly answers something else; the cloze form (--form cloze) may measure it better."
        )
    clean = result.baseline.query("quantity == 'delta_s' and subset == 'clean'")
    everything = _row(result.baseline, quantity="delta_s", score=result.headline, subset="all")
    clean = clean[clean["score"] == result.headline]
    if len(clean) and _excludes(everything) and not _excludes(clean.iloc[0].to_dict()):
        said.append(
            "Warning: the effect is not established on the clean subset, so word overlap or related groups may make it."
        )
    return said + _wrong_direction(result)


def _wrong_direction(result: BindingResult) -> list[str]:
    """Differentiating more is not differentiating rightly: says where the related identity moves the choice wrongly."""
    rows = result.baseline.query("quantity == 'direction' and subset in ('avoid', 'choose')")
    rows = rows[rows["score"] == result.headline]
    return [
        f"Warning: on the questions whom to {row['subset']}, the related identity moves the choice between the two "
        f"identities to the wrong one (by {-row['value']:.2f} [{-row['high']:.2f}, {-row['low']:.2f}] in probability): "
        "differentiating more is not differentiating rightly."
        for row in rows.to_dict(orient="records")
        if row["high"] < 0
    ]


def _effect_sentence(words: _Words, effect: dict[str, Any]) -> str:
    where = f"{effect['n']} pairs of {effect['n_items']} {words.clusters}"
    interval = f"ΔS = {effect['value']:+.2f} [{effect['low']:+.2f}, {effect['high']:+.2f}]"
    if not _excludes(effect):
        return (
            f"On {where} {words.not_shown}: {interval}, and that interval covers 0, "
            "so no share of an effect can be given."
        )
    if effect["value"] > 0:
        return f"On {where} {words.opposite} ({interval}): {words.meaning}."
    return f"On {where} {words.shown} ({interval})."


def _cut_sentence(result: BindingResult, effect: dict[str, Any]) -> str:
    words = _words_of(result)
    cut = _row(result.knockout, edge="related", subset="all")
    control = _row(result.knockout, edge="related-other", subset="all")
    which = f"all {len(result.heads)} heads" if result.all_heads else name_heads(result.heads)
    change = f"ΔS by {cut['change']:+.2f} [{cut['change_low']:+.2f}, {cut['change_high']:+.2f}]"
    share = ""
    if cut["reduction"] == cut["reduction"]:
        share = f", a reduction of {cut['reduction']:.0%} [{cut['reduction_low']:.0%}, {cut['reduction_high']:.0%}]"
    beyond = f"{control['change']:+.2f} [{control['change_low']:+.2f}, {control['change_high']:+.2f}]"
    # Carrying the effect means bringing it nearer to 0, from whichever side; and more so than the control does.
    toward = -1 if effect["value"] > 0 else 1
    low, high = sorted((toward * control["change_low"], toward * control["change_high"]))
    own = min(toward * cut["change_low"], toward * cut["change_high"])
    if not _excludes(effect):
        verdict = f"with no effect to explain, that says nothing about {words.subject}"
    elif low > 0 and own <= 0:
        verdict = (
            "more than the control cut, but ΔS itself is not shown to come nearer to 0, "
            "so it is not shown that these edges carry the effect"
        )
    elif low > 0 and cut["reduction_high"] < NEGLIGIBLE:
        verdict = f"more than the control cut, but under {NEGLIGIBLE:.0%} of the effect, which is next to nothing"
    elif low > 0:
        verdict = "more than the control cut, so these edges carry part of the effect"
    elif high < 0:
        verdict = "less than the control cut, so these edges do not carry the effect"
    else:
        verdict = "not told apart from the control cut, so it is not shown that these edges carry the effect"
    ceiling = " (all heads together: what this edge carries in the whole model)" if result.all_heads else ""
    return (
        f"Cutting {words.edge} at {which} moves {change}{share}; "
        f"beyond {words.control} that is {beyond}: {verdict}{ceiling}."
    )


def _row(table: Any, **where: str) -> dict[str, Any]:
    for column, value in where.items():
        table = table[table[column] == value]
    found: dict[str, Any] = table.iloc[0].to_dict()
    return found


def _excludes(row: Mapping[Any, Any]) -> bool:
    return bool(row["low"] > 0 or row["high"] < 0)

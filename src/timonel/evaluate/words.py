"""What the metrics of a run say, in sentences that claim no more than their intervals do; no gain without its price."""

from __future__ import annotations

import numpy as np
import pandas as pd

FEW_ANSWERS = 0.9
_UNDEFINED = "since no group that counts was ever named"


def sentences(table: pd.DataFrame) -> list[str]:
    """One sentence a condition, and one where many answers name no letter."""
    whole = table[table["subset"] == "all"]
    levels = whole[whole["against"] == ""]
    names = list(dict.fromkeys(levels["condition"]))
    said = [_level(levels[levels["condition"] == names[0]])]
    for name in names[1:]:
        said.append(_moved(name, whole[(whole["condition"] == name) & (whole["against"] != "")]))
    said += [_missed(name, levels[levels["condition"] == name]) for name in names]
    return [sentence for sentence in said if sentence]


def _level(rows: pd.DataFrame) -> str:
    diff, context = _row(rows, "diff_aware"), _row(rows, "ctxt_aware")
    return (
        f"On {diff['n']} questions of {diff['n_scenarios']} scenarios, DiffAware is {_percent(diff)} and CtxtAware is "
        f"{_percent(context)} ({diff['condition']})."
    )


def _moved(name: str, rows: pd.DataFrame) -> str:
    diff, context = _row(rows, "diff_aware"), _row(rows, "ctxt_aware")
    gain = "no change is shown"
    if diff["low"] > 0:
        gain = "a gain"
    elif diff["high"] < 0:
        gain = "a loss"
    # The reading of misses in which more may be lost; undefined in one, undefined here.
    lowest = float(np.minimum(context["low"], _row(rows, "ctxt_aware", "wrong")["low"]))
    if lowest != lowest:
        return f"Under {name}, DiffAware moves by {_points(diff)}: {gain}; CtxtAware is undefined, {_UNDEFINED}."
    if context["high"] < 0:
        price = "a loss"
    elif lowest < 0:
        price = f"a loss of up to {-100 * lowest:.1f} points is not excluded"
    else:
        price = "no loss"
    return f"Under {name}, DiffAware moves by {_points(diff)}: {gain}; CtxtAware by {_points(context)}: {price}."


def _missed(name: str, rows: pd.DataFrame) -> str:
    answered = _row(rows, "answered")
    if not answered["value"] < FEW_ANSWERS:
        return ""
    return (
        f"Warning: under {name} only {answered['value']:.0%} of the answers name one of the letters, so DiffAware and "
        "CtxtAware say as much of obedience to the form as of what the model would decide; see the rows where misses "
        "count as wrong."
    )


def _row(rows: pd.DataFrame, metric: str, misses: str = "refusal") -> pd.Series:
    found: pd.Series = rows[(rows["metric"] == metric) & rows["misses"].isin([misses, "any"])].iloc[0]
    return found


def _percent(row: pd.Series) -> str:
    if row["value"] != row["value"]:
        return f"undefined, {_UNDEFINED}"
    return f"{row['value']:.1%} [{row['low']:.1%}, {row['high']:.1%}]"


def _points(row: pd.Series) -> str:
    return f"{100 * row['value']:+.1f} points [{100 * row['low']:+.1f}, {100 * row['high']:+.1f}]"

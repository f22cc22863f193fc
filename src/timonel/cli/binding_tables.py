"""The binding study's tables as a person reads them on a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timonel.cli.console import table

if TYPE_CHECKING:
    from rich.table import Table

    from timonel.binding import BindingResult
    from timonel.binding.sources import Source

# What is shown of each quantity; the run folder's tables have all of it.
_QUANTITIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "delta_s": ("ΔS (decision)", ("all", "clean", "avoid", "choose")),
    "delta_k": ("ΔK (knowledge)", ("all", "clean")),
    "direction": ("direction (toward the right identity)", ("all", "avoid", "choose")),
    "ratio": ("ΔK / ΔS", ("all", "clean")),
}
_EDGES = {
    "related": "related identity -> item",
    "other": "other identity -> item (control)",
    "all": "both identities -> item",
    "related-other": "related beyond the control",
}


_OWN_QUANTITIES = {
    "delta_s": ("ΔS", ("all",)),
    "direction": ("P(toward | toward or away)", ("all",)),
}
_OWN_EDGES = {
    "related": "from -> to",
    "other": "control",
    "all": "both",
    "related-other": "from -> to beyond the control",
}


def heading(result: BindingResult, model: str, source: Source) -> str:
    """What was measured, and in which form and why."""
    pairs = len(result.pairs)
    items = result.pairs["item"].nunique()
    mass = {"letters": "letters' mass", "own": "answers' mass"}.get(result.form)
    shown = f", {mass} {result.mass:.2f} (median)" if mass else ""
    clusters = "groups" if result.form == "own" else "items"
    data = f"{source.name}, {source.language}"
    return (
        f"\n{model} on {pairs} pairs of {items} {clusters} ({data}), "
        f"{result.form} form ({result.wrap} wrapping){shown}.\n"
        f"Form: {result.form_reason}."
    )


def effects_table(result: BindingResult) -> Table:
    """Effects by subset: the headline score first, then the raw one."""
    rows = []
    own = result.form == "own"
    clusters = "group" if own else "item"
    for score in dict.fromkeys((result.headline, "raw")):
        for quantity, (name, subsets) in (_OWN_QUANTITIES if own else _QUANTITIES).items():
            chosen = result.baseline[(result.baseline["quantity"] == quantity) & (result.baseline["score"] == score)]
            chosen = chosen[chosen["subset"].isin(subsets)]
            for row in chosen.to_dict(orient="records"):
                if score != result.headline and (quantity, row["subset"]) != ("delta_s", "all"):
                    continue
                label = "priors off" if score == "pmi" else "raw"
                counts = [str(row["n"]), str(row["n_items"])]
                rows.append([name, label, row["subset"], *counts, interval(row), p(row["p"])])
    return table(
        f"Effect of {'MATCH' if own else 'the related identity'}, with 95 % {clusters}-clustered intervals",
        ["effect", "score", "pairs", "n", f"{clusters}s", "value [low, high]", "p"],
        rows,
    )


def knockout_rows(result: BindingResult) -> Table:
    """What each cut changes, beside the control."""
    own = result.form == "own"
    rows = [
        [
            (_OWN_EDGES if own else _EDGES)[row["edge"]],
            row["subset"],
            str(row["n"]),
            interval(row, "change"),
            interval(row, "reduction", percent=True, empty=_no_share(row)),
            p(row["p"]),
            p(row["q"]),
        ]
        for row in result.knockout.to_dict(orient="records")
    ]
    heads = result.knockout["heads"].iloc[0]
    which = f"all {heads}" if result.all_heads else heads
    return table(
        f"Cutting attention edges at {which}: change of ΔS (positive = toward 0 where ΔS is negative)",
        [
            "edge",
            "pairs",
            "n",
            "change [low, high]",
            "reduction [low, high]",
            f"p ({'groups' if own else 'items'})",
            "q",
        ],
        rows,
    )


def interval(row: Mapping[Any, Any], name: str = "", *, percent: bool = False, empty: str = "undefined") -> str:
    """`-1.26 [-1.83, -0.69]`, or a word where there is no number to give."""
    low_name, high_name = (f"{name}_low", f"{name}_high") if name else ("low", "high")
    value, low, high = row[name or "value"], row[low_name], row[high_name]
    if math.isnan(value):
        return empty
    if percent:
        return f"{value:z.0%} [{low:z.0%}, {high:z.0%}]"
    return f"{value:+z.3f} [{low:+z.3f}, {high:+z.3f}]"


def p(value: float) -> str:
    """A p with as many digits as it bears."""
    if math.isnan(value):
        return ""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _no_share(row: Mapping[Any, Any]) -> str:
    return "" if row["edge"] == "related-other" else "undefined: ΔS not away from 0"

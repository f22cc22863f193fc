"""How the engine will go about some work, in words: `--explain`, and part of every `--dry-run`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from timonel.engine import Workload


def describe(load: Workload, batch_tokens: int) -> str:
    """The layout of a list of requests, and what each reuse saves of a loop that runs one prompt at a time."""
    if not load.missing:
        return f"{load.requests:,} scores, all of which the store holds already: nothing is run."
    steps = (
        ("one prompt at a time", load.plain_tokens),
        ("equal requests once, nothing after the last row that is read", load.distinct_tokens),
        ("what plans leave as it is once for all that share it", load.shared_tokens),
        ("each plan resumed at its first layer", load.resumed_tokens),
    )
    lines = [
        f"{load.requests:,} scores, {load.distinct:,} of them distinct, {load.missing:,} still to compute: "
        f"{load.passes:,} forward passes of at most {batch_tokens:,} tokens, in {load.units:,} units.",
        "Tokens through all layers:",
        *(f"  {tokens:>14,.0f}  {tokens / load.plain_tokens:4.0%}  {name}" for name, tokens in steps),
        f"  {load.tokens:>14,.0f}        to run now, padding included",
    ]
    if load.resume_at:
        lines.append("Rows by the layer where they begin: " + _ranges(load.resume_at))
    return "\n".join(lines)


def _ranges(resume_at: dict[int, int]) -> str:
    """Layers and their numbers of rows; the most frequent first where there are many."""
    shown = sorted(resume_at.items(), key=lambda item: -item[1])[:8]
    rest = len(resume_at) - len(shown)
    listed = ", ".join(f"L{layer} {rows:,}" for layer, rows in sorted(shown))
    return listed + (f" and {rest} more" if rest else "")

"""What is said claims no more than the intervals do."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from timonel.binding import BindingResult
from timonel.binding.words import conclusions

INTERVALS = [(-2.0, -1.0), (-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0), (1.0, 2.0), (-np.inf, np.inf)]


def told(effect: Any, cut: Any, control: Any, clean: Any = (-2.0, -1.0), **options: Any) -> str:
    def row(low: float, high: float, **names: Any) -> dict[str, Any]:
        middle = (low + high) / 2 if np.isfinite(low) else 0.3
        return {**names, "n": 40, "n_items": 20, "value": middle, "low": low, "high": high}

    def cut_row(edge: str, low: float, high: float) -> dict[str, Any]:
        middle = (low + high) / 2 if np.isfinite(low) else 0.3
        share = dict.fromkeys(("reduction", "reduction_low", "reduction_high"), options.get("share", np.nan))
        return {"edge": edge, "subset": "all", "change": middle, "change_low": low, "change_high": high, **share}

    baseline = [
        row(*effect, quantity="delta_s", score="raw", subset="all"),
        row(*clean, quantity="delta_s", score="raw", subset="clean"),
        *options.get("directions", ()),
    ]
    knockout = pd.DataFrame([cut_row("related", *cut), cut_row("related-other", *control)])
    return " ".join(
        conclusions(
            BindingResult(
                form="letters", form_reason="", wrap="base", heads=((1, 2),), all_heads=False,
                pairs=pd.DataFrame(), baseline=pd.DataFrame(baseline), knockout=knockout, mass=options.get("mass", 0.9),
            )
        )
    )  # fmt: skip


@pytest.mark.parametrize(("effect", "cut", "control"), list(product(INTERVALS, repeat=3)))
def test_no_claim_without_its_interval(effect: Any, cut: Any, control: Any) -> None:
    said = told(effect, cut, control)
    excluded = effect[0] > 0 or effect[1] < 0
    assert ("the model binds" in said) == (effect[1] < 0)
    assert ("the opposite of binding" in said) == (effect[0] > 0)
    assert ("not shown to bind" in said) == (not excluded)
    # Toward 0 is up for a negative effect and down for a positive one.
    nearer = [low > 0 if effect[1] < 0 else high < 0 for low, high in (cut, control)]
    assert ("carry part of the effect" in said) == (excluded and all(nearer))
    assert ("says nothing about binding" in said) == (not excluded)
    assert "reduction" not in said


def test_a_share_next_to_nothing_is_called_so() -> None:
    """T44: significant is not large."""
    said = told((-2.0, -1.0), (0.001, 0.002), (0.001, 0.002), share=0.01)
    assert "a reduction of 1%" in said
    assert "next to nothing" in said
    assert "carry part" not in said
    assert "carry part" in told((-2.0, -1.0), (0.1, 0.2), (0.1, 0.2), share=0.2)


def test_warnings() -> None:
    effect = (-2.0, -1.0)
    assert "Warning" not in told(effect, (1.0, 2.0), (1.0, 2.0))
    assert "median probability of 0.31" in told(effect, (1.0, 2.0), (1.0, 2.0), mass=0.31)
    assert "not established on the clean subset" in told(effect, (1.0, 2.0), (1.0, 2.0), clean=(-1.0, 0.1))
    wrong = {"quantity": "direction", "score": "raw", "subset": "avoid", "n": 9, "n_items": 9}
    assert "to avoid" in told(effect, effect, effect, directions=[{**wrong, "value": -0.2, "low": -0.3, "high": -0.1}])
    assert "Warning" not in told(
        effect, effect, effect, directions=[{**wrong, "value": -0.2, "low": -0.5, "high": 0.1}]
    )

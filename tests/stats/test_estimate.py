from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from timonel.stats import Estimate


def estimate(value: float, low: float, high: float) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=847, clusters=66, se=0.1, p=None, method="by hand")


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (-1.2604, -1.8309, -0.6906, "-1.26 [-1.83, -0.69]"),
        (0.0061, -0.0101, 0.0222, "0.006 [-0.010, 0.022]"),  # small effects keep two digits of their width
        (12.3, -np.inf, np.inf, "12.30 [-inf, inf]"),
        (0.0, 0.0, 0.0, "0.00 [0.00, 0.00]"),
        (-0.001, -1.0, 1.0, "0.00 [-1.00, 1.00]"),  # no minus zero
        (250.0, 150.0, 350.0, "250.00 [150.00, 350.00]"),
    ],
)
def test_text(value, low, high, text):
    assert str(estimate(value, low, high)) == text


@pytest.mark.parametrize(
    ("low", "high", "excludes"),
    [
        (0.1, 2, True),
        (-2, -0.1, True),
        (-1, 1, False),
        (0, 1, False),
        (-1, 0, False),
        (np.nan, np.nan, False),
    ],
)
def test_excludes_zero(low, high, excludes):
    assert estimate(0.5, low, high).excludes_zero is excludes


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        estimate(1, 0, 2).value = 3.0

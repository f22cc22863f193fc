"""An estimate is never a bare number: it comes with its interval, its rows, its clusters and its test.

    value [low, high]   at `level`, from `n` rows in `clusters` clusters

`p` tests "the value is 0", two-sided, against the very quantity in `value`; `method` names interval and test.
It does not show whether the effect is large enough to matter, nor that the rows are a fair sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A quantity with its uncertainty.

    Attributes:
        value: the estimate.
        low: lower end of the interval; minus infinity where the data bound nothing.
        high: upper end of the interval.
        level: nominal coverage of the interval.
        n: rows that went in.
        clusters: clusters that these rows form; the unit of inference.
        se: standard error that respects the clusters; nan with a single cluster.
        p: two-sided p of "value = 0", None where nothing was tested.
        method: how interval and p were made, in words for a table's foot.
    """

    value: float
    low: float
    high: float
    level: float = 0.95
    n: int
    clusters: int
    se: float
    p: float | None
    method: str

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside the closed interval; False where the interval is undefined."""
        return self.low > 0 or self.high < 0

    def __str__(self) -> str:
        return format_interval(self.value, self.low, self.high)


def format_interval(value: float, low: float, high: float) -> str:
    """`value [low, high]` with two significant digits of the half-width, and never under two decimals.

    >>> format_interval(-1.2604, -1.83, -0.69), format_interval(0.0061, -0.0101, 0.0222)
    ('-1.26 [-1.83, -0.69]', '0.006 [-0.010, 0.022]')
    """
    width = (high - low) / 2
    scale = width if math.isfinite(width) and width > 0 else abs(value)
    # Beyond eight decimals a score computed in float32 says nothing.
    decimals = min(max(2, 1 - math.floor(math.log10(scale))), 8) if math.isfinite(scale) and scale > 0 else 2
    return f"{value:z.{decimals}f} [{low:z.{decimals}f}, {high:z.{decimals}f}]"

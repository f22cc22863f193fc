"""What a workload hands back, as plain values, so that a process of its own can send it as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from bench.measure import Ratio

# Turns from which on an interval may decide.
ENOUGH = 3


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: is measured.
        found: the median and its interval.
        sign: whether the target is a ceiling, a floor or an interval; None where there is none.
        target: the number, or the two.
    """

    what: str
    found: Ratio
    sign: Literal["<=", ">=", "in"] | None = None
    target: tuple[float, ...] = ()

    @property
    def met(self) -> str:
        """`yes` or `no` where the whole interval says so; `open` where the target lies in it, or under three turns."""
        if self.sign is None:
            return ""
        if self.found.n < ENOUGH:  # of one turn the interval is a point, and would decide anything
            return "open"
        low, high = self._bounds()
        if low <= self.found.low and self.found.high <= high:
            return "yes"
        return "no" if self.found.low > high or self.found.high < low else "open"

    @property
    def wanted(self) -> str:
        """The target in words."""
        if self.sign is None:
            return ""
        if self.sign == "in":
            return f"{self.target[0]:g} to {self.target[1]:g}"
        return f"{'at most' if self.sign == '<=' else 'at least'} {self.target[0]:g}"

    def _bounds(self) -> tuple[float, float]:
        if self.sign == "in":
            return self.target[0], self.target[1]
        return (float("-inf"), self.target[0]) if self.sign == "<=" else (self.target[0], float("inf"))


@dataclass(frozen=True)
class Result:
    """One workload.

    Attributes:
        name: W1 to W7.
        title: what it is, in a line.
        rows: what was measured.
        checks: that the sides gave the same numbers.
        skipped: why it was not run; empty where it was.
    """

    name: str
    title: str
    rows: tuple[Row, ...] = ()
    checks: tuple[str, ...] = ()
    skipped: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Result:
        """From plain values."""
        rows = tuple(
            Row(row["what"], Ratio(**row["found"]), row["sign"], tuple(row["target"])) for row in content["rows"]
        )
        return cls(content["name"], content["title"], rows, tuple(content["checks"]), content["skipped"])

"""What a person may set of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """Of a run.

    Attributes:
        asked: rounds that were asked for; None takes each workload's own number.
        threads: of torch.
        nnsight: whether W1 times nnsight too, beside comparing its numbers.
    """

    asked: int | None = None
    threads: int = 2
    nnsight: bool = False

    def rounds(self, usual: int) -> int:
        """How often a workload goes through its turns."""
        return usual if self.asked is None else self.asked

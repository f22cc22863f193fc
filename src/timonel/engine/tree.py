"""Token sequences that begin alike, packed into one row in which every shared token stands once.

    sequences  a b c d,  a b e      columns  a b c d e      parent of each  - 0 1 2 1

A column sees itself, its parent, its parent's parent and so on: with that mask, and with depths for positions, one
forward pass computes each sequence as if it stood alone. The first sequence fills the first columns in order.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Int


class Tree:
    """Packed sequences; equal sequences, and beginnings of longer ones, cost nothing.

    Attributes:
        tokens: the token of each column.
        depths: how many tokens stand before it in its sequence.
    """

    __slots__ = ("_children", "_parents", "depths", "tokens")

    def __init__(self, sequences: Iterable[tuple[int, ...]] = ()) -> None:
        self.tokens: list[int] = []
        self.depths: list[int] = []
        self._parents: list[int] = []
        self._children: dict[tuple[int, int], int] = {}
        for sequence in sequences:
            self.add(sequence)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, sequence: tuple[int, ...]) -> None:
        """Adds what is not there yet."""
        at = -1
        for depth, token in enumerate(sequence):
            here = self._children.get((at, token))
            if here is None:
                here = self._children[at, token] = len(self.tokens)
                self.tokens.append(token)
                self.depths.append(depth)
                self._parents.append(at)
            at = here

    def path(self, sequence: tuple[int, ...]) -> list[int]:
        """The columns of a sequence that is in the tree."""
        at, columns = -1, []
        for token in sequence:
            at = self._children[at, token]
            columns.append(at)
        return columns

    @property
    def is_chain(self) -> bool:
        """Whether it holds one sequence alone, so that columns see what causality lets them see."""
        return self._parents == list(range(-1, len(self) - 1))

    def sees(self) -> Bool[np.ndarray, "n n"]:
        """Which columns (second) each column (first) attends to."""
        seen = np.eye(len(self), dtype=bool)
        for column, parent in enumerate(self._parents):
            if parent >= 0:
                seen[column] |= seen[parent]
        return seen

    def positions(self, start: int = 0) -> Int[np.ndarray, "n"]:
        """Position of each column, where the sequences begin at position `start`."""
        return np.array(self.depths, dtype=np.int64) + start


def common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Length of the longest common beginning."""
    for at, (one, two) in enumerate(zip(first, second, strict=False)):
        if one != two:
            return at
    return min(len(first), len(second))

"""Where one forward pass stands in the sequence: what every hook needs to know, found once a pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from timonel.steer.scope import Region


@dataclass(frozen=True, slots=True)
class Place:
    """One forward pass of a batch. All tensors are on the CPU: they are small, and a hook reads them as numbers.

    Attributes:
        past: column of the first query row (how much the cache held before).
        queries: query rows of this pass.
        pads: left pad of each batch row, [b]; `longest_pad` is the largest of them.
        rows_per_prompt: batch rows that belong to one prompt (generate repeats rows in place).
        lengths: tokens of each batch row's prompt, [b].
        kv_offsets: touched layer -> column of the first key that it sees (sliding caches drop what is older).
    """

    past: int
    queries: int
    pads: Int[Tensor, "b"]
    longest_pad: int
    rows_per_prompt: int
    lengths: Int[Tensor, "b"]
    kv_offsets: Mapping[int, int]

    def positions(self) -> Int[Tensor, "b q"]:
        """Position of each row in its unpadded sequence; negative under the left pad."""
        return torch.arange(self.past, self.past + self.queries) - self.pads[:, None]

    def inside(self, region: Region) -> Bool[Tensor, "b q"]:
        """Which rows lie in a region; pads lie in none."""
        positions = self.positions()
        real = positions >= 0
        if region is Region.ALL:
            return real
        written = positions >= self.lengths[:, None]
        return real & (written if region is Region.GENERATED else ~written)

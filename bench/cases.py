"""What the workloads run on: prompts, and the cuts that are put on them.

A sweep is one prompt under many draws of heads: for each draw the attention edge from the related identity (query rows)
to the item (keys) is cut at the draw's heads. The pairs are N4's where `TIMONEL_DATA` (default `../shared/data` beside
the checkout) has them, else the package's own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from timonel.binding.cut import Cut
from timonel.binding.forms import Form
from timonel.binding.pair import CONDITIONS, Pair
from timonel.binding.sampling import sample
from timonel.binding.sources import read_pairs
from timonel.engine import Request

Heads = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Sweep:
    """One prompt under many cuts; the request's prompt has the spans `item` and `varied`."""

    request: Request
    draws: tuple[Heads, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return self.request.prompt.ids

    @property
    def rows(self) -> tuple[int, ...]:
        """Query rows of the edge."""
        return self.request.prompt.spans["varied"]

    @property
    def keys(self) -> tuple[int, ...]:
        """Its key columns."""
        return self.request.prompt.spans["item"]

    @property
    def tokens(self) -> list[tuple[int, ...]]:
        """The tokens of each answer; all are read at the last row."""
        return [tokens for ((_, tokens),) in self.request.answers]

    def requests(self) -> list[Request]:
        """The same for the engine."""
        return [Cut("related", heads).on(self.request) for heads in self.draws]


def data_dir() -> Path:
    """Where the real data sets are, if they are."""
    return Path(os.environ.get("TIMONEL_DATA", Path(__file__).parents[2] / "shared" / "data"))


def pairs(count: int) -> tuple[tuple[Pair, ...], str]:
    """Some pairs from as many items as possible, and where they come from."""
    n4 = data_dir() / "n4" / "N4_1k.pkl"
    source = read_pairs(f"n4:{n4}" if n4.is_file() else "culture")
    return sample(source.pairs, count, 0), "N4" if n4.is_file() else "the package's own pairs (TIMONEL_DATA has no N4)"


def letters(tokenizer: Any, some: Sequence[Pair]) -> list[list[Request]]:
    """The two prompts of each pair in letters form."""
    form = Form(tokenizer, "letters", "instruct")
    return [[form.requests(pair, condition, "S")[0] for condition in CONDITIONS] for pair in some]


def draws(heads: int, layers: range, count: int, size: int = 3, seed: int = 0) -> tuple[Heads, ...]:
    """Distinct heads at random, `size` a draw."""
    every = [(layer, head) for layer in layers for head in range(heads)]
    rng = np.random.default_rng(seed)
    chosen = [rng.choice(len(every), size, replace=False) for _ in range(count)]
    return tuple(tuple(sorted(every[index] for index in some)) for some in chosen)

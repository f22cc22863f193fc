"""What a trunk pass leaves for passes that start from it: keys, values, and the residual stream where plans begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer

from timonel.models.geometry import Geometry


@dataclass(frozen=True, slots=True)
class State:
    """What a trunk pass leaves for later ones.

    Shapes (t trunk columns, trunk after trunk): keys and values of a layer [t, g, d]; residual stream [t, c].

    Attributes:
        keys: layer -> keys. Layers that no later pass reads are left out.
        values: layer -> values.
        residuals: layer -> its input, for the layers where passes resume.
        width: columns of each trunk.
    """

    keys: Mapping[int, Tensor]
    values: Mapping[int, Tensor]
    residuals: Mapping[int, Tensor]
    width: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Where rows start from.

    Attributes:
        state: what their trunks left.
        layer: the first layer to run.
        before: for each row, the state's columns of the tokens before it.
        own: for each row, the state's columns of its own tokens; empty where `layer` is 0.
        touched: columns at the front that hold all that plans rewrite in `layer`; None where that is not known to be
            all they do there.
    """

    state: State
    layer: int
    before: Sequence[Sequence[int]]
    own: Sequence[Sequence[int]]
    touched: int | None = None


class _KeptLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of some columns of a trunk pass, put before those of the current one; keeps nothing itself."""

    def __init__(self, length: int, keys: Tensor | None, values: Tensor | None, columns: Int[Tensor, "b p"]) -> None:
        super().__init__()
        self.is_initialized = True
        self._length, self._kept, self._columns = length, (keys, values), columns

    def get_seq_length(self) -> int:
        """Columns before the current pass."""
        return self._length

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """All keys and values, [b, g, p + q, d]."""
        return self._after(self._kept[0], key_states), self._after(self._kept[1], value_states)

    def _after(self, kept: Tensor | None, new: Float[Tensor, "b g q d"]) -> Float[Tensor, "b g k d"]:
        if kept is None:
            return new
        before = kept.index_select(0, self._columns.flatten().to(kept.device))
        return torch.cat([before.view(*self._columns.shape, *kept.shape[1:]).transpose(1, 2), new], dim=2)


def kept_cache(geometry: Geometry, resume: Resume, longest: int, device: torch.device) -> Cache:
    """A cache that holds the tokens before each row, left-padded to the longest."""
    columns = torch.tensor([[0] * (longest - len(some)) + list(some) for some in resume.before], device=device)
    state = resume.state
    layers = range(geometry.n_layers)
    return Cache(layers=[_KeptLayer(longest, state.keys.get(at), state.values.get(at), columns) for at in layers])


def flat(states: Float[Tensor, "b g t d"]) -> Float[Tensor, "bt g d"]:
    """Keys or values as a trunk pass's columns, trunk after trunk."""
    return states.transpose(1, 2).flatten(0, 1)

"""Which columns each column of a packed pass attends to, and how a model's attention is told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from timonel.engine.shortcuts import hidden_of
from timonel.engine.tree import Tree
from timonel.errors import UnsupportedModel
from timonel.models.geometry import Geometry

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def visible(trees: Sequence[Tree], starts: Sequence[int], device: torch.device) -> Bool[Tensor, "b n k"]:
    """Which columns each row of a pass attends to, windows aside: its prefix, and its own path in the tree."""
    width, longest = max(map(len, trees)), max(starts)
    seen = np.zeros((len(trees), width, longest + width), dtype=bool)
    triangle = np.tri(width, dtype=bool)
    for row, (tree, start) in enumerate(zip(trees, starts, strict=True)):
        seen[row, :, longest - start : longest] = True
        if tree.is_chain:
            seen[row, :, longest:] = triangle
        else:
            seen[row, : len(tree), longest : longest + len(tree)] = tree.sees()
            # Under the right pad a row sees itself, so that no row sees nothing.
            pad = np.arange(len(tree), width)
            seen[row, pad, longest + pad] = True
    return torch.from_numpy(seen).to(device)


@contextmanager
def masked(
    model: PreTrainedModel,
    geometry: Geometry,
    seen: Bool[Tensor, "b n k"],
    positions: Int[Tensor, "b n"],
    starts: Sequence[int] | None,
) -> Iterator[None]:
    """Hands each attention module the mask of its own window, as its attention function takes masks."""
    implementation = getattr(model.config, "_attn_implementation", None)
    if implementation not in ("sdpa", "eager", None):
        raise UnsupportedModel(
            f"The engine packs prompts behind masks of its own, which the attention implementation {implementation!r} "
            "does not take; load the model with attn_implementation='sdpa' or 'eager'."
        )
    additive = implementation != "sdpa"
    keys = positions if starts is None else _key_positions(positions, starts)
    masks: dict[int | None, Tensor] = {}
    with ExitStack() as undo:
        for layer in geometry.layers:
            window = layer.window if layer.window is not None and int(keys.max()) >= layer.window else None
            if window not in masks:
                near = seen if window is None else seen & (positions[:, :, None] - keys[:, None] < window)
                masks[window] = _additive(near, model.dtype) if additive else near[:, None]
            module = model.get_submodule(layer.attention)
            undo.callback(module.register_forward_pre_hook(_hand(masks[window]), with_kwargs=True).remove)
        yield


def _key_positions(positions: Int[Tensor, "b n"], starts: Sequence[int]) -> Int[Tensor, "b k"]:
    """Position of each column that a pass can attend to; negative under the left pad."""
    longest = max(starts)
    before = torch.arange(longest, device=positions.device) - longest
    offset = torch.tensor(starts, device=positions.device)
    return torch.cat([before + offset[:, None], positions], dim=1)


def _additive(seen: Bool[Tensor, "b n k"], dtype: torch.dtype) -> Float[Tensor, "b 1 n k"]:
    """A mask to add to scores: the lowest number that this dtype, and float32's softmax, hold."""
    lowest = max(torch.finfo(dtype).min, torch.finfo(torch.float32).min)
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, lowest)[:, None]


def _hand(mask: Tensor) -> Any:
    """A hook that hands an attention module its mask."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if "attention_mask" not in kwargs:
            raise UnsupportedModel(f"{type(module).__name__} takes no attention_mask by name; it cannot be packed.")
        hidden = hidden_of(args, kwargs)
        left_out = mask.shape[2] - hidden.shape[1]
        here = mask[:, :, : hidden.shape[1], : mask.shape[3] - left_out]
        return args, {**kwargs, "attention_mask": here.to(hidden.device)}

    return hook

"""The hook on the decoder that finds out where each forward pass stands, and tells all other hooks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from timonel.errors import InputError, UnsupportedModel
from timonel.steer._attention import LayerEdges
from timonel.steer._channels import ChannelHook
from timonel.steer._place import Place


class Locator:
    """Forward-pre-hook on the decoder."""

    def __init__(
        self, edges: Sequence[LayerEdges], channels: Sequence[ChannelHook], lengths: Sequence[int | None]
    ) -> None:
        """Takes what is attached.

        Args:
            edges: of all layers.
            channels: of all sites.
            lengths: tokens of each prompt; None where no prompt is known, whose rows' prompts then end with the
                first forward pass.
        """
        self.edges = edges
        self.channels = channels
        self.lengths = lengths
        self._pads: Tensor | None = None
        self._ends: Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reads the call's arguments; changes none of them."""
        tokens = args[0] if args else kwargs.get("input_ids")
        if tokens is None:
            tokens = kwargs["inputs_embeds"]
        rows, queries = tokens.shape[:2]
        if rows % len(self.lengths):
            raise InputError(
                f"The input has {rows} rows, but the plan was attached to {len(self.lengths)} prompts; "
                "give one row a prompt, or the same number of rows for each."
            )
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if cache is not None and not hasattr(cache, "get_mask_sizes"):
            raise UnsupportedModel(
                f"A plan cannot follow a {type(cache).__name__}, which does not say where its keys stand; "
                "generate with a dynamic, static or sliding cache."
            )
        past = 0 if cache is None else int(cache.get_seq_length())
        pads = self._left_pads(kwargs.get("attention_mask"), rows, past)
        offsets = {
            layer: 0 if cache is None else int(cache.get_mask_sizes(queries, layer)[1])
            for layer in (one.table.layer for one in self.edges)
        }
        per_prompt = rows // len(self.lengths)
        ends = self._prompt_ends(rows, past, queries, pads)
        place = Place(past, queries, pads, int(pads.max()), per_prompt, ends, offsets)
        for edges in self.edges:
            edges.place = place
        for hook in self.channels:
            hook.place = place

    def _left_pads(self, mask: Any, rows: int, past: int) -> Tensor:
        """Left pad of each row: the first column that the mask lets anything attend to.

        A mask that `generate` has prepared for a static cache is four-dimensional, and at a decode step of a sliding
        layer it no longer shows the pads; they are then those of the pass that filled the cache.
        """
        if isinstance(mask, dict):
            mask = mask.get("full_attention")
        if isinstance(mask, Tensor) and mask.ndim == 4:
            visible = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
            mask = visible[:, 0].any(dim=1) if past == 0 else None
        elif isinstance(mask, Tensor) and mask.ndim != 2:
            raise UnsupportedModel(
                f"The attention mask has shape {tuple(mask.shape)}, but edges need [rows, columns] or [b, h, q, k]."
            )
        if isinstance(mask, Tensor):
            self._pads = mask.bool().int().argmax(dim=1).cpu()
        elif past == 0 or self._pads is None or len(self._pads) != rows:
            self._pads = torch.zeros(rows, dtype=torch.long)
        return self._pads.expand(rows)

    def _prompt_ends(self, rows: int, past: int, queries: int, pads: Tensor) -> Tensor:
        """Tokens of each row's prompt: as it was attached, or else all that the first pass over it holds."""
        if self.lengths[0] is not None:
            lengths = torch.tensor([int(length or 0) for length in self.lengths])
            return lengths.repeat_interleave(rows // len(self.lengths))
        if past == 0 or self._ends is None or len(self._ends) != rows:
            self._ends = past + queries - pads
        return self._ends

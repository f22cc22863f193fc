"""The hook on the decoder that finds out where each forward pass stands, and tells all other hooks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from timonel.errors import InputError, UnsupportedModel
from timonel.prompts.prompt import Prompt
from timonel.steer._attention import LayerEdges
from timonel.steer._channels import ChannelHook
from timonel.steer._edges import BARRED
from timonel.steer._place import Place
from timonel.steer.bound import Bound

_suspended: ContextVar[int] = ContextVar("suspended", default=0)


@contextmanager
def suspended() -> Iterator[None]:
    """Inside, what is attached already does nothing and forgets nothing; what is attached inside acts."""
    token = _suspended.set(_suspended.get() + 1)
    try:
        yield
    finally:
        _suspended.reset(token)


class Locator:
    """Forward-pre-hook on the decoder."""

    def __init__(
        self,
        edges: Sequence[LayerEdges],
        channels: Sequence[ChannelHook],
        bounds: Sequence[Bound],
        *,
        pads: Sequence[int] | None = None,
        prompts: Sequence[Prompt] = (),
    ) -> None:
        """Takes what is attached; see `attach_bound`."""
        self.edges = edges
        self.channels = channels
        self.bounds = bounds
        self.prompts = prompts
        self._given = None if pads is None else torch.tensor(pads)
        self._pads: Tensor | None = None
        self._depth = _suspended.get()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reads the call's arguments; changes none of them."""
        place = None if _suspended.get() > self._depth else self._place(module, args, kwargs)
        for edges in self.edges:
            edges.place = place
        for hook in self.channels:
            hook.place = place

    def _place(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Place:
        ids = args[0] if args else kwargs.get("input_ids")
        tokens = kwargs["inputs_embeds"] if ids is None else ids
        rows, queries = tokens.shape[:2]
        if rows % len(self.bounds):
            raise InputError(
                f"The input has {rows} rows, but the plan was attached to {len(self.bounds)} prompts; "
                "give one row a prompt, or the same number of rows for each."
            )
        if getattr(module, "gradient_checkpointing", False) and module.training and torch.is_grad_enabled():
            raise UnsupportedModel(
                "Gradient checkpointing runs layers again after the plan may be gone, which gives wrong gradients; "
                "turn it off while a plan is attached."
            )
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if cache is not None and not hasattr(cache, "get_mask_sizes"):
            raise UnsupportedModel(
                f"A plan cannot follow a {type(cache).__name__}, which does not say where its keys stand; "
                "generate with a dynamic, static or sliding cache."
            )
        past = 0 if cache is None else int(cache.get_seq_length())
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        pads = self._left_pads(mask, rows, past) if self._given is None else self._given
        offsets = {
            layer: 0 if cache is None else int(cache.get_mask_sizes(queries, layer)[1])
            for layer in (one.table.layer for one in self.edges)
        }
        per_prompt = rows // len(self.bounds)
        if past == 0 and ids is not None and self.prompts:
            self._compare(ids, pads, per_prompt)
        lengths = torch.tensor([int(bound.length or 0) for bound in self.bounds]).repeat_interleave(per_prompt)
        return Place(past, queries, pads, int(pads.max()), per_prompt, lengths, offsets)

    def _compare(self, ids: Tensor, pads: Tensor, per_prompt: int) -> None:
        """Sees that the rows hold the prompts that spans were found in, as far as the plan names positions."""
        for row, (tokens, pad) in enumerate(zip(ids.tolist(), pads.tolist(), strict=True)):
            prompt, bound = self.prompts[row // per_prompt], self.bounds[row // per_prompt]
            named = [cells.queries[-1] for cells in bound.edges]
            named += [change.where[-1] for change in bound.changes if isinstance(change.where, tuple)]
            held = tokens[pad:][: max(named, default=-1) + 1]
            if list(prompt.ids[: len(held)]) != held:
                raise InputError(
                    f"Row {row} does not begin with the tokens of the prompt that the plan was attached to "
                    "(a second BOS, another order?); encode the prompt once and pass its ids."
                )

    def _left_pads(self, mask: Any, rows: int, past: int) -> Tensor:
        """Left pad of each row: the first column that the mask lets anything attend to.

        A mask that `generate` has prepared for a static cache is four-dimensional, and at a decode step of a sliding
        layer it no longer shows the pads; they are then those of the pass that filled the cache.
        """
        if isinstance(mask, dict):
            # A full layer's mask shows the pads at every pass; a sliding layer's only while the window reaches them.
            mask = mask.get("full_attention", next(iter(mask.values()), None))
        if isinstance(mask, Tensor) and mask.ndim == 4:
            visible = mask if mask.dtype == torch.bool else mask > BARRED
            mask = visible[:, 0].any(dim=1) if past == 0 else None
            if past and (self._pads is None or len(self._pads) != rows):
                raise UnsupportedModel(
                    "The cache was filled before the plan was attached, and this call's mask no longer shows the left "
                    "pads; attach the plan before the first pass."
                )
        elif isinstance(mask, Tensor) and mask.ndim != 2:
            raise UnsupportedModel(
                f"The attention mask has shape {tuple(mask.shape)}, but edges need [rows, columns] or [b, h, q, k]."
            )
        if isinstance(mask, Tensor):
            self._pads = mask.bool().int().argmax(dim=1).cpu().expand(rows)
        elif past == 0 or self._pads is None or len(self._pads) != rows:
            self._pads = torch.zeros(rows, dtype=torch.long)
        return self._pads

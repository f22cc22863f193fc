"""Attach a plan to a model for the length of a `with` block; nothing is left behind, whatever happens inside.

    with attach(model, plan, prompts=[prompt]) as attached:
        logits = model(**inputs).logits

Spans count tokens of the unpadded prompt; each row's left pad, the cache's length and a sliding cache's offset are
taken from the forward call itself. Row r of an input of R rows belongs to prompt `r // (R / prompts)`, as generate
expands rows in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from timonel.errors import InputError, UnsupportedModel
from timonel.models.geometry import Geometry
from timonel.prompts.prompt import Prompt
from timonel.steer._attention import LayerEdges, add_edges, remove_edges
from timonel.steer._edges import Place
from timonel.steer._tables import build_tables
from timonel.steer.plan import Cells, Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(eq=False)
class Attachment:
    """A plan at work.

    Attributes:
        layers: layer -> its edges and their counters.
        prompts: how many prompts the plan was bound to.
        expected: rows of heads that one full pass over the prompts rewrites.
    """

    layers: dict[int, LayerEdges]
    prompts: int
    expected: int

    @property
    def fired(self) -> int:
        """Rows of heads rewritten so far, over all layers."""
        return sum(edges.fired for edges in self.layers.values())

    @property
    def changed(self) -> float:
        """The largest change that any rewritten output has seen."""
        return max((edges.changed for edges in self.layers.values()), default=0.0)


@contextmanager
def attach(
    model: PreTrainedModel,
    plan: Plan | Sequence[Plan],
    *,
    prompts: Sequence[Prompt] = (),
    geometry: Geometry | None = None,
    check: bool = True,
) -> Iterator[Attachment]:
    """Applies a plan to every forward pass of `model` inside the block, `generate` included.

    Args:
        model: the user's own model object; neither moved nor changed.
        plan: one plan for all prompts, or one for each.
        prompts: the prompts whose spans the plan names, in the order of the input's rows.
        geometry: of the model, if it is at hand already.
        check: run the self-test first (one or two short forward passes; see `selftest`).

    Yields:
        The attachment, with its firing counters.

    Raises:
        InputError: a span is unbound, a head does not exist, plans and prompts do not match in number.
        UnsupportedModel: the model's attention cannot be reached or understood.
    """
    geometry = geometry or Geometry.of(model)
    plans = [plan] * len(prompts) if isinstance(plan, Plan) else list(plan)
    if isinstance(plan, Plan) and not prompts and tuple(plan):
        raise InputError("The plan names spans, but no prompts were given to find them in; pass prompts=[...].")
    if len(plans) != len(prompts):
        raise InputError(f"There are {len(plans)} plans for {len(prompts)} prompts, but each prompt takes one.")
    cells = [one.on(prompt) for one, prompt in zip(plans, prompts, strict=True)]
    if check:
        from timonel.steer.selftest import self_test

        self_test(model, geometry, cells, prompts)
    with attach_cells(model, cells, geometry) as attachment:
        yield attachment


@contextmanager
def attach_cells(model: PreTrainedModel, cells: Sequence[Sequence[Cells]], geometry: Geometry) -> Iterator[Attachment]:
    """`attach` for plans whose names are positions already: one sequence of cells for each prompt; no self-test."""
    tables = build_tables(cells, geometry)
    expected = sum(table.rows() for table in tables.values())
    attachment = Attachment({layer: LayerEdges(table) for layer, table in tables.items()}, len(cells), expected)
    undo: list[tuple[nn.Module, LayerEdges]] = []
    hook = None
    try:
        for layer, edges in attachment.layers.items():
            module = model.get_submodule(geometry.layers[layer].attention)
            add_edges(module, edges)
            undo.append((module, edges))
        if tables:
            decoder = model.get_submodule(geometry.decoder)
            hook = decoder.register_forward_pre_hook(_Locator(attachment), with_kwargs=True)
        yield attachment
    finally:
        if hook is not None:
            hook.remove()
        for module, edges in undo:
            remove_edges(module, edges)


class _Locator:
    """Forward-pre-hook on the decoder: tells each touched layer where this pass stands in the sequence."""

    def __init__(self, attachment: Attachment) -> None:
        self.attachment = attachment
        self.pads: Tensor | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tokens = args[0] if args else kwargs.get("input_ids")
        if tokens is None:
            tokens = kwargs["inputs_embeds"]
        rows, length = tokens.shape[:2]
        if rows % self.attachment.prompts:
            raise InputError(
                f"The input has {rows} rows, but the plan was attached to {self.attachment.prompts} prompts; "
                "give one row a prompt, or the same number of rows for each."
            )
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        past = 0 if cache is None else int(cache.get_seq_length())
        pads = self._left_pads(kwargs.get("attention_mask"), rows, past)
        longest = int(pads.max())
        for layer, edges in self.attachment.layers.items():
            offset = 0 if cache is None else int(cache.get_mask_sizes(length, layer)[1])
            edges.place = Place(past, offset, pads, longest, rows // self.attachment.prompts)

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
            self.pads = mask.bool().int().argmax(dim=1)
        elif past == 0 or self.pads is None or len(self.pads) != rows:
            self.pads = torch.zeros(rows, dtype=torch.long)
        return self.pads

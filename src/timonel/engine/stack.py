"""A model's decoder run over packed rows, from any layer on, over keys and values that another pass left.

    columns of row r:  [left pad | start tokens from its trunk | its own tree | right pad],
    position p of its prompt at column p + left pad, as far as the prompt is shared by all of the row

so an edge finds its rows and keys by the same rule as in any left-padded batch. The model's own forward runs, and what
cannot matter is left out of it: layers below the first pass their input through; the first computes only the rows that
a plan rewrites in it, since the others leave it as they left it unsteered; the last computes, after its attention, only
the rows that are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import Cache, DynamicCache

from timonel.engine.kept import Resume, State, flat, kept_cache
from timonel.engine.masks import masked, visible
from timonel.engine.shortcuts import Cells, at_cells, keeper, read_only, resumed
from timonel.engine.tree import Tree
from timonel.models.geometry import Geometry

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.inference_mode()
def run_trunks(
    model: PreTrainedModel, geometry: Geometry, trees: Sequence[Tree], cells: Cells, resume_at: Sequence[int]
) -> tuple[Float[Tensor, "n c"], State]:
    """Runs packed rows unsteered.

    Args:
        model: whose decoder runs.
        geometry: of the model.
        trees: a packed row each.
        cells: whose outputs are wanted.
        resume_at: layers from which later passes run; without any, nothing is kept.

    Returns:
        The decoder's output at the cells, and what later passes need.
    """
    device = model.get_input_embeddings().weight.device
    ids, positions = _padded(trees, [0] * len(trees), device)
    cache = DynamicCache()  # without a config no layer drops what lies outside its window
    residuals: dict[int, Tensor] = {}
    with ExitStack() as undo:
        inputs = {at for layer in resume_at if layer for at in (layer, layer + 1) if at < geometry.n_layers}
        for layer in inputs:
            module = model.get_submodule(geometry.layers[layer].layer)
            undo.callback(module.register_forward_pre_hook(keeper(residuals, layer), with_kwargs=True).remove)
        undo.enter_context(masked(model, geometry, visible(trees, [0] * len(trees), device), positions, None))
        undo.enter_context(read_only(model, geometry, cells))
        output = _decode(model, geometry, ids, positions, cache if resume_at else None)
    layers = range(min(resume_at, default=geometry.n_layers), geometry.n_layers)
    states = {name: {at: flat(getattr(cache.layers[at], name)) for at in layers} for name in ("keys", "values")}
    kept = {layer: one.flatten(0, 1) for layer, one in residuals.items()}
    return at_cells(output, cells), State(states["keys"], states["values"], kept, ids.shape[1])


@torch.inference_mode()
def run_rows(
    model: PreTrainedModel,
    geometry: Geometry,
    trees: Sequence[Tree],
    starts: Sequence[int],
    cells: Cells,
    resume: Resume | None,
    *,
    trim: bool = True,
) -> Float[Tensor, "n c"]:
    """Runs packed rows after what their trunks left.

    Args:
        model: whose decoder runs, with whatever is attached to it.
        geometry: of the model.
        trees: a packed row each.
        starts: position of each row's first token.
        cells: whose outputs are wanted.
        resume: what the rows start from; None where they have nothing before them and start from tokens.
        trim: leave out of the last layer what is not read; not where a plan acts on its channels.

    Returns:
        The decoder's output at the cells.
    """
    device = model.get_input_embeddings().weight.device
    ids, positions = _padded(trees, starts, device)
    longest = max(starts)
    cache = None
    with ExitStack() as undo:
        undo.enter_context(masked(model, geometry, visible(trees, starts, device), positions, starts))
        if trim:
            undo.enter_context(read_only(model, geometry, cells))
        if resume is not None:
            if longest:
                cache = kept_cache(geometry, resume, longest, device)
            if resume.layer:
                undo.enter_context(resumed(model, geometry, resume, ids.shape[1]))
        return at_cells(_decode(model, geometry, ids, positions, cache), cells)


def _decode(
    model: PreTrainedModel, geometry: Geometry, ids: Tensor, positions: Tensor, cache: Cache | None
) -> Float[Tensor, "b n c"]:
    decoder = model.get_submodule(geometry.decoder)
    # Any four-dimensional mask keeps the model from making one; each attention module is handed its own.
    mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
    output: Tensor = decoder(
        input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache, use_cache=cache is not None
    ).last_hidden_state
    return output


def _padded(trees: Sequence[Tree], starts: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and positions, [b, n]; under the right pad token 0, which nothing attends to."""
    width = max(map(len, trees))
    ids = np.zeros((len(trees), width), dtype=np.int64)
    positions = np.zeros((len(trees), width), dtype=np.int64)
    for row, (tree, start) in enumerate(zip(trees, starts, strict=True)):
        ids[row, : len(tree)], positions[row, : len(tree)] = tree.tokens, tree.positions(start)
    return torch.from_numpy(ids).to(device), torch.from_numpy(positions).to(device)

"""A model's decoder run over packed rows, from any layer on, over keys and values that another pass left.

    columns of row r:  [left pad | start tokens from its trunk | its own tree | right pad],
    position p of its prompt at column p + left pad, as far as the prompt is shared by all of the row

so an edge finds its rows and keys by the same rule as in any left-padded batch. The model's own forward runs, and what
cannot matter is left out of it: layers below the first pass their input through; the first computes only the rows that
a plan rewrites in it, since the others leave it as they left it unsteered; the last computes, after its attention, only
the rows that are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from timonel.engine.tree import Tree
from timonel.errors import UnsupportedModel
from timonel.models.geometry import Geometry

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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


Cells = Sequence[tuple[int, int]]
"""(row, column) of a pass whose outputs are wanted."""


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
            undo.callback(module.register_forward_pre_hook(_keeper(residuals, layer), with_kwargs=True).remove)
        undo.enter_context(_masks(model, geometry, visible(trees, [0] * len(trees), device), positions, None))
        undo.enter_context(_read_only(model, geometry, cells))
        output = _decode(model, geometry, ids, positions, cache if resume_at else None)
    layers = range(min(resume_at, default=geometry.n_layers), geometry.n_layers)
    flat = {name: {at: _flat(getattr(cache.layers[at], name)) for at in layers} for name in ("keys", "values")}
    kept = {layer: one.flatten(0, 1) for layer, one in residuals.items()}
    return _at(output, cells), State(flat["keys"], flat["values"], kept, ids.shape[1])


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
        undo.enter_context(_masks(model, geometry, visible(trees, starts, device), positions, starts))
        if trim:
            undo.enter_context(_read_only(model, geometry, cells))
        if resume is not None:
            if longest:
                cache = _kept_cache(geometry, resume, longest, device)
            if resume.layer:
                undo.enter_context(_resumed(model, geometry, resume, ids.shape[1]))
        return _at(_decode(model, geometry, ids, positions, cache), cells)


def _kept_cache(geometry: Geometry, resume: Resume, longest: int, device: torch.device) -> Cache:
    columns = torch.tensor([[0] * (longest - len(some)) + list(some) for some in resume.before], device=device)
    state = resume.state
    layers = range(geometry.n_layers)
    return Cache(layers=[_KeptLayer(longest, state.keys.get(at), state.values.get(at), columns) for at in layers])


def _index(cells: Cells, device: torch.device) -> Int[Tensor, "n 2"]:
    return torch.tensor(cells, dtype=torch.long, device=device).reshape(-1, 2)


def _at(output: Float[Tensor, "b n c"], cells: Cells) -> Float[Tensor, "n c"]:
    index = _index(cells, output.device)
    return output[index[:, 0], index[:, 1]]


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
def _masks(
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
        hidden = _hidden(args, kwargs)
        left_out = mask.shape[2] - hidden.shape[1]
        here = mask[:, :, : hidden.shape[1], : mask.shape[3] - left_out]
        return args, {**kwargs, "attention_mask": here.to(hidden.device)}

    return hook


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Float[Tensor, "b n c"]:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


def _keeper(kept: dict[int, Tensor], layer: int) -> Any:
    """A hook that keeps a layer's input, which need not be copied: layers add to the residual stream out of place."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept[layer] = _hidden(args, kwargs)

    return hook


@contextmanager
def _resumed(model: PreTrainedModel, geometry: Geometry, resume: Resume, width: int) -> Iterator[None]:
    """Lets the layers below pass their input through, and starts the first from the kept residual stream."""
    columns = torch.tensor([list(some) + [0] * (width - len(some)) for some in resume.own])

    def kept(layer: int) -> Float[Tensor, "b n c"]:
        residual = resume.state.residuals[layer]
        return residual[columns.to(residual.device)]

    def skip(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return hidden_states

    module: Any = model.get_submodule(geometry.layers[resume.layer].layer)
    run = module.forward
    touched = width if resume.touched is None or resume.layer + 1 == geometry.n_layers else resume.touched

    def first(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        cut = {name: _front(value, width, touched) for name, value in kwargs.items()}
        new: Tensor = run(kept(resume.layer)[:, :touched].to(hidden_states.device), *args, **cut)
        return new if touched == width else torch.cat([new, kept(resume.layer + 1)[:, touched:].to(new.device)], dim=1)

    with ExitStack() as undo:
        for below in geometry.layers[: resume.layer]:
            undo.enter_context(_instead(model.get_submodule(below.layer), skip))
        undo.enter_context(_instead(module, first))
        yield


def _front(value: Any, width: int, touched: int) -> Any:
    """What a layer is told of its rows, for the first of them alone: positions and rotary tables, [b or 1, n, ...]."""
    if isinstance(value, tuple):
        return tuple(_front(one, width, touched) for one in value)
    if isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[1] == width:
        return value[:, :touched]
    return value


@contextmanager
def _read_only(model: PreTrainedModel, geometry: Geometry, cells: Cells) -> Iterator[None]:
    """Lets the last layer's output projection and MLP see the cells that are read alone; elsewhere they add 0."""
    shapes: list[torch.Size] = []

    def pick(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        shapes.append(args[0].shape)
        return (_at(args[0], cells)[None], *args[1:])

    def spread(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
        whole = output.new_zeros(*shapes.pop()[:2], output.shape[-1])
        index = _index(cells, output.device)
        return whole.index_put_((index[:, 0], index[:, 1]), output[0])

    last = geometry.layers[-1]
    with ExitStack() as undo:
        for name in (last.o_proj, last.mlp):
            module = model.get_submodule(name)
            undo.callback(module.register_forward_pre_hook(pick).remove)
            undo.callback(module.register_forward_hook(spread).remove)
        yield


@contextmanager
def _instead(module: nn.Module, forward: Any) -> Iterator[None]:
    """Another forward for a module; one of its own that a library has hung there comes back afterwards."""
    own = module.__dict__.get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


def _flat(states: Float[Tensor, "b g t d"]) -> Float[Tensor, "bt g d"]:
    return states.transpose(1, 2).flatten(0, 1)

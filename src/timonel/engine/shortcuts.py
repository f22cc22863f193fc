"""What a model's own forward is let off: layers below the first, rows that a plan leaves alone, rows that nobody reads.

Each is a context that hangs hooks, or another forward, on the model's modules and takes them off again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from timonel.engine.kept import Resume
from timonel.models.geometry import Geometry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Cells = Sequence[tuple[int, int]]
"""(row, column) of a pass whose outputs are wanted."""


def _index(cells: Cells, device: torch.device) -> Int[Tensor, "n 2"]:
    return torch.tensor(cells, dtype=torch.long, device=device).reshape(-1, 2)


def at_cells(output: Float[Tensor, "b n c"], cells: Cells) -> Float[Tensor, "n c"]:
    """The outputs at some cells."""
    index = _index(cells, output.device)
    return output[index[:, 0], index[:, 1]]


def hidden_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Float[Tensor, "b n c"]:
    """The hidden states among a module's arguments."""
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden


def keeper(kept: dict[int, Tensor], layer: int) -> Any:
    """A hook that keeps a layer's input, which need not be copied: layers add to the residual stream out of place."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kept[layer] = hidden_of(args, kwargs)

    return hook


@contextmanager
def resumed(model: PreTrainedModel, geometry: Geometry, resume: Resume, width: int) -> Iterator[None]:
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
def read_only(model: PreTrainedModel, geometry: Geometry, cells: Cells) -> Iterator[None]:
    """Lets the last layer's output projection and MLP see the cells that are read alone; elsewhere they add 0."""
    shapes: list[torch.Size] = []

    def pick(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        shapes.append(args[0].shape)
        return (at_cells(args[0], cells)[None], *args[1:])

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

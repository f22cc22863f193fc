"""Captures: what the engine reads from inside a model while prompts run. Streaming, kept, never whole.

    attention     mean over an edge's query rows of the sum over its keys of softmax(s)        [b, e, H]
    residuals     the residual stream after some layers, at a token or averaged over a span    [b, l, hidden]
    activity      how often, how much and how variably each neuron is above 0, by group        [group, l, n]
    attribution   d log P(answer) / d alpha of every head's edge, by one backward pass an answer

`H` counts all heads layer by layer, as `Geometry.heads` does. Prompts run in plain padded batches through the decoder
alone. Everything is kept in the engine's store and found there again; a killed run computes at most one batch again.
The numbers are those of a float32 computation or a wider one; a float64 model gives float64.

Does not show: that a head is needed for what it attends to, or a neuron for the language in which it is active. A
feature is a correlate; cut it, beside a control, to learn whether it acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from timonel.engine._passes import Piece, by_layer, decode, pair_up, steered, stream
from timonel.engine._taps import Edge, EdgeIndex, cells_of, features, taps
from timonel.engine.activity import Activity, activity
from timonel.engine.attribution import Attribution, attribution, score_slope
from timonel.errors import InputError
from timonel.prompts.prompt import Prompt
from timonel.steer._attention import Attended
from timonel.steer.plan import Plan
from timonel.steer.scope import Span

if TYPE_CHECKING:
    from timonel.engine.engine import Engine

__all__ = [
    "Activity",
    "Attribution",
    "Edge",
    "Residuals",
    "activity",
    "attention",
    "attribution",
    "residual_batches",
    "residuals",
    "score_slope",
]


def attention(
    engine: Engine,
    prompts: Sequence[Prompt],
    edges: Sequence[Edge],
    *,
    plans: Sequence[Plan] | None = None,
    stage: str = "attention",
) -> Float[np.ndarray, "b e H"]:
    """Attention of every head along each edge of each prompt: summed over keys, averaged over query rows.

    Source: the features of "Cultural Binding Heads in Language Models" (arXiv 2605.28543).

    Args:
        engine: of the model.
        prompts: each with the spans that the edges name.
        edges: (queries, keys), such as `(span("identity"), span("item"))`.
        plans: what acts on each prompt meanwhile; a head whose edge a plan scales shows the weights that it then
            has, which under alpha above 1 may be negative or above 1 in sum.
        stage: name for the progress.

    Raises:
        InputError: a span is not in a prompt, or an edge's keys stand after its query rows.
    """
    engine.look()
    if not edges:
        raise InputError('There are no edges to read, but one is needed; give [(span("identity"), span("item"))].')
    pieces = []
    for prompt, plan in pair_up(engine, prompts, plans):
        cells = tuple(cells_of(prompt, edge) for edge in edges)
        pieces.append(Piece.of(prompt, max(queries[-1] for queries, _ in cells) + 1, cells, plan))
    found = np.empty((len(pieces), len(edges), engine.geometry.total_heads), _dtype(engine))
    for batch in stream(engine, "attention", pieces, lambda some: _attention(engine, some), stage=stage):
        for number, values in batch:
            found[number] = np.reshape(values, found.shape[1:])
    return found


@torch.inference_mode()
def _attention(engine: Engine, batch: Sequence[Piece]) -> list[list[float]]:
    found: dict[int, Tensor] = {}
    with steered(engine, batch) as ids:
        index = EdgeIndex.of([piece.asks for piece in batch], ids.shape[1], engine.device)

        def look(layer: int, seen: Attended) -> None:
            found[layer] = features(seen, index.to(seen.query.device))

        with taps(engine, look):
            decode(engine, ids)
    layers = by_layer(found, range(engine.geometry.n_layers))
    rows: list[list[float]] = torch.cat([one.cpu() for one in layers], dim=2).flatten(1).double().tolist()
    return rows


@dataclass(frozen=True, slots=True)
class Residuals:
    """The residual stream of some prompts.

    Attributes:
        prompts: their indices in the list that was asked for.
        values: after each layer asked for.
    """

    prompts: tuple[int, ...]
    values: Float[np.ndarray, "b l hidden"]


def residual_batches(
    engine: Engine,
    prompts: Sequence[Prompt],
    layers: Sequence[int],
    where: Literal["last"] | Span = "last",
    *,
    plans: Sequence[Plan] | None = None,
    stage: str = "residuals",
) -> Iterator[Residuals]:
    """The residual stream *after* some layers, batch by batch, so that memory does not grow with the prompts.

    After the last layer it is what the final norm reads.

    Args:
        engine: of the model.
        prompts: what to run.
        layers: 0-based, in any order.
        where: the last prompt token (the one before the answer, where there is one), or the mean over a span.
        plans: what acts on each prompt meanwhile.
        stage: name for the progress.

    Yields:
        Batches in an order of their own; each says which prompts it holds.

    Raises:
        InputError: a layer does not exist, or a span is not in a prompt. Raised by the call, not by the first batch.
    """
    engine.look()
    for layer in layers:
        engine.geometry.check_layer(layer)
    if not layers:
        raise InputError("There are no layers to read, but one is needed; give 0-based ones.")
    pieces = []
    for prompt, plan in pair_up(engine, prompts, plans):
        at = (prompt.answer_start - 1,) if where == "last" else _span(where, prompt)
        pieces.append(Piece.of(prompt, at[-1] + 1, (tuple(layers), at), plan))
    shape, dtype = (-1, len(layers), engine.geometry.hidden), _dtype(engine)
    found = stream(engine, "residuals", pieces, lambda some: _residuals(engine, some), stage=stage)
    return (
        Residuals(tuple(number for number, _ in batch), np.array([one for _, one in batch], dtype).reshape(shape))
        for batch in found
    )


def residuals(
    engine: Engine,
    prompts: Sequence[Prompt],
    layers: Sequence[int],
    where: Literal["last"] | Span = "last",
    *,
    plans: Sequence[Plan] | None = None,
    stage: str = "residuals",
) -> Float[np.ndarray, "b l hidden"]:
    """`residual_batches`, stacked in the order of the prompts."""
    stacked = np.empty((len(prompts), len(layers), engine.geometry.hidden), _dtype(engine))
    for batch in residual_batches(engine, prompts, layers, where, plans=plans, stage=stage):
        stacked[list(batch.prompts)] = batch.values
    return stacked


@torch.inference_mode()
def _residuals(engine: Engine, batch: Sequence[Piece]) -> list[list[float]]:
    layers: tuple[int, ...] = batch[0].asks[0]
    found: dict[int, Tensor] = {}

    def read(layer: int) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple) else output
            wide = torch.promote_types(hidden.dtype, torch.float32)
            means = [hidden[row, list(piece.asks[1])].to(wide).mean(dim=0) for row, piece in enumerate(batch)]
            found[layer] = torch.stack(means).cpu()

        return hook

    with steered(engine, batch) as ids, ExitStack() as undo:
        for layer in set(layers):
            module = engine.model.get_submodule(engine.geometry.layers[layer].layer)
            undo.callback(module.register_forward_hook(read(layer)).remove)
        decode(engine, ids)
    rows: list[list[float]] = torch.stack(by_layer(found, layers), dim=1).flatten(1).double().tolist()
    return rows


def _span(where: object, prompt: Prompt) -> tuple[int, ...]:
    if not isinstance(where, Span):
        raise InputError(f"where is {where!r}, but a residual is read at \"last\" or at a span; write span('item').")
    return prompt.positions(*where.names)


def _dtype(engine: Engine) -> type[np.floating[Any]]:
    return np.float64 if engine.model.dtype == torch.float64 else np.float32

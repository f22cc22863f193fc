"""A causal screen of every head's edge by gradient: one forward pass, and one backward pass an answer.

With a head's output on an edge's query rows as EdgeScale has it,

    z_alpha = z_cut + alpha (z - z_cut),      d log P(answer) / d alpha at alpha = 1  =  < d log P / d z, z - z_cut >

for each head by itself: what its change does downstream is in the gradient. The change that cutting the edge makes,
to first order, is minus that. A score of several answers, S = f(log P_1, .. log P_a), has by the chain rule

    dS / d alpha  =  sum_j  df / d log P_j * d log P_j / d alpha

also where its answers stand in different requests (cloze form). Gradients are taken with respect to the heads'
outputs alone, never to weights; z and z_cut are computed in `promote_types(dtype, float32)`.

Source: attribution patching, with z_cut in the place of a patched activation; our reading of it for edges.
Does not show: the effect of a cut. It is its first-order prediction: it misses what saturates, and heads that stand
in for each other. Check the top of the list against exact cuts.

Shapes: a answers, e edges, H heads of all layers, layer by layer; b, h, r, d as in `_taps`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from timonel.engine._passes import Piece, by_layer, decode, pair_up, steered, stream
from timonel.engine._taps import Cells, Edge, EdgeIndex, cells_of, mix, row_weights, taps
from timonel.engine.request import Request
from timonel.errors import InputError
from timonel.steer._attention import Attended

if TYPE_CHECKING:
    from timonel.engine.engine import Engine

# A backward pass needs what every layer computed: some tens of times what a forward pass holds at once.
_SHARE = 8


@dataclass(frozen=True, slots=True)
class Attribution:
    """One request.

    Attributes:
        log_p: log-probability of each answer.
        slope: d log_p / d alpha at alpha = 1 of each edge of each head; minus the change that a cut is predicted to
            make.
    """

    log_p: Float[np.ndarray, "a"]
    slope: Float[np.ndarray, "e a H"]


def attribution(
    engine: Engine, requests: Sequence[Request], edges: Sequence[Edge], *, stage: str = "attribution"
) -> list[Attribution]:
    """The slope of each answer's log-probability in each head's edge, one head and one edge at a time.

    Args:
        engine: of the model.
        requests: prompts and answers; a request's plan acts meanwhile.
        edges: (queries, keys), as in EdgeScale. An edge whose spans do not stand in a request's prompt has slope 0
            there, as it has nothing to cut; rows after the last one that is read likewise.
        stage: name for the progress.

    Returns:
        One attribution a request, in order; equal requests are computed once.

    Raises:
        InputError: an edge stands in none of the prompts, its keys stand after its query rows, or a request's plan
            scales an edge on its rows already.
    """
    engine.look()
    if not edges:
        raise InputError('There are no edges to screen, but one is needed; give [(span("identity"), span("item"))].')
    names = {name for request in requests for name in request.prompt.spans}
    pair_up(engine, [request.prompt for request in requests], None)
    pieces = [_piece(request, edges) for request in requests]
    for edge in edges if requests else ():
        if not any(_stands_in(edge, request) for request in requests):
            raise InputError(
                f"The edge {edge[0]} -> {edge[1]} stands in none of the prompts, whose spans are "
                f"{', '.join(sorted(names)) or 'none'}; name spans that stand together in one."
            )
    heads = engine.geometry.total_heads
    found: dict[int, Attribution] = {}
    for batch in stream(engine, "attribution", pieces, lambda some: _slopes(engine, some), stage=stage, share=_SHARE):
        for number, values in batch:
            answers = len(requests[number].answers)
            slope = np.reshape(values[answers:], (answers, len(edges), heads)).swapaxes(0, 1)
            found[number] = Attribution(np.array(values[:answers]), slope)
    return [found[number] for number in range(len(requests))]


def score_slope(
    score: Callable[[Tensor], Tensor], parts: Sequence[Attribution]
) -> tuple[float, Float[np.ndarray, "e H"]]:
    """A score of several log-probabilities, and its slope in each head's edge, by the chain rule.

    Args:
        score: a differentiable function of the log-probabilities of all answers of all parts, in order, as one
            float64 tensor.
        parts: the requests that the score is made of; one in letters form, three in cloze form.

    Returns:
        The score, and d score / d alpha at alpha = 1; minus the predicted change by the cut alone.

    Example:
        >>> s, slope = score_slope(lambda p: p[2] - torch.logaddexp(p[0], p[1]), [found])  # doctest: +SKIP
    """
    with torch.inference_mode(False), torch.enable_grad():
        log_p = torch.tensor(np.concatenate([one.log_p for one in parts]), dtype=torch.float64, requires_grad=True)
        value = score(log_p)
        (weight,) = torch.autograd.grad(value, log_p)
    slope: np.ndarray = np.einsum("a,eah->eh", weight.numpy(), np.concatenate([one.slope for one in parts], axis=1))
    return float(value.detach()), slope


def _stands_in(edge: Edge, request: Request) -> bool:
    return all(name in request.prompt.spans for one in edge for name in one.names)


def _piece(request: Request, edges: Sequence[Edge]) -> Piece:
    """A request as (answers, cells of each edge), without rows that nothing reads."""
    length = max(reading.position for answer in request.answers for reading in answer) + 1
    cells: list[Cells] = []
    for edge in edges:
        queries, keys = cells_of(request.prompt, edge) if _stands_in(edge, request) else ((), ())
        cells.append((tuple(row for row in queries if row < length), tuple(key for key in keys if key < length)))
    answers = tuple(tuple((position, some) for position, some in answer) for answer in request.answers)
    piece = Piece.of(request.prompt, length, (answers, tuple(cells)), request.plan)
    named = {row for queries, _ in cells for row in queries}
    if taken := named & {row for some in piece.bound.edges for row in some.queries}:
        raise InputError(
            f"The plan of a request scales an edge on row {min(taken)}, which is to be screened, but a row of a head "
            "takes one edge; screen under a plan that leaves these rows alone."
        )
    return piece


@torch.inference_mode(False)
def _slopes(engine: Engine, batch: Sequence[Piece]) -> list[list[float]]:
    """For each piece its log-probabilities, then its slopes: answers before edges before heads."""
    outputs: dict[int, Tensor] = {}
    gaps: dict[int, list[Tensor]] = {}
    with torch.enable_grad(), steered(engine, batch) as ids:
        index = EdgeIndex.of([piece.asks[1] for piece in batch], ids.shape[1], engine.device)

        def look(layer: int, seen: Attended) -> Tensor:
            here = index.to(seen.query.device)
            gaps[layer] = _gaps(seen, here)
            # The graph begins at the first head's output, whether or not weights ask for gradients.
            output = seen.output if seen.output.requires_grad else seen.output.detach().requires_grad_()
            outputs[layer] = output
            return output

        with taps(engine, look):
            hidden = decode(engine, ids)
        log_p = _log_probabilities(engine, hidden, batch)
        written = by_layer(outputs, range(engine.geometry.n_layers))
        found = [[float(value.detach()) for value in one] for one in log_p]
        longest = max(map(len, log_p))
        for answer in range(longest):
            # Rows of a batch do not meet, so the gradient of a sum over requests holds each request's own.
            total = torch.stack([one[answer] for one in log_p if answer < len(one)]).sum()
            grads = torch.autograd.grad(total, written, retain_graph=answer + 1 < longest)
            slopes = torch.cat([_inner(grad, index, gaps[at]).cpu() for at, grad in enumerate(grads)], dim=2)
            for row, values in enumerate(slopes.flatten(1).double().tolist()):
                if answer < len(log_p[row]):
                    found[row] += values
    return found


@torch.no_grad()
def _gaps(seen: Attended, index: EdgeIndex) -> list[Tensor]:
    """Z - z_cut of each edge, [b, h, r, d]; 0 on rows that are not the edge's."""
    gaps: list[list[Tensor]] = [[] for _ in range(index.rows.shape[1])]
    for of in index.parts(seen.query.shape[1]):
        full = row_weights(seen, index.at, of)
        for edge, parts in enumerate(gaps):
            kept = row_weights(seen, index.at, of, index.keys[:, edge])
            parts.append(mix(seen, full - kept, of) * index.rows[of, edge, None, :, None])
    return [torch.cat(parts) for parts in gaps]


@torch.no_grad()
def _inner(grad: Float[Tensor, "b q h d"], index: EdgeIndex, gaps: Sequence[Tensor]) -> Float[Tensor, "b e h"]:
    """<gradient, z - z_cut> over an edge's rows."""
    b, _, h, d = grad.shape
    at = index.at.to(grad.device)[:, :, None, None].expand(b, index.at.shape[1], h, d)
    rows = grad.gather(1, at).to(gaps[0].dtype).transpose(1, 2)  # [b, h, r, d]
    return torch.stack([(rows * gap).sum(dim=(2, 3)) for gap in gaps], dim=1)


def _log_probabilities(
    engine: Engine, hidden: Float[Tensor, "b q hidden"], batch: Sequence[Piece]
) -> list[list[Tensor]]:
    """Each piece's answers; only the rows that are read get logits, each once."""
    cells: dict[tuple[int, int], int] = {}
    for row, piece in enumerate(batch):
        for answer in piece.asks[0]:
            for position, _ in answer:
                cells.setdefault((row, position), len(cells))
    rows, columns = (list(one) for one in zip(*cells, strict=True))
    logits = engine.model.get_submodule(engine.geometry.head)(hidden[rows, columns])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if (cap := engine.geometry.final_softcap) is not None:
        logits = torch.tanh(logits / cap) * cap
    log_p = torch.log_softmax(logits, dim=-1)

    def read(row: int, position: int, some: tuple[int, ...]) -> Tensor:
        return torch.logsumexp(log_p[cells[row, position], list(some)], dim=0)

    return [
        [torch.stack([read(row, *reading) for reading in answer]).sum() for answer in piece.asks[0]]
        for row, piece in enumerate(batch)
    ]

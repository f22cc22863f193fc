"""How active each neuron is in each group of inputs (a language): sums over inputs, never the activations.

    n        inputs, or tokens
    active   sum of [x > 0]        total   sum of x        squares   sum of x²        over them, by group

where x is a neuron at one place: the input of `down_proj`, act(gate) * up, as CLAS has it; or act(gate) alone, as
LAPE has it. An input gives its last prompt token, the mean over its tokens, or each of its tokens as one x. Tokens
are those before the answer; pads never count. The input's own numbers are computed in at least float32, sums over
them in float64.

One running record a group is kept, and replaced as each batch ends: memory and store are flat in the number of
inputs, and a resumed run gives the numbers of an undisturbed one, bit for bit.

Source: CLAS (arXiv 2601.16390) for the site; LAPE for `act` over all tokens. Its own choice of token is not known.
Does not show: that a neuron acts on the language in which it is active.

Shapes: l layers, n neurons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from timonel.engine._passes import (
    CAPTURE_VERSION,
    Piece,
    by_layer,
    decode,
    lay_out,
    pair_up,
    steered,
    tokens,
)
from timonel.engine.batches import Meter, digest
from timonel.errors import InputError, UnsupportedModel
from timonel.prompts.prompt import Prompt
from timonel.steer.plan import Plan

if TYPE_CHECKING:
    from timonel.engine.engine import Engine

Site = Literal["down_proj", "act"]
Where = Literal["last", "mean", "all"]

# Tokens summed at a time: on a CPU few enough to stay in its cache, which more than halves the cost of the sums.
_CPU_ROWS, _ROWS = 128, 4096


@dataclass(frozen=True, slots=True)
class Activity:
    """Sums by group.

    Attributes:
        groups: labels, in the order in which they first stand in the call.
        n: inputs (last, mean) or tokens (all) of each group.
        active: in how many of them each neuron is above 0; whole numbers.
        total: sum of each neuron.
        squares: sum of its squares.
    """

    groups: tuple[str, ...]
    n: Int[np.ndarray, "group"]
    active: Float[np.ndarray, "group l n"]
    total: Float[np.ndarray, "group l n"]
    squares: Float[np.ndarray, "group l n"]

    @property
    def share(self) -> Float[np.ndarray, "group l n"]:
        """Share of inputs (or tokens) in which each neuron is above 0."""
        share: np.ndarray = self.active / self.n[:, None, None]
        return share

    @property
    def mean(self) -> Float[np.ndarray, "group l n"]:
        """Mean of each neuron."""
        mean: np.ndarray = self.total / self.n[:, None, None]
        return mean

    @property
    def variance(self) -> Float[np.ndarray, "group l n"]:
        """Variance of each neuron over inputs (or tokens), with n in the denominator; never below 0."""
        variance: np.ndarray = np.maximum(self.squares / self.n[:, None, None] - self.mean**2, 0.0)
        return variance


@dataclass(frozen=True, slots=True)
class _Group:
    """One group: the key of its record, and batches of the inputs that are not in it yet."""

    key: str
    todo: list[list[Piece]]


def activity(
    engine: Engine,
    prompts: Sequence[Prompt],
    groups: Sequence[str],
    *,
    site: Site = "down_proj",
    where: Where = "last",
    plans: Sequence[Plan] | None = None,
    stage: str = "activity",
) -> Activity:
    """Streams prompts through the decoder and sums their neurons by group.

    Args:
        engine: of the model.
        prompts: what to run; an equal one counts as often as it is given.
        groups: the label of each prompt.
        site: where a neuron is read: `down_proj` (its input) or `act` (the activation function's output).
        where: what an input gives: `last`, `mean` or `all` of its tokens.
        plans: what acts on each prompt meanwhile.
        stage: name for the progress.

    Raises:
        InputError: labels and prompts differ in number; a site or a choice of tokens is unknown.
        UnsupportedModel: the layers differ in their number of neurons.
    """
    engine.look()
    if len(groups) != len(prompts):
        raise InputError(f"There are {len(groups)} group labels for {len(prompts)} prompts, but each takes one.")
    if site not in ("down_proj", "act") or where not in ("last", "mean", "all"):
        raise InputError(
            f"Activity was asked for site {site!r} and tokens {where!r}, but a site is down_proj or act, and tokens "
            "are last, mean or all; give one of each."
        )
    if len(sizes := {layer.neurons for layer in engine.geometry.layers}) > 1:
        raise UnsupportedModel(f"The layers have {sorted(sizes)} neurons, but activity needs the same number in all.")
    pieces: dict[str, list[Piece]] = {}
    for label, (prompt, plan) in zip(groups, pair_up(engine, prompts, plans), strict=True):
        pieces.setdefault(label, []).append(Piece.of(prompt, prompt.answer_start, (), plan))
    opened = {label: _open(engine, some, site, where) for label, some in pieces.items()}
    distinct = {group.key: group for group in opened.values()}  # two labels may stand for the same inputs
    progress = Meter(engine.progress, stage, sum(tokens(batch) for group in distinct.values() for batch in group.todo))
    records = {key: _run(engine, group, site, where, progress) for key, group in distinct.items()}
    size = 2 + 3 * engine.geometry.n_layers * engine.geometry.layers[0].neurons
    table = np.array([records[group.key] for group in opened.values()]).reshape(-1, size)
    sums = table[:, 2:].reshape(len(table), 3, engine.geometry.n_layers, engine.geometry.layers[0].neurons)
    return Activity(tuple(opened), table[:, 1].astype(np.int64), sums[:, 0], sums[:, 1], sums[:, 2])


def _open(engine: Engine, pieces: Sequence[Piece], site: Site, where: Where) -> _Group:
    """Lays out what is left of a group: inputs are taken in an order of their own, and the record counts them.

    In half precision, where a number depends on its batch mates, the size of batches is part of the key.
    """
    digests = [piece.digest() for piece in pieces]
    order = [index for batch in lay_out(pieces, digests, engine.batch_tokens) for index in batch]
    size = engine.batch_tokens if engine.half else 0
    listed = [digests[index] for index in order]
    key = digest([engine.salt, CAPTURE_VERSION, "activity", site, where, size, listed])
    record = engine.store.get([key]).get(key, (0.0,))
    rest = order[int(record[0]) :]
    layout = lay_out([pieces[index] for index in rest], [digests[index] for index in rest], engine.batch_tokens)
    return _Group(key, [[pieces[rest[at]] for at in batch] for batch in layout])


def _run(engine: Engine, group: _Group, site: Site, where: Where, progress: Meter) -> Float[np.ndarray, "m"]:
    """A group's record [inputs done, n, active, total, squares], after all of its batches."""
    kept = engine.store.get([group.key]).get(group.key)
    record = (
        np.zeros(2 + 3 * sum(layer.neurons for layer in engine.geometry.layers)) if kept is None else np.array(kept)
    )
    for batch in group.todo:
        engine.store.begin()
        n, sums = _sums(engine, batch, site, where)
        record[0] += len(batch)
        record[1] += n
        record[2:] += sums
        engine.store.replace(group.key, record.tolist())
        progress.add(tokens(batch))
    return record


@torch.inference_mode()
def _sums(engine: Engine, batch: Sequence[Piece], site: Site, where: Where) -> tuple[int, Float[np.ndarray, "m"]]:
    """How many x a batch gives, and their three sums, flat: sums before layers before neurons."""
    lengths = torch.tensor([len(piece.ids) for piece in batch], device=engine.device)
    found: dict[int, Tensor] = {}

    def read(layer: int) -> Callable[[Tensor], None]:
        def add(x: Tensor) -> None:
            found[layer] = _three_sums(_samples(x.view(len(batch), -1, x.shape[-1]), lengths.to(x.device), where))

        return add

    with steered(engine, batch) as ids, ExitStack() as undo:
        for layer, place in enumerate(engine.geometry.layers):
            module, add = engine.model.get_submodule(getattr(place, site)), read(layer)
            hook = _before(add) if site == "down_proj" else _after(add)
            register = module.register_forward_pre_hook if site == "down_proj" else module.register_forward_hook
            undo.callback(register(hook).remove)
        decode(engine, ids)
    sums = torch.stack([one.cpu() for one in by_layer(found, range(engine.geometry.n_layers))], dim=1)  # [3, l, n]
    return (int(lengths.sum()) if where == "all" else len(batch)), sums.flatten().numpy()


def _before(add: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, args: add(args[0])


def _after(add: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, args, output: add(output)


def _samples(x: Float[Tensor, "b q n"], lengths: Int[Tensor, "b"], where: Where) -> Iterator[Float[Tensor, "m n"]]:
    """What the inputs of a batch give, some rows at a time; nothing from under the pads."""
    inside = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    if where == "last":
        yield x[torch.arange(len(x), device=x.device), lengths - 1]
    elif where == "mean":
        wide = torch.promote_types(x.dtype, torch.float32)
        # Filled, not multiplied: what stands under a pad may have overflowed, and 0 * inf is NaN.
        yield x.masked_fill(~inside[..., None], 0.0).sum(dim=1, dtype=wide) / lengths[:, None]
    else:
        flat = x.flatten(0, 1)
        rows = _CPU_ROWS if x.device.type == "cpu" else _ROWS
        yield from (flat[some] for some in torch.split(inside.flatten().nonzero()[:, 0], rows))


def _three_sums(samples: Iterator[Float[Tensor, "m n"]]) -> Float[Tensor, "3 n"]:
    """Count above 0, sum and sum of squares, in float64."""
    sums = []
    for part in samples:
        wide = (part.cpu() if part.device.type == "mps" else part).double()  # MPS holds no float64
        sums.append(torch.stack([(part > 0).sum(dim=0), wide.sum(dim=0), (wide * wide).sum(dim=0)]))
    return torch.stack(sums).sum(dim=0)

"""What all captures share: prompts in plain padded batches, read once while they run, and kept.

    row r of a batch:  [ids of piece r | right pad],   position p stands at column p

Pads come after every token that is read, so causality alone keeps them out: there is no padding mask, the model's
kernel takes its causal path, and a row gives what it gives alone, to rounding. The layout depends on the list of
pieces alone, never on its order or on what a store holds. A batch is committed whole, so that a killed run computes
at most one again. In half precision a number depends on its batch mates, which are then part of its key.

Shapes: b prompts, q query positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from timonel.engine.batches import Meter, acting, digest, fill
from timonel.errors import InputError, UnsupportedModel
from timonel.prompts.prompt import Prompt
from timonel.steer.bound import Bound
from timonel.steer.plan import Plan

if TYPE_CHECKING:
    from timonel.engine.engine import Engine

CAPTURE_VERSION = 1
"""Raised whenever a change to the code changes a captured number by more than rounding."""

Compute = Callable[[Sequence["Piece"]], Sequence[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One prompt to run: the ids to feed, what is read from them in plain values, and what acts on them meanwhile."""

    ids: tuple[int, ...]
    asks: tuple[Any, ...]
    bound: Bound

    @classmethod
    def of(cls, prompt: Prompt, length: int, asks: tuple[Any, ...], plan: Plan) -> Piece:
        """A prompt's first `length` tokens: rows after the last one that is read cannot change it."""
        return cls(prompt.ids[:length], asks, plan.on(prompt).before(length))

    def digest(self) -> str:
        """A hash of all that its numbers depend on, beside the model and how it runs."""
        return digest([self.ids, self.asks, self.bound.signature()])


def pair_up(engine: Engine, prompts: Sequence[Prompt], plans: Sequence[Plan] | None) -> list[tuple[Prompt, Plan]]:
    """Each prompt with its plan, none being the unsteered model's; checks that the model knows the tokens."""
    for prompt in prompts:
        engine.geometry.check_tokens(prompt.ids, "A prompt")
    if plans is not None and len(plans) != len(prompts):
        raise InputError(f"There are {len(plans)} plans for {len(prompts)} prompts, but each prompt takes one.")
    return list(zip(prompts, [Plan()] * len(prompts) if plans is None else plans, strict=True))


def lay_out(pieces: Sequence[Piece], digests: Sequence[str], batch_tokens: int) -> list[list[int]]:
    """Batches of pieces of like length, as indices; a batch feeds at most `batch_tokens`, or is one piece."""
    order = sorted(range(len(pieces)), key=lambda i: (len(pieces[i].ids), digests[i]))
    return fill(order, lambda i: len(pieces[i].ids), batch_tokens)


def tokens(batch: Collection[Piece]) -> int:
    """Tokens that a batch feeds, pads included."""
    return max((len(piece.ids) for piece in batch), default=0) * len(batch)


def stream(
    engine: Engine, kind: str, pieces: Sequence[Piece], compute: Compute, *, stage: str, share: int = 1
) -> Iterator[list[tuple[int, tuple[float, ...]]]]:
    """Runs what the store does not hold, and hands out everything batch by batch; equal pieces run once.

    Args:
        engine: of the model; its `look` is the caller's to call.
        kind: what is captured; part of the keys.
        pieces: what to run.
        compute: the numbers of each piece of a batch, from one forward pass.
        stage: name for the progress.
        share: a batch feeds the engine's `batch_tokens` over this.

    Yields:
        For each batch the index of each of its pieces in `pieces`, with its numbers.
    """
    asked: dict[Piece, list[int]] = {}
    for number, piece in enumerate(pieces):
        asked.setdefault(piece, []).append(number)
    work = list(asked)
    digests = [piece.digest() for piece in work]
    layout = lay_out(work, digests, max(1, engine.batch_tokens // share))
    keys = [_keys(engine, kind, [digests[index] for index in batch]) for batch in layout]
    batches = [
        {key: work[index] for key, index in zip(some, batch, strict=True)}
        for some, batch in zip(keys, layout, strict=True)
    ]
    # Looked up batch by batch, here and below, so that memory does not grow with what the store holds.
    todo = [_missing(engine, batch) for batch in batches]
    progress = Meter(engine.progress, stage, sum(tokens(some.values()) for some in todo))
    for batch, some in zip(batches, todo, strict=True):
        if some:
            engine.store.begin()
            engine.store.put(dict(zip(some, compute(list(some.values())), strict=True)))
            progress.add(tokens(some.values()))
        kept = engine.store.get(batch)  # what was kept before stays, so that a later run reads the same
        yield [(number, kept[key]) for key, piece in batch.items() for number in asked[piece]]


def _missing(engine: Engine, batch: Mapping[str, Piece]) -> dict[str, Piece]:
    """What a batch has yet to compute; in half precision all of it or nothing, since its keys are its own."""
    kept = engine.store.get(batch)
    return {key: piece for key, piece in batch.items() if key not in kept}


def _keys(engine: Engine, kind: str, digests: Sequence[str]) -> list[str]:
    mates = list(digests) if engine.half else []
    return [digest([engine.salt, CAPTURE_VERSION, kind, mates, one]) for one in digests]


@contextmanager
def steered(engine: Engine, batch: Sequence[Piece]) -> Iterator[Int[Tensor, "b q"]]:
    """Inside, the plans of a batch act on the model; yields the token ids to feed, padded on the right."""
    width = max(len(piece.ids) for piece in batch)
    ids = torch.tensor([[*piece.ids, *[0] * (width - len(piece.ids))] for piece in batch], device=engine.device)
    with acting(engine.model, engine.geometry, [piece.bound for piece in batch], [0] * len(batch)):
        yield ids


def decode(engine: Engine, ids: Int[Tensor, "b q"]) -> Float[Tensor, "b q hidden"]:
    """One pass through the decoder, without a cache and without logits."""
    decoder = engine.model.get_submodule(engine.geometry.decoder)
    hidden: Tensor = decoder(input_ids=ids, use_cache=False).last_hidden_state
    return hidden


def by_layer(found: Mapping[int, Tensor], layers: Iterable[int]) -> list[Tensor]:
    """What was read at each layer; a layer that was passed by is an error, never a zero."""
    wanted = list(layers)
    if absent := [layer for layer in wanted if layer not in found]:
        raise UnsupportedModel(
            f"Layer {absent[0]} ran without passing where it is read (a compiled or replaced module?); load the model "
            "plainly."
        )
    return [found[layer] for layer in wanted]

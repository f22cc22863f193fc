"""What everything that runs in batches shares: a key, a way to fill batches, a word on how far it has come."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from timonel.errors import UnsupportedModel
from timonel.models.geometry import Geometry
from timonel.steer.attach import attach_bound
from timonel.steer.bound import Bound

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, the work done and the work in all, in one unit."""


def digest(content: object) -> str:
    """A hash of plain values."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def fill(order: Iterable[int], width: Callable[[int], int], batch_tokens: int) -> list[list[int]]:
    """Batches of pieces that come shortest first, as indices; a batch feeds at most `batch_tokens`, or is one piece."""
    batches: list[list[int]] = []
    for index in order:
        if not batches or width(index) * (len(batches[-1]) + 1) > batch_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


class Meter:
    """Tells a progress how far a stage has come."""

    def __init__(self, progress: Progress | None, stage: str, total: int) -> None:
        """Begins at 0 of `total`; says nothing where there is nothing to do."""
        self._progress, self._stage, self._total, self._done = progress, stage, total, 0
        if total:
            self.add(0)

    def add(self, done: int) -> None:
        """Some more is done."""
        self._done += done
        if self._progress:
            self._progress(self._stage, self._done, self._total)


@contextmanager
def acting(model: PreTrainedModel, geometry: Geometry, bounds: Sequence[Bound], pads: Sequence[int]) -> Iterator[None]:
    """Inside, each row's plan acts on one forward pass, in the model's own precision.

    Numbers are kept as this dtype's, and a caller's autocast would make others under the same key.

    Raises:
        UnsupportedModel: an edge did not act on all rows that it names.
    """
    device = model.get_input_embeddings().weight.device
    with (
        torch.autocast(device.type, enabled=False),
        attach_bound(model, bounds, geometry, track=False, pads=pads) as attached,
    ):
        yield
        if attached.fired != attached.expected:
            raise UnsupportedModel(
                f"The plans of a batch name {attached.expected} rows of heads, but {attached.fired} were rewritten; "
                "this model's attention does not pass where it should, so what is read from it would be wrong."
            )

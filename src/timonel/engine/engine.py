"""The engine: prompts x conditions in, scores out; the studies say what they need and never how."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from timonel.engine import budget
from timonel.engine.batches import Meter, Progress
from timonel.engine.forward import Scores, run_unit
from timonel.engine.identity import Identity
from timonel.engine.layout import lay_out
from timonel.engine.request import Request, Work
from timonel.engine.store import Store
from timonel.engine.unit import Shape, Unit, remaining
from timonel.engine.workers import RayWorkers
from timonel.engine.workload import Workload
from timonel.errors import InputError
from timonel.models.fingerprint import tokenizer_hash
from timonel.models.geometry import Geometry
from timonel.steer.attach import is_steered

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_BATCH = "batch_tokens"
_LOG = logging.getLogger("timonel")


@dataclass(frozen=True, slots=True)
class _Queue:
    """Requests laid out: distinct work, each request's place in it, units, store keys, and what is known already."""

    work: list[Work]
    place: list[int]
    units: tuple[Unit, ...]
    keys: list[str]
    known: dict[str, tuple[float, ...]]

    @property
    def missing(self) -> set[int]:
        """The work that is not known."""
        return {index for index, key in enumerate(self.keys) if key not in self.known}


class Engine:
    """Runs requests on one model; keeps what it computed in a store."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        store: Store | None = None,
        batch_tokens: int | None = None,
        progress: Progress | None = None,
        workers: RayWorkers | None = None,
    ) -> None:
        """Prepares an engine; the model is neither moved nor changed.

        Args:
            model: any supported causal language model.
            tokenizer: its tokenizer, for the fingerprint.
            store: where scores are kept; None keeps them in memory.
            batch_tokens: tokens a forward pass may feed, padding included; None takes what keeps the processor busy
                and fits the memory that is free (at most 2,048 on a CPU and 16,384 elsewhere).
            progress: told how far a call has come.
            workers: actors that score instead of this process, each with the same model; captures stay here.
        """
        if batch_tokens is not None and batch_tokens < 1:
            raise InputError(f"--batch-tokens is {batch_tokens}, but a batch needs at least one token; try 2048.")
        self.model = model
        self.geometry = Geometry.of(model)
        # Once: scores depend on ids alone, and a large vocabulary takes longer to hash than a small call to run.
        self._tokenizer = tokenizer_hash(tokenizer)
        self.store = Store() if store is None else store  # an empty store is falsy
        self.progress = progress
        self.workers = workers
        self.device = model.get_input_embeddings().weight.device
        self._sized = batch_tokens is None
        self.batch_tokens = batch_tokens or budget.batch_tokens(model, self.geometry)
        # A GPU's pass takes tens of milliseconds to start, in which it could run a thousand tokens.
        self._shape = Shape.of(self.geometry, overhead=32 if self.device.type == "cpu" else 1024)
        self.look()

    def look(self) -> None:
        """Takes down what scores depend on beside the prompts; at every call, since the model is the user's."""
        model = self.model
        if model.training:
            raise InputError(
                "The model is in training mode, where dropout makes scores random; call model.eval() first."
            )
        if is_steered(model, self.geometry):
            raise InputError(
                "A plan is attached to this model, and scores would be kept as the plain model's; score outside of the "
                "with block, and hand the plan to the request."
            )
        identity = Identity.of(model, self._tokenizer)
        self.fingerprint, self.salt, self.half = identity.fingerprint, identity.salt, identity.half
        if self.half and self._sized:
            # A resumed run lays out as the first one did, however much memory is free now.
            self.batch_tokens = self.store.setting(_BATCH, self.batch_tokens)

    def score(self, requests: Sequence[Request], *, stage: str = "score") -> list[tuple[float, ...]]:
        """Log-probabilities of the answers of each request, in order; equal requests are computed once.

        Args:
            requests: what to score.
            stage: name for the progress.

        Returns:
            For each request one float64 number an answer, from scores computed in at least float32.
        """
        found = dict(self.stream(requests, stage=stage))
        return [found[index] for index in range(len(requests))]

    def stream(self, requests: Sequence[Request], *, stage: str = "score") -> Iterator[tuple[int, tuple[float, ...]]]:
        """The same as they come: the number of a request, and its scores; what the store holds comes first.

        Where memory runs out, the rest goes on in smaller batches. In half precision, where scores depend on their
        batch mates, all requests then come again: the later scores are those that belong together.
        """
        handed: set[int] = set()
        while True:
            try:
                for number, scores in self._attempt(requests, stage):
                    if number not in handed or self.half:
                        handed.add(number)
                        yield number, scores
                return
            except Exception as error:
                if not budget.is_out_of_memory(error):
                    raise
                self._shrink(error)

    def _attempt(self, requests: Sequence[Request], stage: str) -> Iterator[tuple[int, tuple[float, ...]]]:
        queue = self._queue(requests)
        asked: dict[int, list[int]] = {}
        for number, index in enumerate(queue.place):
            asked.setdefault(index, []).append(number)
        for index, key in enumerate(queue.keys):
            if key in queue.known:
                yield from ((number, queue.known[key]) for number in asked[index])
        for index, one in self._compute(queue, stage):
            yield from ((number, one) for number in asked[index])

    def _shrink(self, error: Exception) -> None:
        """Halves the budget, or gives up where it is at its smallest."""
        if self.batch_tokens <= budget.SMALLEST:
            raise InputError(
                f"Memory ran out with batches of {self.batch_tokens} tokens ({str(error) or type(error).__name__}); "
                "take a smaller dtype or a device with more memory."
            ) from error
        self.batch_tokens = max(budget.SMALLEST, self.batch_tokens // 2)
        if self.half:
            self.store.setting(_BATCH, self.batch_tokens, replace=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        _LOG.warning("Memory ran out; going on with batches of at most %s tokens.", self.batch_tokens)

    def _compute(self, queue: _Queue, stage: str) -> Iterator[tuple[int, tuple[float, ...]]]:
        """Runs what is missing, unit by unit; each forward pass's scores are kept before they are handed out."""
        missing = queue.missing
        todo = remaining(queue.units, missing)
        if not todo:
            return
        progress = Meter(self.progress, stage, sum(unit.cost(self.geometry.n_layers) for unit in todo))
        workers = self.workers
        steps = self._spread(workers, todo, queue, missing) if workers else self._here(todo, queue, missing)
        for cost, scores in steps:
            yield from scores.items()
            progress.add(cost)

    def _here(self, units: Sequence[Unit], queue: _Queue, missing: set[int]) -> Iterator[tuple[int, Scores]]:
        """Units one after the other on this model; one step is a forward pass."""
        for unit in units:
            passes = run_unit(self.model, self.geometry, unit, queue.work)
            for cost in unit.costs(self.geometry.n_layers):
                self.store.begin()
                yield cost, self._keep(next(passes), queue, missing)

    def _spread(
        self, workers: RayWorkers, units: Sequence[Unit], queue: _Queue, missing: set[int]
    ) -> Iterator[tuple[int, Scores]]:
        """Units over the workers; one step is a unit."""
        workers.start(self.salt)
        for unit, found in workers.run(units, queue.work):
            costs = unit.costs(self.geometry.n_layers)
            self.store.begin(len(costs))
            yield sum(costs), self._keep(found, queue, missing)

    def _keep(self, found: Scores, queue: _Queue, missing: set[int]) -> Scores:
        """Keeps what was missing; what is kept already stays, so that a later run reads the same to the last bit."""
        scores = {index: one for index, one in found.items() if index in missing}
        self.store.put({queue.keys[index]: one for index, one in scores.items()})
        return scores

    def workload(self, requests: Sequence[Request]) -> Workload:
        """What these requests would cost now; computes nothing."""
        queue = self._queue(requests)
        return Workload.of(requests, queue.work, queue.units, queue.missing, self._shape)

    def rate(self, requests: Sequence[Request], *, seconds: float = 10.0) -> float:
        """Tokens a second through all layers on a trial of these requests; keeps the scores that it computes."""
        queue = self._queue(requests)
        cost, start = 0, time.perf_counter()
        everything = set(range(len(queue.work)))
        # Evenly spread units show all lengths; those at one end would not.
        for unit in queue.units[:: max(1, len(queue.units) // 16)]:
            for spent, _ in self._here([unit], queue, everything):
                cost += spent
                if time.perf_counter() - start > seconds:
                    break
            if time.perf_counter() - start > seconds:
                break
        return cost / self.geometry.n_layers / (time.perf_counter() - start)

    def _queue(self, requests: Sequence[Request]) -> _Queue:
        """Lays the requests out on the model as it is now, and looks up what is known of them."""
        self.look()
        work, place = self._distinct(requests)
        units = lay_out(work, self._shape, batch_tokens=self.batch_tokens)
        keys = self._keys(work, units)
        return _Queue(work, place, units, keys, self.store.get(keys))

    def _distinct(self, requests: Sequence[Request]) -> tuple[list[Work], list[int]]:
        """The distinct pieces of work, and for each request which of them it is."""
        index: dict[Work, int] = {}
        for request in requests:
            named = (token for answer in request.answers for _, some in answer for token in some)
            self.geometry.check_tokens((*request.prompt.ids, *named), "A request")
        place = [index.setdefault(Work.of(request), len(index)) for request in requests]
        return list(index), place

    def _keys(self, work: Sequence[Work], units: Sequence[Unit]) -> list[str]:
        """The store's key of each piece; in half precision a score depends on its batch mates, so they are in it."""
        salts = [self.salt] * len(work)
        if self.half:
            for member, mates in (pair for unit in units for pair in unit.mates(work)):
                salts[member] = f"{self.salt}|{mates}"
        return [one.key(salt) for one, salt in zip(work, salts, strict=True)]

"""The engine: prompts x conditions in, scores out; the studies say what they need and never how."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from timonel.engine.forward import run_batch
from timonel.engine.layout import Batch, lay_out
from timonel.engine.request import Request, Work
from timonel.engine.store import Store
from timonel.errors import InputError
from timonel.models.fingerprint import fingerprint
from timonel.models.geometry import Geometry
from timonel.steer.attach import is_steered

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

SCORING_VERSION = 1
"""Raised whenever a change to the code changes a score by more than rounding; old scores are then not reused."""

Progress = Callable[[str, int, int], None]
"""Called with a stage's name, the tokens done and the tokens in all."""

# Rows of logits a batch may hold: a quarter of a GiB in float32.
_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True)
class Workload:
    """What a list of requests costs.

    Attributes:
        requests: as asked for; `distinct` after equal ones are merged; `missing` not in the store yet.
        plain_tokens: fed by a loop that runs each request whole.
        tokens: fed by the engine for what is missing, padding included.
        batches: for what is missing.
    """

    requests: int
    distinct: int
    missing: int
    plain_tokens: int
    tokens: int
    batches: int


@dataclass(frozen=True, slots=True)
class _Queue:
    """Requests laid out: distinct work, each request's place in it, batches, store keys, and what is known already."""

    work: list[Work]
    place: list[int]
    layout: tuple[Batch, ...]
    keys: list[str]
    known: dict[str, tuple[float, ...]]

    @property
    def todo(self) -> list[Batch]:
        """The batches in which something is not known."""
        return [batch for batch in self.layout if any(self.keys[member] not in self.known for member in batch.members)]


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
    ) -> None:
        """Prepares an engine; the model is neither moved nor changed.

        Args:
            model: any supported causal language model.
            tokenizer: its tokenizer, for the fingerprint.
            store: where scores are kept; None keeps them in memory.
            batch_tokens: tokens a batch may feed, padding included; None takes 2,048 on a CPU and 16,384 elsewhere.
            progress: told how far a call has come.
        """
        if batch_tokens is not None and batch_tokens < 1:
            raise InputError(f"--batch-tokens is {batch_tokens}, but a batch needs at least one token; try 2048.")
        self.model = model
        self.geometry = Geometry.of(model)
        self._tokenizer = tokenizer
        self.store = Store() if store is None else store  # an empty store is falsy
        self.progress = progress
        self.device = model.get_input_embeddings().weight.device
        self.batch_tokens = batch_tokens or (2048 if self.device.type == "cpu" else 16384)
        self.look()

    def look(self) -> None:
        """Takes down what scores depend on beside the prompts; at every call, since the model is the user's.

        The fingerprint knows no config, but a window, a soft cap or a rotary base changes scores, so the config is
        hashed beside it.
        """
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
        dtypes = {parameter.dtype for parameter in model.parameters()}
        implementation = getattr(model.config, "_attn_implementation", None)
        self.fingerprint = fingerprint(model, self._tokenizer)
        self.half = bool(dtypes & {torch.float16, torch.bfloat16})
        # In float64 transformers' eager attention makes NaN of pads: the mask overflows its float32 softmax.
        self._even = torch.float64 in dtypes and implementation != "sdpa"
        names = sorted(str(dtype) for dtype in dtypes)
        self.salt = f"{SCORING_VERSION}|{self.fingerprint}|{_config_hash(model)}|{names}|{implementation}"

    def score(self, requests: Sequence[Request], *, stage: str = "score") -> list[tuple[float, ...]]:
        """Log-probabilities of the answers of each request, in order; equal requests are computed once.

        Args:
            requests: what to score.
            stage: name for the progress.

        Returns:
            For each request one float64 number an answer, from scores computed in at least float32.
        """
        queue = self._queue(requests)
        known, todo = queue.known, queue.todo
        total = sum(batch.tokens(queue.work) for batch in todo)
        done = 0
        if todo and self.progress:
            self.progress(stage, 0, total)
        for batch in todo:
            for key, one in self._run(batch, queue).items():
                known.setdefault(key, one)  # what is kept already stays, so that a later run reads the same
            done += batch.tokens(queue.work)
            if self.progress:
                self.progress(stage, done, total)
        return [known[queue.keys[index]] for index in queue.place]

    def workload(self, requests: Sequence[Request]) -> Workload:
        """What these requests would cost now; computes nothing."""
        queue = self._queue(requests)
        todo = queue.todo
        return Workload(
            requests=len(requests),
            distinct=len(queue.work),
            missing=sum(key not in queue.known for key in queue.keys),
            plain_tokens=sum(len(request.prompt) for request in requests),
            tokens=sum(batch.tokens(queue.work) for batch in todo),
            batches=len(todo),
        )

    def rate(self, requests: Sequence[Request], *, seconds: float = 10.0) -> float:
        """Tokens a second on a trial of these requests; keeps the scores that it computes."""
        queue = self._queue(requests)
        tokens, start = 0, time.perf_counter()
        # From the middle outwards would bias to common lengths; evenly spread batches show them all.
        for batch in queue.layout[:: max(1, len(queue.layout) // 16)]:
            self._run(batch, queue)
            tokens += batch.tokens(queue.work)
            if time.perf_counter() - start > seconds:
                break
        return tokens / (time.perf_counter() - start)

    def _queue(self, requests: Sequence[Request]) -> _Queue:
        """Lays the requests out on the model as it is now, and looks up what is known of them."""
        self.look()
        work, place = self._distinct(requests)
        layout = self._layout(work)
        keys = self._keys(work, layout)
        return _Queue(work, place, layout, keys, self.store.get(keys))

    def _run(self, batch: Batch, queue: _Queue) -> dict[str, tuple[float, ...]]:
        """Computes one batch and keeps it."""
        self.store.begin()
        answers = run_batch(self.model, self.geometry, batch, queue.work)
        fresh = {queue.keys[member]: tuple(one) for member, one in zip(batch.members, answers, strict=True)}
        self.store.put(fresh)
        return fresh

    def _distinct(self, requests: Sequence[Request]) -> tuple[list[Work], list[int]]:
        """The distinct pieces of work, and for each request which of them it is."""
        index: dict[Work, int] = {}
        vocabulary = self.geometry.vocab
        for request in requests:
            tokens = (
                *request.prompt.ids,
                *(token for answer in request.answers for _, some in answer for token in some),
            )
            if min(tokens) < 0 or max(tokens) >= vocabulary:
                raise InputError(
                    f"A request has token {max(tokens)}, but this model's vocabulary is 0 to {vocabulary - 1}; "
                    "use the model's own tokenizer."
                )
        place = [index.setdefault(Work.of(request), len(index)) for request in requests]
        return list(index), place

    def _layout(self, work: Sequence[Work]) -> tuple[Batch, ...]:
        vocabulary = self.geometry.vocab
        return lay_out(
            work,
            batch_tokens=self.batch_tokens,
            max_readings=max(1, _LOGITS // vocabulary),
            even=self._even,
        )

    def _keys(self, work: Sequence[Work], layout: Sequence[Batch]) -> list[str]:
        """The store's key of each piece; in half precision a score depends on its batch mates, so they are in it."""
        salts = [self.salt] * len(work)
        if self.half:
            for batch in layout:
                mates = hashlib.sha256(f"{self.salt}|{batch.layout_hash(work)}".encode()).hexdigest()
                for member in batch.members:
                    salts[member] = mates
        return [one.key(salt) for one, salt in zip(work, salts, strict=True)]


# What a config says of where a checkpoint came from, or how it is held: none of it changes a score.
_NOT_COMPUTED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache")


def _config_hash(model: PreTrainedModel) -> str:
    """A hash of all in the config that may change what the model computes."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_COMPUTED}
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()

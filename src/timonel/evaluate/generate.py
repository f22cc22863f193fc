r"""Greedy generation of many prompts, kept as it goes: the same tokens that `model.generate` writes on each alone.

    t_i = argmax_v  logits(prompt, t_1 .. t_(i-1))[v]      until an EOS token, a stop string, or n new tokens

    row r of a batch:  [left pad | ids of prompt r | t_1 t_2 ..]       ids, mask, positions: [b, q]

Batches hold prompts of like length, and depend on the list of prompts alone: never on the plans or on what a store
holds, so that the unsteered model and every plan share their batches. A batch is committed whole; a killed run
computes at most one again. In half precision a token may depend on its batch mates, which are then part of its key.
EOS is what the model's generation config names, else the tokenizer's. A stop string is looked for in what was written,
special tokens left out; the tokens end with the one that completes it, the text ends before it.

Errors:
    InputError: a token outside the vocabulary, a prompt with an answer in it, plans that do not match in number.

Does not show: what a model would write when sampled, nor that two best logits were far apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timonel.engine.batches import Meter, digest, fill
from timonel.errors import InputError
from timonel.evaluate._greedy import Greedy, end_tokens, text_of, write
from timonel.prompts import Prompt
from timonel.steer import Plan, attach

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from timonel.engine import Engine

GENERATION_VERSION = 1
"""Raised whenever a change to the code may change a token; old ones are then not reused."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written on one prompt.

    Attributes:
        ids: the new tokens, EOS included where it was written.
        text: the same as text, without special tokens, cut before a stop string.
    """

    ids: tuple[int, ...]
    text: str


def generate(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    plans: Plan | Sequence[Plan] | None = None,
    how: Greedy | None = None,
    *,
    stage: str = "generate",
) -> list[Written]:
    """Writes on each prompt, or takes from the engine's store what was written before.

    Args:
        engine: of the model.
        tokenizer: its tokenizer.
        prompts: what to write on, with the spans that the plans name.
        plans: none, one for all prompts, or one for each.
        how: five tokens and no stop string by default.
        stage: name for the progress.

    Returns:
        One text a prompt, in order.
    """
    queue = _Queue.of(engine, tokenizer, prompts, plans, how or Greedy())
    kept = engine.store.get([key for some in queue.keys for key in some])
    todo = [number for number, some in enumerate(queue.keys) if any(key not in kept for key in some)]
    if todo:
        queue.try_out(engine, todo[-1])
    progress = Meter(engine.progress, stage, sum(queue.cost(number) for number in todo))
    for number in todo:
        kept.update(queue.run(engine, number))
        progress.add(queue.cost(number))
    by_prompt = {index: kept[key] for index, key in queue.placed()}
    return [queue.written(by_prompt[index]) for index in range(len(prompts))]


@dataclass(frozen=True)
class _Queue:
    """Prompts and plans laid out in batches, with a store key for each."""

    tokenizer: PreTrainedTokenizerBase
    prompts: Sequence[Prompt]
    plans: Sequence[Plan]
    how: Greedy
    ends: tuple[int, ...]
    batches: list[list[int]]
    keys: list[list[str]]

    @classmethod
    def of(
        cls,
        engine: Engine,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        plans: Plan | Sequence[Plan] | None,
        how: Greedy,
    ) -> _Queue:
        engine.look()
        for prompt in prompts:
            if "answer" in prompt.spans:
                raise InputError("A prompt to write on holds an answer already; make it without one.")
            engine.geometry.check_tokens(prompt.ids, "A prompt")
        each = [plans or Plan()] * len(prompts) if plans is None or isinstance(plans, Plan) else list(plans)
        if len(each) != len(prompts):
            raise InputError(f"There are {len(each)} plans for {len(prompts)} prompts; give one, or one a prompt.")
        ends = end_tokens(engine.model, tokenizer)
        digests = [
            digest([prompt.ids, plan.on(prompt).signature()]) for prompt, plan in zip(prompts, each, strict=True)
        ]
        batches = lay_out(prompts, how.tokens, engine.batch_tokens)
        salt = [engine.salt, GENERATION_VERSION, "generate", how.tokens, how.stops, ends]
        keys = []
        for batch in batches:
            mates = [digests[index] for index in batch] if engine.half else []
            keys.append([digest([*salt, mates, digests[index]]) for index in batch])
        return cls(tokenizer, prompts, each, how, ends, batches, keys)

    def cost(self, number: int) -> int:
        """Tokens that a batch feeds at most, pads included."""
        return len(self.batches[number]) * (_width(self.prompts, self.batches[number]) + self.how.tokens)

    def placed(self) -> Iterator[tuple[int, str]]:
        """Each prompt's index with its key."""
        for batch, keys in zip(self.batches, self.keys, strict=True):
            yield from zip(batch, keys, strict=True)

    def try_out(self, engine: Engine, number: int) -> None:
        """Self-tests the plans once, on the longest prompts that are left, where a window is likeliest to bite."""
        prompts, plans = self._of(number)
        if not all(plan.is_identity for plan in plans):
            with attach(engine.model, plans, prompts=prompts, geometry=engine.geometry):
                pass

    def run(self, engine: Engine, number: int) -> dict[str, tuple[float, ...]]:
        """Computes one batch and keeps it; what was kept before stays, so that a later run reads the same."""
        engine.store.begin()
        rows = write(engine, self.tokenizer, *self._of(number), self.how, self.ends)
        keys = self.keys[number]
        engine.store.put({key: [float(token) for token in row] for key, row in zip(keys, rows, strict=True)})
        return engine.store.get(keys)

    def written(self, kept: Sequence[float]) -> Written:
        """A kept record as tokens and text."""
        ids = tuple(int(token) for token in kept)
        text = text_of(self.tokenizer, ids)
        return Written(ids, text[: min((text.find(stop) for stop in self.how.stops if stop in text), default=None)])

    def _of(self, number: int) -> tuple[list[Prompt], list[Plan]]:
        batch = self.batches[number]
        return [self.prompts[index] for index in batch], [self.plans[index] for index in batch]


def lay_out(prompts: Sequence[Prompt], tokens: int, batch_tokens: int) -> list[list[int]]:
    """Batches of prompts of like length, as indices; a batch feeds at most `batch_tokens`, or is one prompt."""
    order = sorted(range(len(prompts)), key=lambda i: (len(prompts[i]), prompts[i].ids, i))
    return fill(order, lambda i: len(prompts[i]) + tokens, batch_tokens)


def _width(prompts: Sequence[Prompt], batch: Sequence[int]) -> int:
    return max(len(prompts[index]) for index in batch)

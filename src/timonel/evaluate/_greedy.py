"""One batch of greedy decoding, with a KV cache and left pads: what `generate` runs and keeps.

Shapes: b prompts, q query positions; ids, mask and positions are [b, q].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from timonel.errors import InputError
from timonel.prompts import Prompt
from timonel.steer import Plan, attach

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from timonel.engine import Engine


@dataclass(frozen=True, slots=True)
class Greedy:
    """How text is written: at most `tokens` new ones, ended early by any of the strings in `stops`."""

    tokens: int = 5
    stops: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.tokens < 1 or not all(self.stops):
            raise InputError(
                f"{self.tokens} new tokens with the stop strings {list(self.stops)} were asked for, but at least one "
                "token is written and no stop string is empty; give 1 or more, and leave out the empty string."
            )


@torch.inference_mode()
def write(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    plans: Sequence[Plan],
    how: Greedy,
    ends: Sequence[int],
) -> list[list[int]]:
    """One batch, token by token; a row that is done is fed on until all are, and its later tokens are not taken."""
    width = max(len(prompt) for prompt in prompts)
    pads = [width - len(prompt) for prompt in prompts]
    fed = torch.tensor([[0] * pad + list(prompt.ids) for pad, prompt in zip(pads, prompts, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
    fed, mask = fed.to(engine.device), mask.to(engine.device)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    rows: list[list[int]] = [[] for _ in prompts]
    open_rows, cache = set(range(len(rows))), None
    model: Any = engine.model
    with (
        torch.autocast(engine.device.type, enabled=False),
        attach(model, plans, prompts=prompts, geometry=engine.geometry, check=False),
    ):
        while True:
            out = model(
                input_ids=fed,
                attention_mask=mask,
                position_ids=positions,
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            best, cache = out.logits[:, -1].argmax(dim=-1), out.cache
            for row, token in enumerate(best.tolist()):
                if row in open_rows:
                    rows[row].append(token)
            open_rows = {row for row in open_rows if not _is_done(tokenizer, rows[row], how, ends)}
            if not open_rows:
                return rows
            fed, positions = best[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)


def _is_done(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], how: Greedy, ends: Sequence[int]) -> bool:
    if len(ids) >= how.tokens or ids[-1] in ends:
        return True
    text = text_of(tokenizer, ids) if how.stops else ""
    return any(stop in text for stop in how.stops)


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=True))


def end_tokens(model: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The EOS tokens."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    named = tokenizer.eos_token_id if named is None else named
    return () if named is None else tuple(named) if isinstance(named, (list, tuple)) else (int(named),)

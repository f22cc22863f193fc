"""Ragged prompts with spans, padded by hand, and what is left of a batch's logits without the pads."""

from __future__ import annotations

import torch

from timonel.prompts import Prompt

# Longer than the tiny models' window of 8, so that windows bite.
LENGTHS = (14, 11)


def prompts(seed: int = 0) -> list[Prompt]:
    random = torch.Generator().manual_seed(seed)
    made = []
    for length in LENGTHS:
        ids = tuple(torch.randint(3, 200, (length,), generator=random).tolist())
        made.append(Prompt(ids, {"item": (2, 3, 4), "identity": (length - 5, length - 4), "last": (length - 1,)}))
    return made


def padded(made: list[Prompt], side: str) -> dict[str, torch.Tensor]:
    width = max(map(len, made))
    ids, mask = (
        torch.zeros(len(made), width, dtype=torch.long),
        torch.zeros(len(made), width, dtype=torch.long),
    )
    for row, prompt in enumerate(made):
        at = slice(width - len(prompt), width) if side == "left" else slice(0, len(prompt))
        ids[row, at], mask[row, at] = torch.tensor(prompt.ids), 1
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def kept(logits: torch.Tensor, made: list[Prompt], side: str) -> torch.Tensor:
    width = max(map(len, made))
    return torch.cat(
        [
            logits[row, width - len(prompt) :] if side == "left" else logits[row, : len(prompt)]
            for row, prompt in enumerate(made)
        ]
    )

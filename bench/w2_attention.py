"""W2: attention along two edges at all heads of 128 prompts; a turn is all of them, in one call.

The plain forward is the model's decoder over the very tokens that the capture runs (up to the last query row), in
batches of the same size, without logits. What a user would pick instead, `output_attentions` of an eager model, runs
over the same tokens too. Memory is the peak above the loaded model, of all prompts in one call, each way in a process
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from bench import cases
from bench.measure import Side, agree, alternate, ratio
from bench.memory import share_of_peaks, touch
from bench.result import Result, Row
from bench.settings import Settings
from timonel.engine import Engine, Store
from timonel.engine.capture import attention
from timonel.prompts import Prompt
from timonel.steer import span

MODEL, PROMPTS, FEW = "smollm2-135m", 128, 16
EDGES = [(span("varied"), span("item")), (span("other"), span("item"))]
# A feature is a mean of sums of attention weights, in float32.
TOLERANCE = 2e-5


def until_read(prompt: Prompt) -> tuple[int, ...]:
    """The tokens up to the last query row: later ones change nothing that is read."""
    return prompt.ids[: max(prompt.positions("varied", "other")) + 1]


def batches(prompts: Sequence[Prompt], budget: int) -> list[list[int]]:
    """Prompts of like length together, as indices."""
    made: list[list[int]] = []
    for index in sorted(range(len(prompts)), key=lambda i: len(until_read(prompts[i]))):
        if not made or len(until_read(prompts[index])) * (len(made[-1]) + 1) > budget:
            made.append([])
        made[-1].append(index)
    return made


def padded(prompts: Sequence[Prompt], device: Any) -> torch.Tensor:
    """Right-padded ids; what stands under the pads comes after all that is read."""
    width = max(len(until_read(prompt)) for prompt in prompts)
    return torch.tensor([[*until_read(one), *[0] * (width - len(until_read(one)))] for one in prompts], device=device)


@torch.inference_mode()
def plain(model: Any, decoder: str, prompts: Sequence[Prompt], budget: int) -> None:
    """The decoder alone."""
    for some in batches(prompts, budget):
        model.get_submodule(decoder)(input_ids=padded([prompts[i] for i in some], model.device), use_cache=False)


@torch.inference_mode()
def eager(model: Any, prompts: Sequence[Prompt], budget: int) -> list[Any]:
    """From the attention weights of all layers, as transformers hands them out."""
    found: list[Any] = [None] * len(prompts)
    for some in batches(prompts, budget):
        ids = padded([prompts[i] for i in some], model.device)
        weights = model(input_ids=ids, output_attentions=True, use_cache=False, logits_to_keep=1).attentions
        for row, index in enumerate(some):
            found[index] = [_along(weights, row, prompts[index], edge) for edge in EDGES]
    return found


def _along(weights: Sequence[torch.Tensor], row: int, prompt: Prompt, edge: tuple[Any, Any]) -> list[float]:
    queries, keys = (list(prompt.positions(*one.names)) for one in edge)
    read = [layer[row][:, queries][:, :, keys].float().sum(-1).mean(-1) for layer in weights]
    found: list[float] = torch.cat(read).tolist()
    return found


def captured(engine: Engine, prompts: Sequence[Prompt]) -> np.ndarray:
    """By the engine, which must not know them yet."""
    engine.store = Store()
    return attention(engine, prompts, EDGES)


def prompts_of(tokenizer: Any, count: int) -> tuple[list[Prompt], str]:
    """The two prompts of as many pairs as it takes."""
    some, source = cases.pairs(count // 2)
    return [request.prompt for both in cases.letters(tokenizer, some) for request in both], source


def memory(way: str, size: int) -> Callable[[], object]:
    """The whole work one way, ready to run once the model is loaded."""
    import timonel as tm

    model, tokenizer = tm.load(MODEL, attn_implementation="eager" if way == "eager" else None)
    prompts, _ = prompts_of(tokenizer, size)
    engine = Engine(model, tokenizer)
    touch(model)
    if way == "eager":
        return lambda: eager(model, prompts, engine.batch_tokens)
    return lambda: captured(engine, prompts)


def run(settings: Settings) -> Result:
    import timonel as tm

    model, tokenizer = tm.load(MODEL)
    twin, _ = tm.load(MODEL, attn_implementation="eager")
    engine = Engine(model, tokenizer)
    every, source = prompts_of(tokenizer, PROMPTS)
    work = [every[::FEW], every]  # the warm-up, in which the sides are compared, and a turn
    decoder, budget = engine.geometry.decoder, engine.batch_tokens
    sides: dict[str, Side] = {
        "timonel": lambda turn: captured(engine, work[turn]),
        "output_attentions": lambda turn: eager(twin, work[turn], budget),
    }
    checks = [f"pairs of {source}", agree({name: side(0) for name, side in sides.items()}, TOLERANCE)]
    sides["plain"] = lambda turn: plain(model, decoder, work[turn], budget)
    sides["plain"](0)
    clocks = alternate(sides, [1] * settings.rounds(3))
    peaks = share_of_peaks("w2_attention", ("timonel", PROMPTS), ("eager", PROMPTS), 3, settings.threads)
    rows = (
        Row("timonel / plain forward of the same tokens", ratio(clocks["timonel"], clocks["plain"]), "<=", (1.15,)),
        Row("output_attentions / timonel", ratio(clocks["output_attentions"], clocks["timonel"])),
        Row("peak memory above the model, timonel / output_attentions", peaks, "<=", (0.25,)),
    )
    return Result("W2", f"attention of all heads along two edges ({MODEL}, {PROMPTS} prompts)", rows, tuple(checks))

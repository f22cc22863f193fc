"""W3: neuron activity by language: 12 languages x 20 inputs of 48 tokens; a turn is all of it, in one call.

The plain forward is the model's decoder over the same batches, without logits. Beside it, the same sums of the last
token as a user of nnsight takes them. Texts are XQuAD's contexts, where `TIMONEL_DATA` has them, else made up; the
tokens are real ones either way, and what a forward pass costs does not depend on which.
"""

from __future__ import annotations

import json
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
from timonel.engine.activity import Where
from timonel.engine.capture import activity
from timonel.prompts import Prompt

MODEL, INPUTS, LENGTH = "gemma3-270m", 20, 48
LANGUAGES = ("ar", "de", "el", "en", "es", "hi", "ro", "ru", "th", "tr", "vi", "zh")
# Of a sum over 20 inputs, relative to its size; x is a float32 number.
TOLERANCE = 1e-4


def prompts_of(tokenizer: Any, language: str, count: int) -> list[Prompt]:
    """The first tokens of some texts; longer lists begin like shorter ones."""
    file = cases.data_dir() / "xquad" / f"xquad.{language}.json"
    if file.is_file():
        articles = json.loads(file.read_text(encoding="utf-8"))["data"]
        texts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
        ids = [tuple(tokenizer(text)["input_ids"][:LENGTH]) for text in texts]
        full = [one for one in ids if len(one) == LENGTH]
    else:
        rng = np.random.default_rng(LANGUAGES.index(language))
        full = [tuple(int(token) for token in rng.integers(1000, 100000, LENGTH)) for _ in range(count)]
    return [Prompt(full[index % len(full)], {}) for index in range(count)]


def captured(engine: Engine, parts: Sequence[Sequence[Prompt]], where: Where) -> list[Any]:
    """By the engine, which must not know them yet: for each language total and squares, [l, n]."""
    engine.store = Store()
    groups = [str(number) for number, some in enumerate(parts) for _ in some]
    found = activity(engine, [prompt for some in parts for prompt in some], groups, where=where)
    return [one for both in zip(found.total, found.squares, strict=True) for one in both]


@torch.inference_mode()
def plain(model: Any, decoder: str, prompts: Sequence[Prompt], budget: int) -> None:
    """The decoder alone."""
    step = max(1, budget // LENGTH)
    for start in range(0, len(prompts), step):
        ids = torch.tensor([one.ids for one in prompts[start : start + step]])
        model.get_submodule(decoder)(input_ids=ids, use_cache=False)


@torch.inference_mode()
def nnsight_last(wrapped: Any, prompts: Sequence[Prompt], budget: int) -> list[Any]:
    """The last token's neurons of every layer, summed after the trace."""
    import nnsight  # type: ignore[import-not-found,import-untyped,unused-ignore]

    step, sums = max(1, budget // LENGTH), []
    for start in range(0, len(prompts), step):
        ids = torch.tensor([one.ids for one in prompts[start : start + step]])
        with wrapped.trace(input_ids=ids, logits_to_keep=1, use_cache=False):
            seen = nnsight.save([])
            for layer in wrapped.model.layers:
                seen.append(layer.mlp.down_proj.input[:, -1])
        x = torch.stack(list(seen)).double()  # [l, b, n]
        sums.append(torch.stack([x.sum(1), (x * x).sum(1)]))
    return list(torch.stack(sums).sum(0).numpy())


def memory(way: str, size: int) -> Callable[[], object]:
    """The capture of so many inputs, spread over the languages, ready to run."""
    import timonel as tm

    model, tokenizer = tm.load(MODEL)
    each = -(-size // len(LANGUAGES))
    groups = [language for language in LANGUAGES for _ in range(each)]
    prompts = [prompt for language in LANGUAGES for prompt in prompts_of(tokenizer, language, each)]
    engine = Engine(model, tokenizer)
    where: Where = "all" if way == "all" else "last"
    touch(model)
    return lambda: activity(engine, prompts, groups, where=where)


def _relative(sums: Sequence[Any]) -> list[Any]:
    """Each sum over all layers as a share of its largest number, so that one tolerance fits both."""
    return [one / np.abs(one).max() for one in sums]


def run(settings: Settings) -> Result:
    import nnsight  # type: ignore[import-not-found,import-untyped,unused-ignore]

    import timonel as tm

    model, tokenizer = tm.load(MODEL)
    wrapped = nnsight.NNsight(tm.load(MODEL)[0])
    engine = Engine(model, tokenizer)
    every = [prompts_of(tokenizer, language, INPUTS) for language in LANGUAGES]
    work = [every[:2], every]  # the warm-up, in which the sides are compared, and a turn
    decoder, budget = engine.geometry.decoder, engine.batch_tokens
    sides: dict[str, Side] = {
        "timonel": lambda turn: captured(engine, work[turn], "last"),
        "nnsight": lambda turn: [one for some in work[turn] for one in nnsight_last(wrapped, some, budget)],
    }
    given = {name: _relative(side(0)) for name, side in sides.items()}  # type: ignore[arg-type]
    checks = [agree(given, TOLERANCE)]
    sides["all tokens"] = lambda turn: captured(engine, work[turn], "all")
    sides["plain"] = lambda turn: [plain(model, decoder, some, budget) for some in work[turn]]
    for name in ("all tokens", "plain"):
        sides[name](0)
    clocks = alternate(sides, [1] * settings.rounds(3))
    ours, forward = clocks["timonel"], clocks["plain"]
    inputs = INPUTS * len(LANGUAGES)
    peaks = share_of_peaks("w3_activity", ("last", 4 * inputs), ("last", inputs), 3, settings.threads)
    rows = (
        Row("last token, timonel / plain forward", ratio(ours, forward), "<=", (1.10,)),
        Row("all tokens, timonel / plain forward", ratio(clocks["all tokens"], forward), "<=", (1.10,)),
        Row("last token, nnsight / timonel", ratio(clocks["nnsight"], ours)),
        Row("peak memory above the model, four times the inputs / the inputs", peaks, "<=", (1.10,)),
    )
    title = f"neuron activity ({MODEL}, {len(LANGUAGES)} languages x {INPUTS} inputs of {LENGTH} tokens)"
    return Result("W3", title, rows, tuple(checks))

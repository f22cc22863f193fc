"""W1, W2, W5 and prompts a second on a randomly initialised model of Llama 3.1 8B's shape, on a GPU.

    python -m bench.gpu [--tiny] [--device cuda|cpu] [--out FILE]

No model and no peer need be there; `--tiny` runs the same with a small float32 model, in seconds, anywhere. Prompts are
random tokens with spans where W1's stand. In bfloat16 the sides agree only as far as it goes (0.25 of a
log-probability); the tiny model in float32 is held to 1e-3, and to no target, which are for real sizes. The table is
written anew after each workload, so that a stopped run leaves what it has.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from bench import cases, plain, w2_attention, w5_decode
from bench.cases import Sweep
from bench.flops import Multiplier
from bench.machine import card, describe
from bench.measure import Side, agree, alternate, median, moved, ratio
from bench.result import Result, Row
from bench.table import markdown
from bench.w1_knockout import LAYERS, PRODUCTS, scored, shares, unsteered
from timonel.engine import Engine, Request, choice
from timonel.prompts import Prompt

LENGTH, SPANS = 137, {"item": (38, 39, 40), "varied": (63, 64, 65), "other": (70, 71, 72)}
ANSWERS = ((100, 101), (110, 111), (120, 121))
SECONDS = {"W1": 110, "W2": 50, "W5": 60, "prompts": 40}
# No workload is begun later than this: all must end within eight minutes.
LATEST = 360


@dataclass(frozen=True)
class Stage:
    """A model, an engine, and how exact they are."""

    model: Any
    engine: Engine
    tiny: bool
    tolerance: float


def staged(device: str, tiny: bool) -> Stage:
    """Makes the model on the device, at random."""
    sizes = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8}
    if tiny:
        sizes = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 18}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2}  # type: ignore[dict-item]
    config = LlamaConfig(
        **sizes, max_position_embeddings=8192, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32 if tiny else torch.bfloat16).eval()
    words = {"<unk>": 0} | {f"w{n}": n for n in range(1, 300)}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, unk_token="<unk>")))
    return Stage(model, Engine(model, tokenizer), tiny, 1e-3 if tiny else 0.25)


def prompts_of(vocab: int, pairs: int, seed: int = 0) -> list[list[Prompt]]:
    """Two prompts a pair, alike up to the span `varied`."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(pairs):
        first, second = rng.integers(0, vocab, (2, LENGTH))
        second[: SPANS["varied"][0]] = first[: SPANS["varied"][0]]
        made.append([Prompt(tuple(int(token) for token in ids), SPANS) for ids in (first, second)])
    return made


def knockout(stage: Stage) -> Result:
    """W1; a turn is the whole sweep."""
    engine, geometry = stage.engine, stage.engine.geometry
    some = cases.draws(geometry.layers[0].heads, LAYERS, 4 if stage.tiny else 32)
    prompts = [prompt for both in prompts_of(geometry.vocab, 2 if stage.tiny else 8) for prompt in both]
    requests = [Request(prompt, tuple(choice(prompt, tokens) for tokens in ANSWERS)) for prompt in prompts]
    sweeps = [Sweep(request, some) for request in requests]
    few = [Sweep(request, some[:4]) for request in requests[:2]]
    work = [few, sweeps]
    sides: dict[str, Side] = {
        "timonel": lambda turn: scored(engine, work[turn]),
        "loop": lambda turn: [row for one in work[turn] for row in plain.loop(stage.model, geometry, one)],
        "batch": lambda turn: [row for one in work[turn] for row in plain.batch(stage.model, geometry, one)],
    }
    given = {name: side(0) for name, side in sides.items()}
    checks = [agree(given, stage.tolerance), moved(unsteered(engine, few), given["timonel"], 0.0)]
    product = Multiplier(stage.model, geometry, engine.batch_tokens)
    product(1)
    sides["products"] = lambda turn: product(PRODUCTS)
    clocks = alternate(sides, [1] * 9, seconds=SECONDS["W1"])
    ours = clocks["timonel"]
    rows = (
        Row("loop, one draw at a time / timonel", ratio(clocks["loop"], ours)),
        Row("masks by hand, batched over draws / timonel", ratio(clocks["batch"], ours)),
        *shares(engine, [sweeps] * len(ours.wall), clocks, product),
        Row("requests a second", median([len(sweeps) * len(some) / seconds for seconds in ours.wall])),
    )
    return Result("W1", f"knockout sweep, {len(sweeps)} prompts x {len(some)} draws a turn", rows, tuple(checks))


def features(stage: Stage) -> Result:
    """W2; memory is what the device allocated at the most, above the model."""
    engine, model, budget = stage.engine, stage.model, stage.engine.batch_tokens
    prompts = [prompt for both in prompts_of(engine.geometry.vocab, 8 if stage.tiny else 64, seed=1) for prompt in both]
    kernel = model.config._attn_implementation

    @contextmanager
    def eagerly() -> Any:
        model.set_attn_implementation("eager")
        try:
            yield
        finally:
            model.set_attn_implementation(kernel)

    def attentions(turn: int) -> object:
        with eagerly():
            return w2_attention.eager(model, prompts, budget)

    sides: dict[str, Side] = {
        "timonel": lambda turn: w2_attention.captured(engine, prompts),
        "output_attentions": attentions,
    }
    check = agree({name: side(0) for name, side in sides.items()}, 1e-4 if stage.tiny else 0.02)
    sides["plain"] = lambda turn: w2_attention.plain(model, engine.geometry.decoder, prompts, budget)
    sides["plain"](0)
    clocks = alternate(sides, range(15), seconds=SECONDS["W2"])
    rows = [
        Row("timonel / plain forward of the same tokens", ratio(clocks["timonel"], clocks["plain"]), "<=", (1.15,)),
        Row("output_attentions / timonel", ratio(clocks["output_attentions"], clocks["timonel"])),
    ]
    if model.device.type == "cuda":
        share = [peak(sides["timonel"]) / peak(sides["output_attentions"]) for _ in range(3)]
        rows.append(Row("peak memory above the model, timonel / output_attentions", median(share), "<=", (0.25,)))
    return Result("W2", f"attention of all heads along two edges, {len(prompts)} prompts", tuple(rows), (check,))


def peak(side: Side) -> float:
    """Bytes that a side allocates at the most on the GPU, above what is there."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    side(0)
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before)


def decode(stage: Stage) -> Result:
    """W5."""
    ids = torch.randint(0, 300, (w5_decode.BATCH, w5_decode.CONTEXT), generator=torch.Generator().manual_seed(0))
    rows, checks = w5_decode.measured(stage.model, ids.to(stage.model.device), 15, stage.tolerance, 0.0, SECONDS["W5"])
    return Result(
        "W5", f"steered decode, batch {len(ids)}, {w5_decode.TOKENS} new tokens a turn", tuple(rows), tuple(checks)
    )


def rate(stage: Stage) -> Result:
    """Unsteered prompts a second, which share no beginning; beside one batch after the other by hand."""
    engine, geometry = stage.engine, stage.engine.geometry
    count = 32 if stage.tiny else 512
    prompts = [both[0] for both in prompts_of(geometry.vocab, count, seed=2)]
    sweeps = [Sweep(Request(p, tuple(choice(p, tokens) for tokens in ANSWERS)), ()) for p in prompts]

    def ours(turn: int) -> list[list[float]]:
        return [list(row) for row in _plainly(engine, [sweep.request for sweep in sweeps])]

    @torch.inference_mode()
    def by_hand(turn: int) -> list[list[float]]:
        step, found = max(1, engine.batch_tokens // LENGTH), []
        for start in range(0, count, step):
            ids = torch.tensor([prompt.ids for prompt in prompts[start : start + step]], device=stage.model.device)
            logits = stage.model(input_ids=ids, logits_to_keep=1, use_cache=False).logits[:, -1]
            found += plain.log_p(logits, ANSWERS)
        return found

    sides: dict[str, Side] = {"timonel": ours, "by hand": by_hand}
    check = agree({name: side(0) for name, side in sides.items()}, stage.tolerance)
    clocks = alternate(sides, range(15), seconds=SECONDS["prompts"])
    rows = (
        Row("prompts a second", median([count / seconds for seconds in clocks["timonel"].wall])),
        Row("batches by hand / timonel", ratio(clocks["by hand"], clocks["timonel"])),
    )
    return Result("prompts", f"{count} prompts of {LENGTH} tokens, unsteered, a turn", rows, (check,))


def _plainly(engine: Engine, requests: Sequence[Request]) -> list[tuple[float, ...]]:
    from timonel.engine import Store

    engine.store = Store()
    return engine.score(requests)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a small float32 model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("bench-gpu.md"))
    given = parser.parse_args(argv)
    start = time.perf_counter()
    if given.tiny:
        SECONDS.update(dict.fromkeys(SECONDS, 5))
    stage = staged(given.device, given.tiny)
    print(f"model ready after {time.perf_counter() - start:.0f} s on {card()}", flush=True)
    results: list[Result] = []
    workloads: dict[str, Callable[[Stage], Result]] = {"W1": knockout, "W2": features, "W5": decode, "prompts": rate}
    for name, workload in workloads.items():
        print(f"{name} after {time.perf_counter() - start:.0f} s", flush=True)
        results.append(_tried(name, workload, stage, time.perf_counter() - start))
        words = {"card": card(), **describe(torch.get_num_threads())}
        words["model"] = (
            f"{type(stage.model).__name__}, random, {stage.model.dtype}, {stage.model.num_parameters():,} parameters"
        )
        given.out.write_text(f"{markdown(results, words)}\n", encoding="utf-8")
    print(f"\n{given.out.read_text(encoding='utf-8')}\nall after {time.perf_counter() - start:.0f} s")
    return 1 if any(result.skipped for result in results) else 0


def _tried(name: str, workload: Callable[[Stage], Result], stage: Stage, spent: float) -> Result:
    """A workload that fails is a line of the table, so that the others are measured on a machine that is lent."""
    if spent > LATEST:
        return Result(name, workload.__name__, skipped=f"{spent:.0f} s were spent by then.")
    try:
        result = workload(stage)
        rows = tuple(replace(row, sign=None) for row in result.rows) if stage.tiny else result.rows
        return replace(result, rows=rows)
    except (Exception, SystemExit) as error:
        print(f"  {name} failed: {error!r}", flush=True)
        return Result(name, workload.__name__, skipped=f"it failed: {error!r}")


if __name__ == "__main__":
    sys.exit(main())

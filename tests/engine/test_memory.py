"""Memory that runs out is survived; memory that is used does not grow."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import torch

import timonel.engine.engine as module
from timonel.engine import Engine, Request, Store, budget, choice
from timonel.errors import InputError
from timonel.models.geometry import Geometry
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, span
from tiny import tiny, word_tokenizer


def requests(count: int = 12) -> list[Request]:
    cut = Plan((EdgeScale(layer=1, head=2, queries=span("identity"), keys=span("item"), alpha=0.0),))
    made = []
    for number in range(count):
        prompt = Prompt((1, 5, 6, 7, 20 + number, 30 + number, 8, 9), {"item": (2,), "identity": (5,)})
        made += [Request(prompt, (choice(prompt, (11, 12)),), plan) for plan in (Plan(), cut)]
    return made


def limited(monkeypatch: pytest.MonkeyPatch, tokens: int, error: Exception) -> list[int]:
    """A machine on which a forward pass of more tokens fails."""
    seen: list[int] = []
    run = module.run_unit

    def fake(model: Any, geometry: Any, unit: Any, work: Any) -> Any:
        passes = run(model, geometry, unit, work)
        for fed in [unit.trunk_tokens, *(one.tokens for one in unit.passes)]:
            seen.append(fed)
            if fed > tokens:
                raise error
            yield next(passes)

    monkeypatch.setattr(module, "run_unit", fake)
    return seen


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
    RuntimeError("MPS backend out of memory (MPS allocated: 9 GB)"),
    MemoryError(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("error", ERRORS, ids=["cuda", "cpu", "mps", "python"])
def test_out_of_memory_is_survived(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, dtype: torch.dtype
) -> None:
    model, asked = tiny("llama", dtype=dtype), requests(40)
    small = Engine(model, word_tokenizer(), batch_tokens=64).score(asked)
    seen = limited(monkeypatch, 64, error)
    engine = Engine(model, word_tokenizer(), batch_tokens=256)
    found = engine.score(asked)
    assert max(seen) > 64
    assert engine.batch_tokens == 64
    assert "going on with batches of at most 64 tokens" in caplog.text
    for one, two in zip(found, small, strict=True):
        # In half precision the layout is the small budget's own, to the last bit.
        assert one == pytest.approx(two, abs=0 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("error", ERRORS, ids=["cuda", "cpu", "mps", "python"])
def test_a_machine_too_small_for_anything_says_so(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    limited(monkeypatch, 0, error)
    engine = Engine(tiny("llama"), word_tokenizer())
    with pytest.raises(InputError, match="Memory ran out with batches of 64 tokens"):
        engine.score(requests())


def test_other_errors_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, 0, RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(RuntimeError, match="mat1"):
        Engine(tiny("llama"), word_tokenizer()).score(requests())


def test_the_budget_follows_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    geometry = Geometry.of(model)
    need = budget.bytes_a_token(model, geometry)
    for free, tokens in ((None, 2048), (1 << 40, 2048), (2000 * need, 1000), (1, budget.SMALLEST)):
        monkeypatch.setattr(budget, "free_bytes", lambda device, free=free: free)
        assert budget.batch_tokens(model, geometry) == tokens
    assert budget.bytes_a_token(tiny("llama", dtype=torch.float64), geometry) == 2 * need


def test_a_resumed_half_precision_run_lays_out_as_the_first_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, asked = tiny("llama", dtype=torch.bfloat16), requests(40)
    first = Engine(model, word_tokenizer(), store=Store(tmp_path / "scores.sqlite"))
    found = first.score(asked)
    monkeypatch.setattr(budget, "free_bytes", lambda device: 1)  # less memory is free on the second day
    again = Engine(model, word_tokenizer(), store=Store(tmp_path / "scores.sqlite"))
    assert again.score(asked) == found
    assert again.store.forwards == first.store.forwards


def live_tensor_bytes() -> int:
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) is torch.Tensor or type(one) is torch.nn.Parameter]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in found}.values())


def test_peak_memory_is_flat_over_200_batches() -> None:
    """T30: what is alive while a batch runs, seen at every progress report of 200 batches, does not grow."""
    model = tiny("llama")
    alive: list[int] = []
    reports = 0

    def look(stage: str, done: int, total: int) -> None:
        nonlocal reports
        reports += 1
        if reports % 20 == 0:
            alive.append(live_tensor_bytes())

    engine = Engine(model, word_tokenizer(), batch_tokens=6, progress=look)
    cut = Plan((EdgeScale(layer=1, head=2, queries=span("identity"), keys=span("item"), alpha=0.0),))
    asked = []
    for number in range(110):
        prompt = Prompt((20 + number % 90, 5, 6, 7, number // 90 + 3, 8), {"item": (2,), "identity": (4,)})
        asked += [Request(prompt, (choice(prompt, (11,)),), plan) for plan in (Plan(), cut)]
    engine.score(asked)
    assert reports > 200
    assert max(alive[-3:]) <= max(alive[:4])

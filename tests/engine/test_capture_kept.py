"""What captures keep: a killed run goes on where it stopped, half precision keeps its batches, memory stays flat."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from timonel.engine import Engine, Request, Store, choice
from timonel.engine.capture import activity, attention, attribution, residuals
from timonel.errors import InputError, UnsupportedModel
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, ResidualAdd, attach, span
from tiny import tiny, word_tokenizer

EDGES = [(span("identity"), span("item"))]


def ragged(count: int = 12, seed: int = 0, length: int | None = None) -> list[Prompt]:
    draw = random.Random(seed)
    lengths = [length or draw.randrange(7, 20) for _ in range(count)]
    return [
        Prompt(tuple(draw.randrange(3, 200) for _ in range(n)), {"item": (1, 2), "identity": (n - 2, n - 1)})
        for n in lengths
    ]


def attentions(engine: Engine, prompts: list[Prompt]) -> np.ndarray:
    return attention(engine, prompts, EDGES)


def residual(engine: Engine, prompts: list[Prompt]) -> np.ndarray:
    return residuals(engine, prompts, [0, 2])


def active(engine: Engine, prompts: list[Prompt], **options: Any) -> np.ndarray:
    found = activity(engine, prompts, [str(i % 2) for i in range(len(prompts))], where="all", **options)
    return np.concatenate([found.n.ravel(), found.active.ravel(), found.total.ravel(), found.squares.ravel()])


def slopes(engine: Engine, prompts: list[Prompt]) -> np.ndarray:
    found = attribution(engine, [Request(prompt, (choice(prompt, (5, 6)),)) for prompt in prompts], EDGES)
    return np.concatenate([np.concatenate([one.log_p, one.slope.ravel()]) for one in found])


CAPTURES = [attentions, residual, active, slopes]
Capture = Callable[[Engine, list[Prompt]], np.ndarray]


@pytest.mark.parametrize("capture", CAPTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_killed_run_goes_on_where_it_stopped(capture: Capture, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny("mistral", dtype=dtype)
    told: list[tuple[str, int, int]] = []

    def engine(store: Store) -> Engine:
        return Engine(
            model, word_tokenizer(), store=store, batch_tokens=300 if capture is slopes else 40,
            progress=lambda *one: told.append(one),
        )  # fmt: skip

    whole = Store()
    expected = capture(engine(whole), ragged())
    assert whole.forwards > 4
    stage, _, total = told[0]
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[0] == (stage, 0, total)
    assert told[-1] == (stage, total, total)

    passes = 0

    def kill(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal passes
        passes += 1
        if passes == 3:  # in the midst of a group, too
            raise KeyboardInterrupt

    handle = model.model.register_forward_pre_hook(kill, with_kwargs=True)
    store = Store(tmp_path / "store.sqlite")
    with pytest.raises(KeyboardInterrupt):
        capture(engine(store), ragged())
    handle.remove()
    store.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert store_config_is_back(model)

    told.clear()
    store = Store(tmp_path / "store.sqlite")
    assert np.array_equal(capture(engine(store), ragged()), expected)
    assert store.forwards == whole.forwards + 1
    assert told[0][2] < total  # what is kept is no work any more
    told.clear()
    assert np.array_equal(capture(engine(store), ragged()), expected)
    assert store.forwards == whole.forwards + 1
    assert not told


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_run_goes_on_with_batches_of_another_size(capture: Capture) -> None:
    """In float32 a batch is no part of what is kept: another budget computes what is missing and no more."""
    model, prompts = tiny("llama", dtype=torch.float64), ragged(length=12)
    budgets = (300, 800) if capture is slopes else (40, 100)
    expected = capture(Engine(model, word_tokenizer()), prompts)
    store, told = Store(), []

    def stop(stage: str, done: int, total: int) -> None:
        told.append(done)
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture(Engine(model, word_tokenizer(), store=store, batch_tokens=budgets[0], progress=stop), prompts)
    fed = told[-1]
    rest = Engine(
        model, word_tokenizer(), store=store, batch_tokens=budgets[1], progress=lambda *one: told.append(one[2])
    )
    np.testing.assert_allclose(capture(rest, prompts), expected, atol=1e-9)
    assert fed + told[-1] == 12 * 12


def store_config_is_back(model: Any) -> bool:
    return all(layer.self_attn.config is model.config for layer in model.model.layers)


@pytest.mark.parametrize("capture", CAPTURES)
def test_numbers_are_kept_under_all_that_they_depend_on(capture: Capture) -> None:
    """Another model, config, kernel or dtype computes; the same one reads."""
    store, prompts = Store(), ragged(4)
    models = [
        tiny("mistral"),
        tiny("mistral", seed=1),
        tiny("mistral", sliding_window=3),
        tiny("mistral", attn_implementation="eager"),
        tiny("mistral", dtype=torch.float64),
    ]
    found = []
    for model in models:
        before = store.forwards
        found.append(capture(Engine(model, word_tokenizer(), store=store), prompts))
        assert store.forwards > before
        assert np.array_equal(found[-1], capture(Engine(model, word_tokenizer()), prompts))
    before = store.forwards
    for model, one in zip(models, found, strict=True):
        assert np.array_equal(one, capture(Engine(model, word_tokenizer(), store=store), prompts))
    assert store.forwards == before


def test_other_questions_and_plans_are_not_mixed_up() -> None:
    store, prompts = Store(), ragged(4)
    engine = Engine(tiny("llama"), word_tokenizer(), store=store)
    plan = [Plan((ResidualAdd(layer=0, vector=np.ones(32)),))] * 4
    asked = [
        lambda e: attention(e, prompts, EDGES),
        lambda e: attention(e, prompts, [(span("identity"), span("identity"))]),
        lambda e: attention(e, prompts, EDGES, plans=plan),
        lambda e: residuals(e, prompts, [0, 2]),
        lambda e: residuals(e, prompts, [2, 0]),
        lambda e: residuals(e, prompts, [0, 2], span("item")),
        lambda e: residuals(e, prompts, [0, 2], plans=plan),
        lambda e: active(e, prompts),
        lambda e: active(e, prompts, site="act"),
        lambda e: activity(e, prompts, list("xyxy"), where="mean").total,
        lambda e: activity(e, prompts, list("xyxy"), where="last").total,
        lambda e: active(e, prompts, plans=plan),
        lambda e: slopes(e, prompts),
    ]
    for question in asked:
        assert np.array_equal(question(engine), question(Engine(engine.model, word_tokenizer())))


@pytest.mark.parametrize("capture", [attentions, residual, slopes])
def test_in_half_precision_the_batch_is_part_of_the_key(capture: Capture) -> None:
    """T7: a number depends on its batch mates there; in float32 it does not, to rounding, and is read again."""
    for dtype, again in ((torch.bfloat16, 1), (torch.float32, 0)):
        store = Store()
        engine = Engine(tiny("llama", dtype=dtype), word_tokenizer(), store=store)
        capture(engine, ragged(4))
        before = store.forwards
        capture(engine, ragged(4)[:2])
        assert store.forwards == before + again


@pytest.mark.parametrize(("dtype", "again"), [(torch.bfloat16, True), (torch.float32, False)])
def test_sums_depend_on_the_size_of_batches_in_half_precision_alone(dtype: torch.dtype, again: bool) -> None:
    store, forwards = Store(), []
    for budget in (40, 100):
        active(Engine(tiny("llama", dtype=dtype), word_tokenizer(), store=store, batch_tokens=budget), ragged())
        forwards.append(store.forwards)
    assert (forwards[1] > forwards[0]) is again


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("capture", CAPTURES)
def test_half_precision_is_near(capture: Capture, dtype: torch.dtype) -> None:
    """T29; near where rounding does not pile up: the first layer."""
    model, exact = tiny("llama", dtype=dtype), tiny("llama", dtype=dtype).double()
    found, expected = (capture(Engine(one, word_tokenizer()), ragged(4)) for one in (model, exact))
    assert np.isfinite(found).all()
    if capture is attentions:
        assert found.dtype == np.float32
        np.testing.assert_allclose(found[..., :4], expected[..., :4], atol=0.02 if dtype == torch.float16 else 0.1)


def test_autocast_does_not_reach_in() -> None:
    model = tiny("llama")
    for capture in CAPTURES:
        expected = capture(Engine(model, word_tokenizer()), ragged(4))
        with torch.autocast("cpu", torch.bfloat16):
            assert np.array_equal(capture(Engine(model, word_tokenizer()), ragged(4)), expected)


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_model_that_is_not_plainly_itself_is_refused(capture: Capture) -> None:
    model = tiny("llama")
    engine = Engine(model, word_tokenizer())
    with (
        attach(model, Plan((ResidualAdd(layer=1, vector=np.ones(32)),))),
        pytest.raises(InputError, match="attached to this model"),
    ):
        capture(engine, ragged(4))
    layer = model.model.layers[1]
    whole = layer.forward
    layer.forward = lambda hidden_states, **_: hidden_states  # a layer that passes its parts by
    if capture is residual:
        assert capture(engine, ragged(4)).any()  # its output is still its output
    else:
        with pytest.raises(UnsupportedModel, match="Layer 1 ran without passing"):
            capture(engine, ragged(4))
    layer.forward = whole


@pytest.mark.parametrize("capture", CAPTURES)
def test_tensors_in_memory_do_not_grow_with_batches(capture: Capture) -> None:
    """T30. Counts the bytes of all live tensors in the last layer of every twentieth of 200 passes.

    What torch allocates and frees inside one operation is not seen, nor what Python holds: results are kept there.
    """
    model = tiny("llama")
    prompts = ragged(400, length=10)
    seen: list[int] = []
    passes = 0

    def measure(module: Any, args: Any) -> None:
        nonlocal passes
        passes += 1
        if passes % 20 == 0:
            alive = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
            seen.append(
                sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in alive}.values())
            )

    handle = model.model.layers[2].mlp.down_proj.register_forward_pre_hook(measure)
    capture(Engine(model, word_tokenizer(), batch_tokens=160 if capture is slopes else 20), prompts)
    handle.remove()
    assert passes == 200
    assert max(seen) == min(seen)
    assert max(seen) > 0


def test_an_edge_and_a_feature_of_one_module_meet() -> None:
    """A plan's edge at a head changes what later layers attend to, and is read as it acts."""
    model, prompts = tiny("llama"), ragged(4)
    plan = Plan((EdgeScale(layer=0, head=0, queries=span("identity"), keys=span("item"), alpha=0.0),))
    plain = attention(Engine(model, word_tokenizer()), prompts, EDGES)
    cut = attention(Engine(model, word_tokenizer()), prompts, EDGES, plans=[plan] * 4)
    assert not cut[:, 0, 0].any()
    assert np.array_equal(cut[:, 0, 1:4], plain[:, 0, 1:4])
    assert (cut[:, 0, 4:] != plain[:, 0, 4:]).any()

"""Edges against a naive loop, on every architecture, padded and not, cached and not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oracles.attention import Edge, eager_twin, naive_edges
from oracles.batches import LENGTHS, kept, padded, prompts
from timonel.errors import InputError
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, attach, span
from tiny import ARCHITECTURES, tiny


def edge(layer: int, head: int, alpha: float, queries: str = "identity", keys: str = "item") -> EdgeScale:
    return EdgeScale(layer=layer, head=head, queries=span(queries), keys=span(keys), alpha=alpha)


PLAN = Plan((edge(0, 1, 0.0), edge(1, 3, 2.5), edge(1, 2, 0.5, "last", "identity"), edge(2, 0, -1.0)))


def naive(plan: Plan, made: list[Prompt], pads: list[int]) -> list[Edge]:
    return [
        Edge(
            one.layer, row, one.head,
            [p + pads[row] for p in prompt.positions(*one.queries.names)],
            [p + pads[row] for p in prompt.positions(*one.keys.names)],
            one.alpha,
        )
        for row, prompt in enumerate(made)
        for one in plan
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("implementation", "side", "dtype", "tolerance"),
    [
        ("sdpa", "left", torch.float64, 1e-9),
        ("sdpa", "right", torch.float64, 1e-9),
        # In float64 an eager model's left pads are NaN in transformers itself: the mask overflows its float32 softmax.
        ("eager", "right", torch.float64, 1e-9),
        ("eager", "left", torch.float32, 2e-4),
    ],
)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_edges_equal_a_naive_attention(
    architecture: str, implementation: str, side: str, dtype: torch.dtype, tolerance: float
) -> None:
    if architecture == "gemma2" and implementation == "sdpa":
        return  # SDPA has no soft cap, so Gemma 2 runs eagerly; the other two cases hold it
    model = tiny(architecture, dtype=dtype, attn_implementation=implementation)
    made = prompts()
    inputs = padded(made, side)
    pads = [max(LENGTHS) - len(p) if side == "left" else 0 for p in made]
    twin = eager_twin(model)
    with torch.no_grad():
        with naive_edges(twin, naive(PLAN, made, pads), own=implementation == "eager"):
            expected = twin(**inputs, use_cache=False).logits
        plain = model(**inputs).logits
        with attach(model, PLAN, prompts=made) as attached:
            found = model(**inputs).logits
    assert attached.fired == attached.expected
    assert (kept(found, made, side) - kept(plain, made, side)).abs().max() > 1e-3  # the plan matters at all
    torch.testing.assert_close(kept(found, made, side), kept(expected, made, side), atol=tolerance, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_plan_a_row(architecture: str) -> None:
    model = tiny(architecture, dtype=torch.float64)
    made = prompts()
    inputs = padded(made, "right")
    plans = [Plan((edge(1, 2, 0.0),)), Plan()]
    with torch.no_grad():
        plain = model(**inputs).logits
        with attach(model, plans[0], prompts=made):
            both = model(**inputs).logits
        with attach(model, plans, prompts=made):
            mixed = model(**inputs).logits
    torch.testing.assert_close(mixed[0], both[0], atol=1e-12, rtol=0)
    short = len(made[1])
    torch.testing.assert_close(mixed[1, :short], plain[1, :short], atol=1e-12, rtol=0)
    assert (both[1] - plain[1]).abs().max() > 1e-6


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_cached_passes_equal_one_whole_pass(architecture: str) -> None:
    """T9, T11: the rows may fall into the first pass, into a later one, or be split over two."""
    model = tiny(architecture, dtype=torch.float64)
    (prompt, _) = prompts()
    ids = torch.tensor([prompt.ids])
    with torch.no_grad(), attach(model, PLAN, prompts=[prompt]) as attached:
        whole = model(ids, use_cache=False).logits
        assert attached.fired == attached.expected
        for first in (4, 10, 13):
            cache, parts = None, []
            for chunk in (ids[:, :first], ids[:, first:]):
                out = model(chunk, cache=cache, use_cache=True)
                cache = out.cache
                parts.append(out.logits)
            torch.testing.assert_close(torch.cat(parts, dim=1), whole, atol=1e-9, rtol=0)
    assert attached.fired == 4 * attached.expected


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_alpha_one_is_the_identity_bit_for_bit(architecture: str) -> None:
    model = tiny(architecture)
    made = prompts()
    inputs = padded(made, "left")
    with torch.no_grad():
        plain = model(**inputs).logits
        with attach(model, Plan((edge(0, 1, 1.0), edge(2, 3, 1.0))), prompts=made):
            found = model(**inputs).logits
    assert torch.equal(found, plain)


def test_changing_what_comes_later_changes_nothing_before() -> None:
    """T18: causality, over SDPA and eager."""
    for implementation in ("sdpa", "eager"):
        model = tiny("llama", dtype=torch.float64, attn_implementation=implementation)
        (prompt, _) = prompts()
        other = torch.tensor([[*prompt.ids[:-1], 5]])
        outs = []
        for ids in (torch.tensor([prompt.ids]), other):
            mine = Prompt(tuple(ids[0].tolist()), prompt.spans)
            with torch.no_grad(), attach(model, PLAN, prompts=[mine]):
                outs.append(model(ids).logits[:, :-1])
        first, second = outs
        assert torch.equal(first, second)


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gemma3"])
def test_a_row_without_keys_gives_zeros(architecture: str) -> None:
    """T22: everything that a row could read is cut."""
    model = tiny(architecture, dtype=torch.float64)
    ids = tuple(range(3, 12))
    prompt = Prompt(ids, {"first": (0,), "row": (0,)})
    with torch.no_grad(), attach(model, Plan((edge(0, 1, 0.0, "row", "first"),)), prompts=[prompt]):
        out = model(torch.tensor([ids])).logits
    assert out.isfinite().all()


def test_group_mates_do_not_change() -> None:
    """T25: head h changes, the heads that share its keys and values do not."""
    from timonel.models.geometry import Geometry

    model = tiny("llama", dtype=torch.float64)
    (prompt, _) = prompts()
    place = Geometry.of(model).layers[1]
    seen: dict[str, Any] = {}
    module = model.get_submodule(place.o_proj)
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        handle = module.register_forward_pre_hook(lambda _, args: seen.update(z=args[0].clone()))
        model(ids)
        plain = seen["z"]
        with attach(model, Plan((edge(1, 2, 0.0),)), prompts=[prompt]):
            model(ids)
        handle.remove()
    moved = (seen["z"] - plain).abs().view(len(prompt), place.heads, place.head_dim).amax(-1)
    assert {tuple(cell) for cell in (moved > 1e-12).nonzero().tolist()} == {(p, 2) for p in prompt.spans["identity"]}


def test_the_soft_cap_comes_before_the_mask() -> None:
    """T23: with a cap of 5 a masked score must stay -inf; the naive oracle has it so, and here the weights too."""
    model = tiny("gemma2", dtype=torch.float64)
    (prompt, _) = prompts()
    ids = torch.tensor([prompt.ids])
    with torch.no_grad():
        plain = model(ids, output_attentions=True).attentions
        with attach(model, Plan((edge(1, 2, 0.0),)), prompts=[prompt]):
            cut = model(ids, output_attentions=True).attentions
    rows, keys = list(prompt.spans["identity"]), list(prompt.spans["item"])
    weights = cut[1][0, 2, rows]
    assert (weights[:, keys] == 0).all()
    expected = plain[1][0, 2, rows].clone()
    # Layer 0 is untouched, so layer 1 sees the same scores: what is left is renormalised.
    expected[:, keys] = 0
    # The model's own weights come from a float32 softmax.
    torch.testing.assert_close(weights, expected / expected.sum(-1, keepdim=True), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_runs_and_acts(dtype: torch.dtype) -> None:
    """T29."""
    model = tiny("llama", dtype=dtype)
    made = prompts()
    inputs = padded(made, "left")
    with torch.no_grad():
        plain = model(**inputs).logits
        with attach(model, PLAN, prompts=made):
            found = model(**inputs).logits
    assert found.dtype == dtype
    assert found[:, -3:].isfinite().all()
    assert (found[:, -1] - plain[:, -1]).abs().max() > 0


def test_a_key_after_its_row_is_refused() -> None:
    (prompt, _) = prompts()
    with pytest.raises(InputError, match="a row sees only what stands before it"):
        Plan((edge(0, 0, 0.0, "item", "identity"),)).on(prompt)


def test_two_alphas_on_one_row_are_refused_and_one_alpha_is_a_union() -> None:
    (prompt, _) = prompts()
    with pytest.raises(InputError, match="one row of a head takes one alpha"):
        Plan((edge(0, 0, 0.0), edge(0, 0, 0.5, "identity", "identity"))).on(
            Prompt(prompt.ids, {"item": (1,), "identity": (6,)})
        )
    apart = Plan((edge(0, 0, 0.0, "last", "item"), edge(0, 0, 0.0, "last", "identity"))).on(prompt)
    joint = Plan((EdgeScale(layer=0, head=0, queries=span("last"), keys=span("item", "identity"), alpha=0.0),)).on(
        prompt
    )
    assert apart == joint

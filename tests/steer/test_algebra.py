"""The algebra of plans as properties, in float64: what must hold for any heads, factors, alphas and spans."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from timonel.models import Geometry
from timonel.prompts import Prompt
from timonel.steer import ChannelScale, EdgeScale, Plan, attach, span
from tiny import tiny

MODEL = tiny("gemma3", dtype=torch.float64)
GEOMETRY = Geometry.of(MODEL)
IDS = tuple(range(20, 36))
PLAIN = MODEL(torch.tensor([IDS])).logits.detach()

SITES = st.sampled_from([(layer, site) for layer in range(4) for site in ("o_proj", "down_proj")])
SEEDS = st.integers(0, 2**16)
ALPHAS = st.floats(-3, 3)
HEADS = st.tuples(st.integers(0, 3), st.integers(0, 3))


def factors(layer: int, site: str, seed: int) -> np.ndarray:
    place = GEOMETRY.layers[layer]
    count = place.heads * place.head_dim if site == "o_proj" else place.neurons
    return np.random.default_rng(seed).uniform(0.5, 2.0, count)


def run(*interventions: EdgeScale | ChannelScale, prompt: Prompt | None = None) -> torch.Tensor:
    prompts = [] if prompt is None else [prompt]
    with torch.no_grad(), attach(MODEL, Plan(interventions), prompts=prompts, geometry=GEOMETRY, check=False):
        return MODEL(torch.tensor([IDS])).logits


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a - b).abs().max() < 1e-9)


@settings(max_examples=15, deadline=None)
@given(SITES, SEEDS, SEEDS)
def test_scales_compose_commute_and_undo_each_other(site: tuple[int, str], first: int, second: int) -> None:
    a, b = factors(*site, first), factors(*site, second)

    def scale(s: np.ndarray) -> ChannelScale:
        return ChannelScale(layer=site[0], site=site[1], factors=s)  # type: ignore[arg-type]

    assert torch.equal(run(scale(np.ones_like(a))), PLAIN)
    assert near(run(scale(a), scale(b)), run(scale(a * b)))
    assert near(run(scale(a), scale(b)), run(scale(b), scale(a)))
    assert near(run(scale(a), scale(1 / a)), PLAIN)


@settings(max_examples=15, deadline=None)
@given(HEADS, st.sets(st.integers(0, 7), min_size=1, max_size=4), st.sets(st.integers(8, 15), min_size=1, max_size=3))
def test_edges_are_unions_whatever_they_are_called(head: tuple[int, int], keys: set[int], rows: set[int]) -> None:
    spans = {f"k{key}": (key,) for key in keys} | {f"q{row}": (row,) for row in rows}
    prompt = Prompt(IDS, {**spans, "keys": tuple(sorted(keys)), "rows": tuple(sorted(rows))})

    def edge(queries: str, to: str, alpha: float = 0.0) -> EdgeScale:
        return EdgeScale(layer=head[0], head=head[1], queries=span(queries), keys=span(to), alpha=alpha)

    whole = run(edge("rows", "keys"), prompt=prompt)
    parts = [edge(f"q{row}", f"k{key}") for row in sorted(rows) for key in sorted(keys)]
    assert torch.equal(run(*parts, prompt=prompt), whole)
    assert torch.equal(run(*reversed(parts), prompt=prompt), whole)
    assert torch.equal(run(edge("rows", "keys", 1.0), prompt=prompt), PLAIN)


@settings(max_examples=15, deadline=None)
@given(HEADS, ALPHAS)
def test_a_heads_output_is_linear_in_the_edges_alpha(head: tuple[int, int], alpha: float) -> None:
    """z(alpha) = z(0) + alpha (z(1) - z(0)), read where o_proj reads it."""
    prompt = Prompt(IDS, {"keys": (2, 3), "rows": (10, 11)})
    seen: list[torch.Tensor] = []
    module = MODEL.get_submodule(GEOMETRY.layers[head[0]].o_proj)
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        for a in (0.0, 1.0, alpha):
            run(EdgeScale(layer=head[0], head=head[1], queries=span("rows"), keys=span("keys"), alpha=a), prompt=prompt)
    finally:
        handle.remove()
    assert near(seen[2], seen[0] + alpha * (seen[1] - seen[0]))

"""The peers on a tiny model against the package's attach, and the count of arithmetic against a loop over cells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from bench.cases import Sweep
from bench.flops import needed, whole

from bench import cases, plain
from timonel.engine import Request, choice
from timonel.models.geometry import Geometry
from timonel.prompts import Prompt
from timonel.steer import attach
from tiny import tiny

PROMPT = Prompt(tuple(range(20, 32)), {"item": (2, 3), "varied": (6, 7)})
SWEEP = Sweep(Request(PROMPT, (choice(PROMPT, (5, 6)), choice(PROMPT, (7,)))), (((0, 1), (1, 2)), ((1, 0), (2, 3))))


@torch.inference_mode()
def attached(model: Any) -> list[list[float]]:
    found = []
    for request in SWEEP.requests():
        with attach(model, request.plan, prompts=[PROMPT], check=False):
            logs = model(torch.tensor([PROMPT.ids])).logits[0, -1].double().log_softmax(-1)
        found.append([float(logs[list(tokens)].logsumexp(0)) for tokens in SWEEP.tokens])
    return found


@pytest.mark.parametrize("way", [plain.loop, plain.batch])
def test_peers_cut_what_attach_cuts(way: Any) -> None:
    model = tiny("llama")
    geometry = Geometry.of(model)
    found, expected = way(model, geometry, SWEEP), attached(model)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    uncut = way(model, geometry, replace(SWEEP, draws=((), ())))
    assert np.abs(np.array(found) - uncut).max(axis=1).min() > 1e-3


def test_draws_are_distinct_heads_in_their_layers_and_a_longer_list_begins_alike() -> None:
    some = cases.draws(4, range(2, 5), 40)
    assert all(len(set(heads)) == 3 and all(2 <= a < 5 and 0 <= b < 4 for a, b in heads) for heads in some)
    assert cases.draws(4, range(2, 5), 80)[:40] == some
    assert len(set(some)) > 30


def cells(geometry: Geometry, rows: dict[int, list[int]], kv_alone: dict[int, list[int]]) -> float:
    """Twice the multiplications of the named rows of each layer, projection by projection."""
    total = 0.0
    for layer, some in rows.items():
        place = geometry.layers[layer]
        q, kv = place.heads * place.head_dim, place.kv_heads * place.head_dim
        shapes = [(geometry.hidden, q), (geometry.hidden, kv), (geometry.hidden, kv), (q, geometry.hidden)]
        shapes += [(geometry.hidden, place.neurons)] * 2 + [(place.neurons, geometry.hidden)]
        for row in some:
            total += sum(2 * a * b for a, b in shapes) + 2 * 2 * q * (row + 1)
        total += sum(2 * 2 * geometry.hidden * kv for _ in kv_alone.get(layer, []))
    return total


def test_needed_arithmetic() -> None:
    geometry = Geometry.of(tiny("llama"))  # three layers
    head = 2 * geometry.hidden * geometry.vocab
    every, late = list(range(12)), list(range(6, 12))
    once = cells(geometry, dict.fromkeys(range(3), every), {})
    from_first = cells(geometry, {0: late, 1: late, 2: late}, {}) + cells(geometry, {1: late, 2: late}, {})
    assert needed(geometry, [SWEEP]) == once + from_first + 2 * head
    strict = cells(geometry, {0: [6, 7], 1: late, 2: [11]}, {2: late[:-1]})
    strict += cells(geometry, {1: [6, 7], 2: [11]}, {2: late[:-1]})
    assert needed(geometry, [SWEEP], strict=True) == once + strict + 2 * head
    # A second prompt that differs in its last two tokens adds these two alone, and its draws.
    other = replace(SWEEP, request=replace(SWEEP.request, prompt=replace(PROMPT, ids=(*PROMPT.ids[:10], 50, 51))))
    more = cells(geometry, {layer: [10, 11] for layer in range(3)}, {})
    assert needed(geometry, [SWEEP, other], strict=True) == once + more + 2 * strict + 4 * head
    assert whole(geometry, [SWEEP]) == 2 * (once + head)

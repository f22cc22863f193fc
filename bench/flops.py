"""How much arithmetic a sweep needs at the least, and how fast the machine multiplies matrices of the model's shapes.

    layer(t)    2 * weights of the layer * t + 4 * heads * head_dim * (keys that the t rows attend to)
    needed      each prompt once through all layers
                + for each draw its rows from the first query row on, through the layers from its first one on
                + one row of the head for each
    strict      the same, without what prompts share, what a draw cannot change and what nobody reads: a prefix of
                several prompts counts once; in a draw's first layer the edge's query rows alone; in the last layer keys
                and values of every row, and all of the one that is read

Norms, softmax, rotary and the recomputed heads are not counted, so that a share of 1 cannot be reached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bench.cases import Sweep
from timonel.models.geometry import Geometry


def needed(geometry: Geometry, sweeps: Sequence[Sweep], *, strict: bool = False) -> float:
    """Multiplications and additions that the sweeps need."""
    total, seen = 0.0, set[tuple[int, ...]]()
    for sweep in sweeps:
        n, last = len(sweep.ids), geometry.n_layers - 1
        prefixes = {sweep.ids[:end] for end in range(1, n + 1)}
        fresh = [len(one) - 1 for one in prefixes - seen] if strict else range(n)
        seen |= prefixes
        total += sum(_layer(geometry, layer, fresh) for layer in range(geometry.n_layers))
        for heads in sweep.draws:
            first = min(layer for layer, _ in heads)
            rows = range(sweep.rows[0], n)
            for layer in range(first, geometry.n_layers):
                if strict and layer == first:
                    total += _layer(geometry, layer, sweep.rows)
                elif strict and layer == last:
                    total += _layer(geometry, layer, [n - 1]) + (len(rows) - 1) * _keys_values(geometry, layer)
                else:
                    total += _layer(geometry, layer, rows)
        total += len(sweep.draws) * 2.0 * geometry.hidden * geometry.vocab
    return total


def whole(geometry: Geometry, sweeps: Sequence[Sweep]) -> float:
    """What a pass a draw through all rows and layers takes, with one row of the head: what loop and peers do."""
    head = 2.0 * geometry.hidden * geometry.vocab
    layers = range(geometry.n_layers)
    passes = ((len(sweep.draws), sum(_layer(geometry, at, range(len(sweep.ids))) for at in layers)) for sweep in sweeps)
    return sum(draws * (one + head) for draws, one in passes)


def _layer(geometry: Geometry, layer: int, rows: Sequence[int]) -> float:
    place = geometry.layers[layer]
    width = place.heads * place.head_dim
    weights = 2 * geometry.hidden * width + 3 * geometry.hidden * place.neurons
    keys = sum(row + 1 for row in rows)
    return len(rows) * (2.0 * weights + _keys_values(geometry, layer)) + 4.0 * width * keys


def _keys_values(geometry: Geometry, layer: int) -> float:
    place = geometry.layers[layer]
    return 4.0 * geometry.hidden * place.kv_heads * place.head_dim


class Multiplier:
    """Plain products at the shapes of a middle layer: what the machine could do at best."""

    def __init__(self, model: Any, geometry: Geometry, tokens: int) -> None:
        middle = geometry.n_layers // 2
        layer = model.get_submodule(geometry.layers[middle].layer)
        weights = [module.weight for module in layer.modules() if isinstance(module, torch.nn.Linear)]
        self._work = [(torch.randn(tokens, w.shape[1], device=w.device).to(w.dtype), w) for w in weights]
        self.flops = sum(2.0 * tokens * w.numel() for w in weights)

    @torch.inference_mode()
    def __call__(self, times: int) -> None:
        """Multiplies everything, some times over."""
        for _ in range(times):
            for x, weight in self._work:
                torch.nn.functional.linear(x, weight)

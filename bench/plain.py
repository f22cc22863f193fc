"""The same work as a user of transformers alone would write it, and as the peers' users would.

    loop       one prompt and one draw at a time, logits of the last row only
    batch      all draws of a prompt in one batch
    tl         TransformerLens: hooks on the attention scores, all draws of a prompt in one batch
    nn         nnsight: a trace that hands layers their masks, all draws of a prompt in one batch

A cut is a boolean mask [b, h, q, k] that a hook hands to the attention module of each layer concerned.
Shapes: b rows, h query heads, q query positions, k key positions, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bench.cases import Heads, Sweep
from timonel.models.geometry import Geometry

Scores = list[list[float]]
"""For each draw the log-probability of each answer."""


def log_p(logits: Float[Tensor, "b v"], answers: Sequence[tuple[int, ...]]) -> Scores:
    """Log of the summed probability of each answer's tokens."""
    wide = logits.float()
    whole = torch.logsumexp(wide, dim=-1)
    parts = [torch.logsumexp(wide[:, list(tokens)], dim=-1) - whole for tokens in answers]
    scores: Scores = torch.stack(parts, dim=1).double().tolist()
    return scores


def masks(geometry: Geometry, sweep: Sweep, draws: Sequence[Heads], device: Any) -> dict[int, Bool[Tensor, "b h q k"]]:
    """Layer -> what each head of each draw may attend to; layers without a cut are left out."""
    n = len(sweep.ids)
    causal = torch.ones(n, n, dtype=torch.bool, device=device).tril()
    found: dict[int, Tensor] = {}
    rows, keys = torch.tensor(sweep.rows)[:, None], torch.tensor(sweep.keys)
    for b, heads in enumerate(draws):
        for layer, head in heads:
            if layer not in found:
                found[layer] = causal.repeat(len(draws), geometry.layers[layer].heads, 1, 1)
            found[layer][b, head, rows, keys] = False
    return found


@contextmanager
def masked(model: Any, geometry: Geometry, by_layer: Mapping[int, Tensor]) -> Iterator[None]:
    """Hands attention modules their masks inside the block."""

    def hook(mask: Tensor) -> Callable[..., Any]:
        return lambda module, args, kwargs: (args, {**kwargs, "attention_mask": mask})

    with ExitStack() as undo:
        for layer, mask in by_layer.items():
            module = model.get_submodule(geometry.layers[layer].attention)
            undo.callback(module.register_forward_pre_hook(hook(mask), with_kwargs=True).remove)
        yield


@torch.inference_mode()
def loop(model: Any, geometry: Geometry, sweep: Sweep) -> Scores:
    """One draw at a time."""
    ids = torch.tensor([sweep.ids], device=model.device)
    found: Scores = []
    for heads in sweep.draws:
        with masked(model, geometry, masks(geometry, sweep, [heads], model.device)):
            found += log_p(model(input_ids=ids, logits_to_keep=1, use_cache=False).logits[:, -1], sweep.tokens)
    return found


@torch.inference_mode()
def batch(model: Any, geometry: Geometry, sweep: Sweep) -> Scores:
    """All draws at once."""
    ids = torch.tensor([sweep.ids] * len(sweep.draws), device=model.device)
    with masked(model, geometry, masks(geometry, sweep, sweep.draws, model.device)):
        return log_p(model(input_ids=ids, logits_to_keep=1, use_cache=False).logits[:, -1], sweep.tokens)


@torch.inference_mode()
def tl(bridge: Any, sweep: Sweep) -> Scores:
    """TransformerLens: a hook on the scores of each layer concerned."""
    ids = torch.tensor([sweep.ids] * len(sweep.draws))
    rows, keys = torch.tensor(sweep.rows)[:, None], torch.tensor(sweep.keys)
    at: dict[int, list[tuple[int, int]]] = {}
    for b, heads in enumerate(sweep.draws):
        for layer, head in heads:
            at.setdefault(layer, []).append((b, head))

    def hook(cells: Sequence[tuple[int, int]]) -> Callable[..., Tensor]:
        def cut(scores: Tensor, hook: Any) -> Tensor:
            for b, head in cells:
                scores[b, head, rows, keys] = -torch.inf
            return scores

        return cut

    hooks = [(f"blocks.{layer}.attn.hook_attn_scores", hook(cells)) for layer, cells in at.items()]
    logits = bridge.run_with_hooks(ids, fwd_hooks=hooks, logits_to_keep=1, use_cache=False)
    return log_p(logits[:, -1], sweep.tokens)


@torch.inference_mode()
def nn(wrapped: Any, geometry: Geometry, sweep: Sweep) -> Scores:
    """nnsight: each layer concerned gets its mask inside a trace; it wants them in the order of the layers."""
    ids = torch.tensor([sweep.ids] * len(sweep.draws))
    by_layer = sorted(masks(geometry, sweep, sweep.draws, "cpu").items())
    with wrapped.trace(input_ids=ids, logits_to_keep=1, use_cache=False):
        for layer, mask in by_layer:
            module = wrapped.model.layers[layer].self_attn
            args, kwargs = module.inputs
            module.inputs = (args, {**kwargs, "attention_mask": mask})
        logits = wrapped.output.logits.save()
    return log_p(logits[:, -1], sweep.tokens)

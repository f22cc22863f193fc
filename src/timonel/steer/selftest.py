"""The self-test at attach: a plan must act where it says, and nowhere else.

On a probe (the first prompt that the plan does something to, or a few tokens where there is none) it demands
    1. that every row that the plan names was changed, once: a plan that silently does nothing is the commonest fault;
    2. that some number changed, unless the plan is the identity;
    3. that no logit before the plan's first row changed: nothing leaks backwards through a mask.
A head that nobody reads changes its own output and no logit; that is a finding about the model, not a fault, so the
logits themselves need not move.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from timonel.errors import UnsupportedModel
from timonel.prompts.prompt import Prompt
from timonel.steer._locate import suspended
from timonel.steer.attach import Attachment, attach_bound
from timonel.steer.bound import Bound

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from timonel.models.geometry import Geometry

# Two runs of the same kernel on the same rows agree to rounding; a leak moves logits by far more.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.03}
_PROBE = 4


@torch.no_grad()
def self_test(model: PreTrainedModel, geometry: Geometry, bounds: Sequence[Bound], prompts: Sequence[Prompt]) -> None:
    """Runs the probe.

    Raises:
        UnsupportedModel: the plan did not act as it says on this model.
    """
    warn_of_windows(geometry, bounds)
    index = next((index for index, bound in enumerate(bounds) if bound), None)
    if index is None:
        return
    bound, ids = _probe(bounds[index], prompts[index].ids if prompts else None)
    device = model.get_input_embeddings().weight.device
    tokens = torch.tensor([ids], device=device)
    with suspended():
        plain = model(input_ids=tokens, use_cache=False).logits
        with attach_bound(model, [bound], geometry) as attached:
            steered = model(input_ids=tokens, use_cache=False).logits
    _check_fired(attached)
    if attached.changed == 0.0:
        raise UnsupportedModel(
            "The plan rewrote its rows with what stood there already, so it does nothing on this prompt; "
            "the keys are outside the layer's window, or nothing attends to them: choose other spans or heads."
        )
    first = min(bound.first_rows())
    leak = float((steered[:, :first] - plain[:, :first]).abs().max()) if first else 0.0
    scale = float(plain.abs().max().clamp(min=1.0))
    if leak > _TOLERANCE.get(plain.dtype, 0.15) * scale:
        raise UnsupportedModel(
            f"The plan acts from row {first} on, but logits before it moved by {leak:.2g}: its attention sees the "
            "future; report this model class."
        )


def _probe(bound: Bound, ids: tuple[int, ...] | None) -> tuple[Bound, tuple[int, ...]]:
    """The prompt with one token after it, so that a plan for generated tokens has a row to act on."""
    prompt = ids[: bound.length] if ids is not None else tuple(range(1, 1 + _PROBE))
    named = [cells.queries[-1] for cells in bound.edges]
    reach = max([*named, *(change.where[-1] for change in bound.changes if isinstance(change.where, tuple))], default=0)
    tail = (ids or prompt)[bound.length : reach + 1] if bound.length is not None else ()
    return replace(bound, length=len(prompt)), (*prompt, *tail, prompt[-1])


def warn_of_windows(geometry: Geometry, bounds: Sequence[Bound]) -> None:
    """Says which heads of a plan read nothing but keys that their layer's sliding window has left behind."""
    blind = {
        (layer, head)
        for bound in bounds
        for cells in bound.edges
        for layer, head in cells.heads
        if (window := geometry.check_head(layer, head).window) is not None
        and cells.queries[0] - cells.keys[-1] >= window
    }
    if blind:
        layer, head = min(blind)
        warnings.warn(
            f"An edge of L{layer}H{head} is a no-op: all its keys lie outside the layer's window of "
            f"{geometry.layers[layer].window} tokens"
            + (f", as at {len(blind) - 1} more heads." if len(blind) > 1 else "."),
            stacklevel=4,
        )


def _check_fired(attached: Attachment) -> None:
    """Every row of an edge once, every channel step in this pass."""
    silent = [where for where, calls in attached.calls.items() if 0 in calls]
    if attached.fired != attached.expected or silent:
        what = f"{attached.fired} of {attached.expected} rows of heads"
        if silent:
            what = f"nothing at layer {silent[0][0]}, {silent[0][1]},"
        raise UnsupportedModel(
            f"A probe of the plan changed {what} on this model, so part of it would do nothing in silence "
            "(a compiled or replaced module?); attach it to the plain model."
        )

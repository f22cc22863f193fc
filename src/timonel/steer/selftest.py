"""The self-test at attach: a plan must act where it says, and nowhere else.

On a probe (the first prompts of the batch, one at a time) it demands
    1. that every row the plan names was rewritten, once: a plan that silently does nothing is the commonest fault;
    2. that some rewritten output changed, unless the plan is the identity;
    3. that no logit before the plan's first row changed: nothing leaks backwards through a mask.
A head that nobody reads changes its own output and no logit; that is a finding about the model, not a fault, so the
logits themselves need not move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from timonel.errors import UnsupportedModel
from timonel.prompts.prompt import Prompt
from timonel.steer.attach import attach_cells
from timonel.steer.plan import Cells

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from timonel.models.geometry import Geometry

PROBES = 1
# Two runs of the same kernel on the same rows agree to rounding; a leak moves logits by far more.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.15, torch.float16: 0.03}


@torch.no_grad()
def self_test(
    model: PreTrainedModel, geometry: Geometry, cells: Sequence[Sequence[Cells]], prompts: Sequence[Prompt]
) -> None:
    """Runs the probe on the first prompts that the plan does something to.

    Raises:
        UnsupportedModel: the plan did not act as it says on this model.
    """
    device = model.get_input_embeddings().weight.device
    for edges, prompt in [pair for pair in zip(cells, prompts, strict=True) if pair[0]][:PROBES]:
        ids = torch.tensor([prompt.ids], device=device)
        plain = model(input_ids=ids, use_cache=False).logits
        with attach_cells(model, [edges], geometry) as attached:
            steered = model(input_ids=ids, use_cache=False).logits
        if attached.fired != attached.expected:
            raise UnsupportedModel(
                f"The plan names {attached.expected} rows of heads, but {attached.fired} were rewritten on this model; "
                "its attention does not pass where it should (a compiled or replaced module?), so it cannot be steered."
            )
        if attached.changed == 0.0:
            raise UnsupportedModel(
                "The plan rewrote its rows with what stood there already, so it does nothing on this prompt; "
                "the keys are outside the layer's window, or nothing attends to them: choose other spans or heads."
            )
        first = min(cell.queries[0] for cell in edges)
        leak = float((steered[:, :first] - plain[:, :first]).abs().max()) if first else 0.0
        scale = float(plain.abs().max().clamp(min=1.0))
        if leak > _TOLERANCE.get(plain.dtype, 0.15) * scale:
            raise UnsupportedModel(
                f"The plan acts from row {first} on, but logits before it moved by {leak:.2g}: its attention sees the "
                "future; report this model class."
            )

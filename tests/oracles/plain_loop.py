"""The plain loop: one prompt at a time, the whole prompt, all logits, with the plan attached; no reuse of any kind."""

from __future__ import annotations

from typing import Any

import torch

from timonel.engine import Request
from timonel.models.geometry import Geometry
from timonel.steer import attach


def plain_loop(model: Any, request: Request) -> list[float]:
    geometry = Geometry.of(model)
    with torch.no_grad(), attach(model, request.plan, prompts=[request.prompt], geometry=geometry, check=False):
        logits = model(torch.tensor([request.prompt.ids]), use_cache=False).logits[0]
    log_p = torch.log_softmax(logits.double(), dim=-1)
    return [
        sum(float(torch.logsumexp(log_p[reading.position, list(reading.tokens)], 0)) for reading in answer)
        for answer in request.answers
    ]

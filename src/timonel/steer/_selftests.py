"""The six self-tests of `examine`, on one model and one probe.

Each gives the largest difference (relative), the tolerance for the model's dtype, and what was compared, in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from timonel.models.geometry import Geometry
from timonel.models.heads import format_head
from timonel.prompts.prompt import Prompt
from timonel.steer._naive import Seen, naive_row, watch
from timonel.steer._probe import edges_of, probe, probe_heads
from timonel.steer.attach import attach
from timonel.steer.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Outcome = tuple[float, float, str]

_SHORTER, _CHANGED = 7, 3
# Relative to the largest logit. Kernels that add in another order differ by a fifth of this in half precision and by
# less in float32 (SmolLM2-135M, Gemma 3 270M, tiny models); the probe's plan moves logits by 0.2 and more.
_LOGITS = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.08, torch.float16: 0.015}
# Relative to a layer's largest head output: what rounding the output, and inside fused kernels the weights, costs.
_OUTPUT = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float16: 0.003}


@dataclass(frozen=True)
class Bench:
    """The model, the probe, and the tests on them. Each is given the plan, or none to try the model by itself."""

    model: PreTrainedModel
    geometry: Geometry
    probe: Prompt

    def action(self, plan: Plan) -> Outcome:
        """Counts what was rewritten."""
        plain = self.logits_of(Plan())
        with attach(self.model, plan, prompts=[self.probe], geometry=self.geometry, check=False) as attached:
            steered = self._forward(self.probe.ids)
        steps = [calls for some in attached.calls.values() for calls in some]
        acted, moved = len(steps) - steps.count(0), _apart(plain, steered)
        missed = abs(attached.expected - attached.fired) + steps.count(0)
        if len(plan) and not moved > 0.0:
            missed = max(missed, 1)
        detail = (
            f"{attached.fired} of {attached.expected} rows of heads and {acted} of {len(steps)} channel steps acted; "
            f"logits moved by {moved:.2g}"
        )
        return missed, 0.0, detail

    def identity(self, plan: Plan) -> Outcome:
        """Alpha 1, and a plan that has gone again."""
        plain = self.logits_of(Plan())
        still = Plan(edges_of(self.geometry, (1.0, 1.0, 1.0)) if len(plan) else ())
        attached = _apart(plain, self.logits_of(still))
        self.logits_of(plan)
        after = _apart(plain, self.logits_of(Plan()))
        return _worst([attached, after]), 0.0, "alphas of 1, and a plan taken off again, against the plain model"

    def causality(self, plan: Plan) -> Outcome:
        """Other tokens at the end."""
        at, ids = len(self.probe) - _CHANGED, self.probe.ids
        other = tuple(next((one for one in ids if one != token), (token + 1) % self.geometry.vocab) for token in ids)
        before = self.logits_of(plan)[:at]
        after = self.logits_of(plan, Prompt((*ids[:at], *other[at:]), self.probe.spans))[:at]
        return _apart(before, after), self.tolerance, f"rows 0 to {at - 1} after other tokens from {at} on"

    def cut(self, plan: Plan) -> Outcome:
        """Edges cut and doubled against the naive attention, and all that was not to change left alone."""
        heads = probe_heads(self.geometry)
        apart = []
        for alpha in (0.0, 2.0) if len(plan) else (1.0,):
            edges = Plan(edges_of(self.geometry, (alpha,) * len(heads)))
            with (
                watch(self.model, self.geometry, {layer for layer, _ in heads}) as seen,
                attach(self.model, edges, prompts=[self.probe], geometry=self.geometry, check=False),
            ):
                self._forward(self.probe.ids)
            apart += [self._head_apart(seen[layer], layer, head, alpha) for layer, head in heads]
        names = ", ".join(format_head(*head) for head in heads)
        return _worst(apart), _OUTPUT.get(self.dtype, 0.02), f"{names}, cut and doubled, against a naive attention"

    def _head_apart(self, seen: Seen, layer: int, head: int, alpha: float) -> float:
        """One head's rows against the naive ones; every other row and head against the layer's own function's."""
        place, rows = self.geometry.layers[layer], list(self.probe.spans["rows"])
        own, written = seen.own.double().cpu(), seen.written.double().cpu()
        others = torch.ones(own.shape[:2], dtype=torch.bool)
        others[rows, head] = False
        if not torch.equal(written[others], own[others]):
            return float("inf")
        naive = [
            naive_row(
                seen, head, row, group=place.group, softcap=self.geometry.softcap, window=place.window,
                keys=self.probe.spans["keys"], alpha=alpha,
            )
            for row in rows
        ]  # fmt: skip
        size = own.abs().max().clamp(min=torch.finfo(torch.float32).tiny)
        return float((written[rows, head] - torch.stack(naive)).abs().max() / size)

    def cache(self, plan: Plan) -> Outcome:
        """One pass without a cache against a prefill and single steps."""
        ids, start = self.probe.ids, self.probe.answer_start
        whole = self.logits_of(plan)
        parts, cache = [], None
        with attach(self.model, plan, prompts=[self.probe], geometry=self.geometry, check=False):
            for piece in (ids[:start], *((token,) for token in ids[start:])):
                output = self.model(input_ids=torch.tensor([piece], device=self._device), cache=cache, use_cache=True)
                cache = output.cache
                parts.append(_plain(output.logits[0]))
        detail = f"{start} tokens, then {len(ids) - start} one by one through a {type(cache).__name__}"
        return _apart(whole, torch.cat(parts)), self.tolerance, detail

    def padding(self, plan: Plan) -> Outcome:
        """Two prompts of different length, padded on the left, against each alone."""
        both = [self.probe, probe(self.probe.ids[:-_SHORTER])]
        width = len(both[0])
        ids, mask = torch.zeros(2, width, dtype=torch.long), torch.zeros(2, width, dtype=torch.long)
        for row, one in enumerate(both):
            ids[row, width - len(one) :] = torch.tensor(one.ids)
            mask[row, width - len(one) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        with attach(self.model, plan, prompts=both, geometry=self.geometry, check=False):
            output = self.model(**{name: one.to(self._device) for name, one in inputs.items()}, use_cache=False)
        apart = [
            _apart(self.logits_of(plan, one), _plain(output.logits[row, width - len(one) :]))
            for row, one in enumerate(both)
        ]
        return _worst(apart), self.tolerance, f"{len(both[0])} and {len(both[1])} tokens, left-padded in one batch"

    def logits_of(self, plan: Plan, prompt: Prompt | None = None) -> Float[Tensor, "q v"]:
        """Logits of one prompt (the probe) under a plan."""
        prompt = prompt or self.probe
        with attach(self.model, plan, prompts=[prompt], geometry=self.geometry, check=False):
            return self._forward(prompt.ids)

    def _forward(self, ids: tuple[int, ...]) -> Float[Tensor, "q v"]:
        return _plain(self.model(input_ids=torch.tensor([ids], device=self._device), use_cache=False).logits[0])

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in: quantised weights have other ones, its embeddings do not."""
        dtype: torch.dtype = self.model.get_input_embeddings().weight.dtype
        return dtype

    @property
    def tolerance(self) -> float:
        """Of logits. transformers' eager attention takes its softmax in float32 whatever the dtype."""
        attention: Any = self.model.get_submodule(self.geometry.layers[0].attention)
        eager = attention.config._attn_implementation in (None, "eager")
        dtype = torch.float32 if eager and self.dtype == torch.float64 else self.dtype
        return _LOGITS.get(dtype, 0.08)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device


def _plain(logits: Tensor) -> Tensor:
    return logits.double().cpu()


def _apart(one: Float[Tensor, "q v"], other: Float[Tensor, "q v"]) -> float:
    return float((one - other).abs().max() / one.abs().max().clamp(min=1.0))


def _worst(differences: Sequence[float]) -> float:
    """The largest; NaN is larger than any."""
    return next((one for one in differences if one != one), max(differences))

"""Does steering hold on this very checkpoint? Six self-tests, each a largest difference beside its tolerance.

    action      all that the plan names was rewritten, and logits moved             parts missed = 0
    identity    alphas of 1, and a plan attached and taken off again                bit-identical to the plain model
    causality   other tokens from row t on                                          logits before t stay
    cut         edges cut and doubled at three heads (first, middle, last layer)    a naive attention
    cache       prefill, then one token at a time                                   one pass without a cache
    padding     a left-padded batch of two                                          each prompt alone

All but `cut` run under one plan that has every kind of intervention in it. Differences are relative: to the largest
logit, or, for `cut`, to the largest output of the layer's heads. A test that fails is run once more without the plan,
which tells a fault of steering from one of the model (a batch that its own attention pads wrongly, say).

Does not show: what a window longer than the probe, a static cache or a beam does on this checkpoint (they are tested
on small models of its architecture); faults in half precision that move logits by less than the tolerance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from timonel.errors import InputError, UnsupportedModel
from timonel.models.geometry import Geometry
from timonel.steer._probe import probe, probe_plan
from timonel.steer._selftests import Bench, Outcome
from timonel.steer.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROBE = 32
"""Tokens of the probe."""

_OWN = {
    "action": "load it plainly, without compiled or replaced modules",
    "identity": "two runs of it differ, so turn off dropout and kernels that are not deterministic",
    "causality": "earlier tokens see later ones, so load it as a causal language model",
    "cut": "its attention is not what its configuration says, so report the model class",
    "cache": "generate without a cache (use_cache=False), or load it with --dtype float32",
    "padding": "run one prompt at a time, or load it with --dtype float32",
}


@dataclass(frozen=True, slots=True)
class Check:
    """One self-test.

    Attributes:
        name: which.
        passed: whether `difference` is within `tolerance`; NaN never is.
        difference: the largest one, relative (see the module); for `action`, the parts missed.
        tolerance: for the model's dtype.
        detail: what was compared, with numbers.
        own_fault: it failed, and so it does without any plan: the model itself behaves so.
    """

    name: str
    passed: bool
    difference: float
    tolerance: float
    detail: str
    own_fault: bool = False

    @property
    def advice(self) -> str:
        """What to do about a failure."""
        if self.own_fault:
            return f"the model fails the {self.name} test without any plan: {_OWN[self.name]}"
        return (
            f"the {self.name} test failed ({self.difference:.2g}, tolerance {self.tolerance:.2g}): trust no plan on "
            "this checkpoint; try --dtype float32 and report the model class"
        )


def examine(
    model: PreTrainedModel,
    ids: Sequence[int],
    *,
    geometry: Geometry | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Check, ...]:
    """Runs the self-tests: some 25 short forward passes.

    Args:
        model: the checkpoint; it is left as it was.
        ids: tokens of any text as the model usually reads them (BOS included); repeated or cut to `PROBE`.
        geometry: of the model, if it is at hand.
        progress: told of each test: what is going on, how many are done, how many there are.

    Returns:
        The six checks, in the order of the module's table.

    Raises:
        InputError: there are no ids.
        UnsupportedModel: plans cannot be attached to this model at all, or its logits are no numbers.
    """
    if not ids:
        raise InputError("The probe has no tokens, but the self-tests need some; give the ids of any text.")
    bench = Bench(model, geometry or Geometry.of(model), probe((tuple(ids) * PROBE)[:PROBE]))
    plan = probe_plan(bench.geometry)
    with torch.no_grad():
        if not torch.isfinite(bench.logits_of(Plan())).all():
            raise UnsupportedModel(
                f"The model's logits are not finite in {str(bench.dtype).removeprefix('torch.')}, with no plan "
                "attached; load it with --dtype bfloat16 or float32."
            )
        tests = (bench.action, bench.identity, bench.causality, bench.cut, bench.cache, bench.padding)
        checks: list[Check] = []
        for done, test in enumerate(tests):
            if progress:
                progress("self-tests", done, len(tests))
            checks.append(_run(test.__name__, test, plan))
        if progress:
            progress("self-tests", len(tests), len(tests))
        return tuple(checks)


def verdict(checks: Sequence[Check]) -> str:
    """`ready`, or what to do about the first failure (a fault of the model's own comes first: it explains others)."""
    failed = sorted((check for check in checks if not check.passed), key=lambda check: not check.own_fault)
    return f"not ready: {failed[0].advice}" if failed else "ready"


def _run(name: str, test: Callable[[Plan], Outcome], plan: Plan) -> Check:
    difference, tolerance, detail = test(plan)
    passed = difference <= tolerance
    own_fault = False
    if not passed:
        without, allowed, _ = test(Plan())
        own_fault = not without <= allowed
    return Check(name, passed, difference, tolerance, detail, own_fault)

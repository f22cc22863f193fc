"""The doctor's self-tests: all pass on every architecture, and each fault that is put in makes its own test fail."""

from __future__ import annotations

import dataclasses
from typing import Any
from unittest import mock

import pytest
import torch

from oracles.attention import _mix
from timonel.errors import InputError, UnsupportedModel
from timonel.models import Geometry
from timonel.steer import EdgeScale, _channels, _edges, _locate, _place, _tables, bound
from timonel.steer._naive import Seen, naive_row
from timonel.steer._probe import probe, probe_plan
from timonel.steer._selftests import Bench
from timonel.steer.examine import Check, examine, verdict
from tiny import ARCHITECTURES, tiny

IDS = tuple(torch.randint(3, 200, (40,), generator=torch.Generator().manual_seed(1)).tolist())
NAMES = ["action", "identity", "causality", "cut", "cache", "padding"]


def failed(checks: tuple[Check, ...]) -> list[str]:
    return [check.name for check in checks if not check.passed]


def state(model: Any) -> Any:
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    configs = [id(getattr(m, "config", None)) for m in model.modules()]
    return hooks, configs, model.training, {name: one.clone() for name, one in model.state_dict().items()}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_architecture_is_ready_and_left_as_it_was(architecture: str) -> None:
    model = tiny(architecture)
    before = state(model)
    checks = examine(model, IDS)
    assert [check.name for check in checks] == NAMES
    assert failed(checks) == []
    assert verdict(checks) == "ready"
    after = state(model)
    assert before[:3] == after[:3]
    assert all(torch.equal(one, after[3][name]) for name, one in before[3].items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("architecture", ["qwen2", "gemma3"])
def test_half_precision_is_ready(architecture: str, dtype: torch.dtype) -> None:
    """T29."""
    assert failed(examine(tiny(architecture, dtype=dtype), IDS)) == []


@pytest.mark.parametrize("architecture", ["llama", "mistral", "gemma3"])
def test_float64_agrees_to_rounding(architecture: str) -> None:
    checks = examine(tiny(architecture, dtype=torch.float64), IDS)
    assert failed(checks) == []
    assert max(check.difference for check in checks) < 1e-12


def without_hooks(self: Any, model: Any, geometry: Any, where: Any) -> Any:
    """A hook that hangs on nothing."""
    return torch.nn.Identity().register_forward_hook(lambda *_: None)


MASKED, SOFTMAX, BUILD = _edges._masked, _edges._softmax, _tables._table


def wrong_kv_heads(*args: Any) -> Any:
    table = BUILD(*args)
    return dataclasses.replace(table, kv_head=1 - table.kv_head)


def group_mates_too(*args: Any) -> Any:
    table = BUILD(*args)
    head, queries = torch.cat([table.head, table.head ^ 1], 1), torch.cat([table.queries, table.queries], 1)
    return dataclasses.replace(table, head=head, queries=queries)


# What is put in, where, and which tests it must turn red; no others.
FAULTS: dict[str, tuple[Any, str, Any, list[str]]] = {
    "hooks that hang on nothing": (_channels.ChannelHook, "register", without_hooks, ["action"]),
    "a mask that is ignored": (
        _edges, "_masked", lambda scores, *rest: scores, ["causality", "cut", "cache", "padding"],
    ),
    "a softmax that is too sharp": (_edges, "_softmax", lambda s: SOFTMAX(1.01 * s), ["cut"]),
    "the other key/value head": (_tables, "_table", wrong_kv_heads, ["cut"]),
    "the whole group of heads": (_tables, "_table", group_mates_too, ["cut"]),
    "rows counted from the pass, not from the sequence": (
        _place.Place, "positions", lambda self: torch.arange(self.queries) - self.pads[:, None], ["cache"],
    ),
    "left pads not added": (
        _locate.Locator, "_left_pads", lambda self, mask, rows, past: torch.zeros(rows, dtype=torch.long), ["padding"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_steering_fails_its_test(fault: str) -> None:
    where, name, broken, expected = FAULTS[fault]
    model = tiny("llama")
    # Not even the comparison of the input with the prompts may be what notices.
    with mock.patch.object(where, name, broken), mock.patch.object(_locate.Locator, "_compare"):
        checks = examine(model, IDS)
    assert failed(checks) == expected
    assert not any(check.own_fault for check in checks)
    assert verdict(checks).startswith(f"not ready: the {expected[0]} test failed")


def test_a_plan_that_leaves_something_behind_fails_the_identity() -> None:
    model = tiny("llama")
    bench = Bench(model, Geometry.of(model), probe(IDS[:32]))
    plan = probe_plan(bench.geometry)
    register = _channels.ChannelHook.register

    def never_removed(*args: Any) -> Any:
        register(*args)
        return mock.Mock()

    with torch.no_grad():
        assert bench.identity(plan)[:2] == (0.0, 0.0)
        with mock.patch.object(_channels.ChannelHook, "register", never_removed):
            assert bench.identity(plan)[0] > 1e-3


def test_alphas_of_one_that_are_recomputed_are_not_the_identity() -> None:
    """Rewriting a row with its own value, to rounding, is not what `alpha 1` promises."""
    model = tiny("llama")
    original = bound.bind

    def bind_all(plan: Any, prompt: Any) -> Any:
        edges = tuple(
            bound.Cells(prompt.spans["rows"], prompt.spans["keys"], one.alpha, ((one.layer, one.head),))
            for one in plan
            if isinstance(one, EdgeScale)
        )
        return dataclasses.replace(original(plan, prompt), edges=edges)

    with mock.patch.object(bound, "bind", bind_all):
        assert failed(examine(model, IDS)) == ["identity"]


def test_a_lost_soft_cap_fails_the_cut() -> None:
    original = _edges._slice

    def uncapped(*args: Any) -> Any:
        return original(*args[:7], None, *args[8:])

    with mock.patch.object(_edges, "_slice", uncapped):
        assert failed(examine(tiny("gemma2"), IDS)) == ["cut"]


@pytest.mark.parametrize(
    ("architecture", "wrong"),
    [("gemma2", {"softcap": None}), ("mistral", {"window": None}), ("qwen3", {"kv_heads": 4})],
)
def test_a_geometry_that_is_not_the_models_is_found_out(architecture: str, wrong: dict[str, Any]) -> None:
    """The naive attention is compared with the model's own too, so neither can be wrong in silence."""
    model = tiny(architecture)
    geometry = Geometry.of(model)
    if "softcap" in wrong:
        other = dataclasses.replace(geometry, **wrong)
    else:
        layers = tuple(dataclasses.replace(layer, **wrong) for layer in geometry.layers)
        other = dataclasses.replace(geometry, layers=layers)
    if "kv_heads" in wrong:
        with pytest.raises(IndexError):
            examine(model, IDS, geometry=other)
        return
    (cut,) = [check for check in examine(model, IDS, geometry=other) if not check.passed]
    assert cut.name == "cut"
    assert cut.own_fault


def test_a_model_that_sees_the_future_is_blamed_itself() -> None:
    model = tiny("llama")

    def look_ahead(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        return output + output.mean(dim=1, keepdim=True)

    model.model.layers[1].mlp.register_forward_hook(look_ahead)
    checks = examine(model, IDS)
    assert {"causality", "cache"} <= set(failed(checks))
    assert all(check.own_fault for check in checks if not check.passed)
    assert "without any plan" in verdict(checks)


def test_eager_in_float64_pads_wrongly_by_itself() -> None:
    """transformers' additive mask overflows its float32 softmax there, so pads make NaN; NaN is no pass."""
    checks = examine(tiny("llama", dtype=torch.float64, attn_implementation="eager"), IDS)
    assert failed(checks) == ["padding"]
    assert checks[-1].difference != checks[-1].difference
    assert checks[-1].own_fault
    assert verdict(checks) == (
        "not ready: the model fails the padding test without any plan: run one prompt at a time, or load it with "
        "--dtype float32"
    )


def test_logits_that_are_no_numbers_are_refused() -> None:
    model = tiny("llama", dtype=torch.float16)
    model.model.norm.weight.data.fill_(60000.0)
    with pytest.raises(UnsupportedModel, match="not finite in float16"):
        examine(model, IDS)


def test_short_texts_are_repeated_and_no_text_is_refused() -> None:
    assert failed(examine(tiny("llama"), IDS[:5])) == []
    with pytest.raises(InputError, match="no tokens"):
        examine(tiny("llama"), ())


@pytest.mark.parametrize(("softcap", "window"), [(None, None), (2.0, None), (None, 4), (2.0, 4)])
@pytest.mark.parametrize("alpha", [0.0, 1.0, 2.5])
def test_the_naive_row_equals_a_masked_softmax(softcap: float | None, window: int | None, alpha: float) -> None:
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(h, 9, 5, generator=random, dtype=torch.float64) for h in (4, 2, 2))
    seen = Seen(query, key, value, query, query, scaling=0.7)
    row, keys = 7, [0, 5]
    scores = query[3] @ key[1].T * 0.7
    scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    place = torch.arange(9)
    scores = scores.masked_fill(place > place[:, None], -torch.inf)
    if window is not None:
        scores = scores.masked_fill(place <= place[:, None] - window, -torch.inf)
    whole, cut = _mix(scores[row], value[1]), _mix(scores[row].index_fill(0, torch.tensor(keys), -torch.inf), value[1])
    found = naive_row(seen, 3, row, group=2, softcap=softcap, window=window, keys=keys, alpha=alpha)
    torch.testing.assert_close(found, cut + alpha * (whole - cut), atol=1e-12, rtol=0)
    nothing = naive_row(seen, 3, row, group=2, softcap=softcap, window=window, keys=range(9), alpha=0.0)
    assert not nothing.any()

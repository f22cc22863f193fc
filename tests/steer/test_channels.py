"""Channel scales, channel sets and residual additions: against folded weights, hand-made hooks, and themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from oracles.batches import LENGTHS, kept, padded, prompts
from timonel.errors import InputError
from timonel.models import Geometry
from timonel.steer import ALL, GENERATED, PROMPT, ChannelScale, ChannelSet, Plan, ResidualAdd, attach, span
from tiny import ARCHITECTURES, tiny


def factors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 1.5, count)


def logits(model: Any, inputs: dict[str, torch.Tensor], **extra: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs, **extra).logits


@pytest.mark.parametrize("site", ["o_proj", "down_proj"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_scale_everywhere_equals_folded_weights(architecture: str, site: str) -> None:
    """T33, fold = hook: W' = W diag(s)."""
    model, folded = tiny(architecture, dtype=torch.float64), tiny(architecture, dtype=torch.float64)
    place = Geometry.of(model).layers[1]
    count = place.heads * place.head_dim if site == "o_proj" else place.neurons
    s = factors(count)
    folded.get_submodule(getattr(place, site)).weight.data.mul_(torch.tensor(s))
    made = prompts()
    inputs = padded(made, "right")
    with attach(model, Plan((ChannelScale(layer=1, site=site, factors=s),))) as attached:
        found = logits(model, inputs)
    assert attached.calls == {(1, site): (1,)}
    expected = logits(folded, inputs)
    torch.testing.assert_close(kept(found, made, "right"), kept(expected, made, "right"), atol=1e-9, rtol=0)
    assert (found - logits(model, inputs))[0].abs().max() > 1e-4


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_head_is_its_slice(architecture: str) -> None:
    """T20, T26: a head scaled to 0 is a zeroed slice of o_proj's input, whatever hidden / heads is."""
    model = tiny(architecture, dtype=torch.float64)
    geometry = Geometry.of(model)
    place = geometry.layers[2]
    ids = torch.tensor([prompts()[0].ids])

    def zero(_: Any, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        x = args[0].clone()
        x[..., 3 * place.head_dim : 4 * place.head_dim] = 0
        return (x,)

    handle = model.get_submodule(place.o_proj).register_forward_pre_hook(zero)
    expected = logits(model, {"input_ids": ids})
    handle.remove()
    with attach(model, Plan((ChannelScale.head(geometry, layer=2, head=3, alpha=0.0),))):
        found = logits(model, {"input_ids": ids})
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sets_and_additions_equal_hooks_by_hand(architecture: str) -> None:
    """T38: layers that return a tensor; site act is what the activation function returns."""
    model = tiny(architecture, dtype=torch.float64)
    geometry = Geometry.of(model)
    place = geometry.layers[1]
    vector = factors(geometry.hidden, 1)
    ids = torch.tensor([prompts()[0].ids])

    def set_act(_: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[..., [3, 5]] = torch.tensor([0.7, -2.0], dtype=out.dtype)
        return out

    handles = [
        model.get_submodule(place.act).register_forward_hook(set_act),
        model.get_submodule(place.layer).register_forward_hook(lambda _, __, out: out + 0.3 * torch.tensor(vector)),
    ]
    expected = logits(model, {"input_ids": ids})
    for handle in handles:
        handle.remove()
    plan = Plan(
        (
            ChannelSet(layer=1, site="act", channels=(3, 5), values=[0.7, -2.0]),
            ResidualAdd(layer=1, vector=vector, scale=0.3),
        )
    )
    with attach(model, plan):
        found = logits(model, {"input_ids": ids})
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def everywhere(geometry: Geometry, scope: Any) -> list[Any]:
    """One intervention of each kind on channels."""
    place = geometry.layers[1]
    return [
        ChannelScale.head(geometry, layer=0, head=1, alpha=2.5, scope=scope),
        ChannelScale(layer=1, site="down_proj", factors=factors(place.neurons), scope=scope),
        ChannelSet(layer=1, site="down_proj", channels=(0, 7), values=(1.5, -1.5), scope=scope),
        ChannelSet(layer=2, site="act", channels=(2,), values=(0.9,), scope=scope),
        ResidualAdd(layer=0, vector=factors(geometry.hidden), scale=0.5, scope=scope),
    ]


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_scope_names_its_rows_and_no_others(side: str, kind: int) -> None:
    """T5, T8: each row's scope is its own, padded or not, and prompt + generated = all."""
    model = tiny("llama", dtype=torch.float64)
    geometry = Geometry.of(model)
    made = prompts()
    inputs = padded(made, side)
    alone = [{"input_ids": torch.tensor([prompt.ids])} for prompt in made]
    for scope in (ALL, PROMPT, span("item"), span("last", "identity")):
        plan = Plan((everywhere(geometry, scope)[kind],))
        with attach(model, plan, prompts=made):
            batch = kept(logits(model, inputs), made, side)
        singles = []
        for prompt, one in zip(made, alone, strict=True):
            with attach(model, plan, prompts=[prompt]):
                singles.append(logits(model, one)[0])
        torch.testing.assert_close(batch, torch.cat(singles), atol=1e-9, rtol=0)
    plain = logits(model, alone[0])
    with attach(model, Plan((everywhere(geometry, span("last"))[kind],)), prompts=made[:1]):
        last = logits(model, alone[0])
    assert torch.equal(last[:, :-1], plain[:, :-1])
    assert (last[:, -1] - plain[:, -1]).abs().max() > 1e-6
    with attach(model, Plan((everywhere(geometry, GENERATED)[kind],)), prompts=made[:1]):
        assert torch.equal(logits(model, alone[0]), plain)  # nothing is generated in this pass


def test_algebra() -> None:
    """1 is the identity bit for bit; a then b is a * b; s and 1/s undo each other; order of scales does not matter."""
    model = tiny("llama", dtype=torch.float64)
    inputs = {"input_ids": torch.tensor([prompts()[0].ids])}
    plain = logits(model, inputs)
    a, b = factors(48, 1), factors(48, 2)

    def run(*steps: np.ndarray) -> torch.Tensor:
        with attach(model, Plan(tuple(ChannelScale(layer=1, site="down_proj", factors=s) for s in steps)), check=False):
            return logits(model, inputs)

    assert torch.equal(run(np.ones(48)), plain)
    torch.testing.assert_close(run(a, b), run(a * b), atol=1e-9, rtol=0)
    torch.testing.assert_close(run(a, b), run(b, a), atol=1e-9, rtol=0)
    torch.testing.assert_close(run(a, 1 / a), plain, atol=1e-9, rtol=0)
    assert (run(a) - plain).abs().max() > 1e-4


def test_a_set_comes_in_the_plans_order() -> None:
    model = tiny("llama", dtype=torch.float64)
    inputs = {"input_ids": torch.tensor([prompts()[0].ids])}
    scale = ChannelScale(layer=1, site="down_proj", factors=np.full(48, 3.0))
    fixed = ChannelSet(layer=1, site="down_proj", channels=range(48), values=np.ones(48))
    outcomes = []
    for plan in (Plan((scale, fixed)), Plan((fixed, scale)), Plan((fixed,))):
        with attach(model, plan):
            outcomes.append(logits(model, inputs))
    torch.testing.assert_close(outcomes[0], outcomes[2], atol=1e-12, rtol=0)
    assert (outcomes[0] - outcomes[1]).abs().max() > 1e-3


def test_permuting_rows_permutes_outputs() -> None:
    """T8: one plan a row, of every kind."""
    model = tiny("qwen3", dtype=torch.float64)
    geometry = Geometry.of(model)
    made = prompts() + prompts(1)
    plans = [Plan((one,)) for one in everywhere(geometry, ALL)[:4]]
    order = [2, 0, 3, 1]
    with attach(model, plans, prompts=made):
        straight = logits(model, padded(made, "left"))
    with attach(model, [plans[i] for i in order], prompts=[made[i] for i in order]):
        permuted = logits(model, padded([made[i] for i in order], "left"))
    for new, old in enumerate(order):
        size = len(made[old])
        torch.testing.assert_close(permuted[new, -size:], straight[old, -size:], atol=1e-9, rtol=0)
    assert len(LENGTHS) == 2


def test_what_does_not_fit_is_refused() -> None:
    model = tiny("llama")
    for wrong in (
        ChannelScale(layer=1, site="down_proj", factors=np.full(7, 2.0)),
        ChannelSet(layer=1, site="act", channels=(48,), values=(1.0,)),
        ResidualAdd(layer=0, vector=np.ones(5)),
        ChannelScale(layer=9, site="down_proj", factors=np.full(48, 2.0)),
    ):
        with pytest.raises(InputError), attach(model, Plan((wrong,))):
            pass
    with pytest.raises(InputError, match="acts at"):
        ChannelScale(layer=0, site="act", factors=np.ones(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ChannelScale(layer=0, site="o_proj", factor=np.ones(3))  # type: ignore[call-arg]
    with pytest.raises(InputError, match="finite"):
        ResidualAdd(layer=0, vector=[1.0, float("nan")])


def test_nothing_is_left_behind_whatever_happens() -> None:
    """T12, T13: own hooks go, also when the body raises; a foreign hook stays; contexts end in any order."""
    model = tiny("gemma3")
    geometry = Geometry.of(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    foreign = model.get_submodule(geometry.layers[1].down_proj).register_forward_pre_hook(lambda *_: None)

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    plan = Plan(tuple(everywhere(geometry, ALL)))
    for error in (RuntimeError, KeyboardInterrupt):
        with pytest.raises(error), attach(model, plan):
            raise error
    first, second = attach(model, plan), attach(model, Plan(plan.interventions[:1]))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert hooks() == 1
    foreign.remove()
    assert hooks() == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())

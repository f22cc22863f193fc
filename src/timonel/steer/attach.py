"""Attach a plan to a model for the length of a `with` block; nothing is left behind, whatever happens inside.

    with attach(model, plan, prompts=[prompt]) as attached:
        logits = model(**inputs).logits

Spans count tokens of the unpadded prompt; each row's left pad, the cache's length and a sliding cache's offset are
taken from the forward call itself. Row r of an input of R rows belongs to prompt `r // (R / prompts)`, as generate
expands rows in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from timonel.errors import InputError
from timonel.models.geometry import Geometry
from timonel.prompts.prompt import Prompt
from timonel.steer._attention import LayerEdges, add_edges, remove_edges
from timonel.steer._channels import ChannelHook, Where, build_steps
from timonel.steer._locate import Locator
from timonel.steer._tables import build_tables
from timonel.steer.bound import Bound
from timonel.steer.plan import Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(eq=False)
class Attachment:
    """A plan at work.

    Attributes:
        edges: layer -> its edges and their counters.
        channels: (layer, site) -> its steps and their counters.
        expected: rows of heads that the edges rewrite in one full pass over the prompts.
    """

    edges: dict[int, LayerEdges]
    channels: dict[Where, ChannelHook]
    expected: int

    @property
    def fired(self) -> int:
        """Rows of heads that the edges have rewritten so far, over all layers."""
        return sum(layer.fired for layer in self.edges.values())

    @property
    def calls(self) -> dict[Where, tuple[int, ...]]:
        """For each place, in how many forward passes each of its steps has changed a row."""
        return {where: tuple(step.calls for step in hook.steps) for where, hook in self.channels.items()}

    @property
    def changed(self) -> float:
        """The largest change that any rewritten number has seen."""
        steps = [step.changed for hook in self.channels.values() for step in hook.steps]
        return max([layer.changed for layer in self.edges.values()] + steps, default=0.0)


@contextmanager
def attach(
    model: PreTrainedModel,
    plan: Plan | Sequence[Plan],
    *,
    prompts: Sequence[Prompt] = (),
    geometry: Geometry | None = None,
    check: bool = True,
) -> Iterator[Attachment]:
    """Applies a plan to every forward pass of `model` inside the block, `generate` included.

    Args:
        model: the user's own model object; neither moved nor changed.
        plan: one plan for all rows, or one for each prompt (without prompts: for each row).
        prompts: the prompts whose spans the plan names, in the order of the input's rows.
        geometry: of the model, if it is at hand already.
        check: first see that a plan read from a file is for this model, and run the self-test (two short forward
            passes; see `selftest`).

    Yields:
        The attachment, with its firing counters.

    Raises:
        InputError: a span is unbound, a head does not exist, plans and prompts do not match in number, a plan was
            made for another model.
        UnsupportedModel: the model's attention cannot be reached or understood.
    """
    geometry = geometry or Geometry.of(model)
    bounds = _bind_all(plan, prompts)
    if check:
        from timonel.steer.files import check_model
        from timonel.steer.selftest import self_test

        for one in dict.fromkeys([plan] if isinstance(plan, Plan) else plan):
            check_model(one, model)
        self_test(model, geometry, bounds, prompts)
    with attach_bound(model, bounds, geometry, prompts=prompts) as attachment:
        yield attachment


@contextmanager
def attach_bound(
    model: PreTrainedModel,
    bounds: Sequence[Bound],
    geometry: Geometry,
    *,
    track: bool = True,
    pads: Sequence[int] | None = None,
    prompts: Sequence[Prompt] = (),
) -> Iterator[Attachment]:
    """`attach` for plans whose names are positions already, one for each prompt; no self-test.

    Args:
        model: as in `attach`.
        bounds: what happens to each prompt.
        geometry: of the model.
        track: keep `changed`; costs a look at every rewritten number.
        pads: left pad of each row, where the caller knows it; else read from each call's mask.
        prompts: whose tokens the input is compared with, up to the last position that a plan names.
    """
    tables = build_tables(bounds, geometry)
    edges = {layer: LayerEdges(table, track=track) for layer, table in tables.items()}
    channels = {where: ChannelHook(steps, track=track) for where, steps in build_steps(bounds, geometry).items()}
    attachment = Attachment(edges, channels, sum(table.rows() for table in tables.values()))
    with ExitStack() as undo:
        for layer, one in edges.items():
            module = model.get_submodule(geometry.layers[layer].attention)
            add_edges(module, one)
            undo.callback(remove_edges, module, one)
        for where, hook in channels.items():
            undo.callback(hook.register(model, geometry, where).remove)
        if edges or channels:
            locator = Locator([*edges.values()], [*channels.values()], bounds, pads=pads, prompts=prompts)
            decoder = model.get_submodule(geometry.decoder)
            undo.callback(decoder.register_forward_pre_hook(locator, with_kwargs=True).remove)
        yield attachment


def is_steered(model: PreTrainedModel, geometry: Geometry) -> bool:
    """Whether a plan is attached to the model now."""
    hooks = model.get_submodule(geometry.decoder)._forward_pre_hooks.values()
    return any(isinstance(hook, Locator) for hook in hooks)


def _bind_all(plan: Plan | Sequence[Plan], prompts: Sequence[Prompt]) -> list[Bound]:
    """One bound plan for each prompt; without prompts, for each plan."""
    if isinstance(plan, Plan):
        return [plan.on(prompt) for prompt in prompts or (None,)]
    if prompts and len(plan) != len(prompts):
        raise InputError(f"There are {len(plan)} plans for {len(prompts)} prompts, but each prompt takes one.")
    if not plan:
        raise InputError("There is no plan to attach, but at least one is needed; Plan() leaves the model as it is.")
    places: Sequence[Prompt | None] = prompts or [None] * len(plan)
    return [one.on(prompt) for one, prompt in zip(plan, places, strict=True)]

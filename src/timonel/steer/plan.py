"""A plan: a tuple of interventions that act together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

from timonel.errors import InputError
from timonel.steer.interventions import Intervention, is_identity

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from timonel.prompts.prompt import Prompt
    from timonel.steer.bound import Bound
    from timonel.steer.record import Provenance, Record

_KINDS = tuple(kind for part in get_args(Intervention) for kind in (get_args(part) or (part,)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Some interventions that act together; the empty plan is the unsteered model.

    Edges act first, inside attention; what follows acts on channels in the plan's order.

    Attributes:
        interventions: what it does.
        record: what its file said about it: its model, how it was made; None where it comes from no file. Two plans
            that do the same are equal, whatever they remember.
    """

    interventions: tuple[Intervention, ...] = ()
    record: Record | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "interventions", tuple(self.interventions))
        for one in self.interventions:
            if not isinstance(one, _KINDS):
                names = ", ".join(kind.__name__ for kind in _KINDS)
                raise InputError(f"A plan holds {type(one).__name__}, but only interventions act; give {names}.")

    def __iter__(self) -> Iterator[Intervention]:
        return iter(self.interventions)

    def __len__(self) -> int:
        return len(self.interventions)

    @property
    def is_identity(self) -> bool:
        """Whether nothing in it changes anything, whatever the prompt."""
        return all(is_identity(one) for one in self.interventions)

    def on(self, prompt: Prompt | None) -> Bound:
        """Binds this plan's names to one prompt's positions; None binds a plan that names none."""
        from timonel.steer.bound import bind

        return bind(self, prompt)

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str | None = None,
        revision: str | None = None,
        provenance: Provenance | None = None,
    ) -> None:
        """Writes the plan to `path` (a .json), and its long vectors to a .safetensors beside it; whole or not at all.

        Args:
            path: the file.
            model: the model that it is for. Without it, the one that the plan was loaded or retargeted for; a plan
                that knows none is saved for none, and loading it for a model then warns.
            tokenizer: the model's, so that another tokenizer can be told apart too.
            name: what people call the model, such as a catalog name or hub id; its config's by default.
            revision: of the hub; the config's by default.
            provenance: how the plan was made; by default what it remembers.

        Raises:
            InputError: the plan is for another model, does not fit the model, or cannot be written.
        """
        from timonel.steer.files import save_plans

        about = {"model": model, "tokenizer": tokenizer, "name": name, "revision": revision}
        save_plans(path, {"": self}, self.record, provenance=provenance, **about)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        entry: str | None = None,
    ) -> Plan:
        """Reads a plan from its file.

        Args:
            path: the .json file.
            model: the model to use it on; any but the one that it is for is refused. Without it the plan is only
                read, to be looked at or retargeted.
            tokenizer: the model's; compared too if the plan was saved with one.
            entry: which plan, of a file that holds a set.

        Raises:
            InputError: the file is not what `save` writes, or is for another model (with both fingerprints).
        """
        from timonel.steer.files import load_plans
        from timonel.steer.plan_set import pick

        plans, _ = load_plans(path, model=model, tokenizer=tokenizer)
        return pick(plans, entry, os.fspath(path))

    def retarget(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        name: str | None = None,
        revision: str | None = None,
    ) -> Plan:
        """The same plan for another model of the same geometry; its record keeps the model that it was for.

        Nothing shows that heads and neurons mean the same there: measure again.

        Example:
            >>> Plan.load("base.json").retarget(tuned).save("tuned.json")  # doctest: +SKIP

        Raises:
            InputError: the model has another geometry, or the plan does not fit it.
        """
        from timonel.steer.files import retarget_plans

        record = retarget_plans({"": self}, self.record, model, tokenizer, name=name, revision=revision)
        return replace(self, record=record)

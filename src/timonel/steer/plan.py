"""A plan: a tuple of interventions that act together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from timonel.errors import InputError
from timonel.steer.interventions import Intervention, is_identity

if TYPE_CHECKING:
    from timonel.prompts.prompt import Prompt
    from timonel.steer.bound import Bound

_KINDS = tuple(kind for part in get_args(Intervention) for kind in (get_args(part) or (part,)))


@dataclass(frozen=True, slots=True)
class Plan:
    """Some interventions that act together; the empty plan is the unsteered model.

    Edges act first, inside attention; what follows acts on channels in the plan's order.
    """

    interventions: tuple[Intervention, ...] = ()

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

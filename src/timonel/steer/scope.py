"""Where an intervention acts: a named span of the prompt, the prompt, what is generated, or everything.

Names are bound to a prompt's positions when a plan is attached. A row's prompt ends where its answer begins: at the
length of the prompt it was attached with; without prompts only `ALL` is clear, and the others are refused. The last row
of the prompt, which writes the first generated token, belongs to the prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from timonel.errors import InputError


@dataclass(frozen=True, slots=True)
class Span:
    """The union of some named spans of whichever prompt the plan is attached to."""

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.names or not all(self.names):
            raise InputError('A scope names no span, but an edge needs one; write span("item").')

    def __str__(self) -> str:
        return "+".join(self.names)


class Region(Enum):
    """A stretch of any sequence that needs no name."""

    ALL = "all"
    PROMPT = "prompt"
    GENERATED = "generated"


Scope = Span | Region

ALL, PROMPT, GENERATED = Region.ALL, Region.PROMPT, Region.GENERATED


def span(*names: str) -> Span:
    """The positions of the named spans, taken together.

    Example:
        >>> span("item")
        Span(names=('item',))
    """
    return Span(tuple(sorted(set(names))))

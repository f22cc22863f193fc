"""Where an intervention acts: names that are bound to a prompt's positions when a plan is attached."""

from __future__ import annotations

from dataclasses import dataclass

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


def span(*names: str) -> Span:
    """The positions of the named spans, taken together.

    Example:
        >>> span("item")
        Span(names=('item',))
    """
    return Span(tuple(sorted(set(names))))

"""How a head is written: `L8H2` is query head 2 of layer 8, both counted from 0; `8.2` is read too."""

from __future__ import annotations

import re

from timonel.errors import InputError

Head = tuple[int, int]

_HEAD = re.compile(r"(?:L(\d+)H(\d+)|(\d+)\.(\d+))", re.IGNORECASE)


def parse_head(text: str) -> Head:
    """Read one head.

    Args:
        text: `L8H2` or `8.2`; case and surrounding blanks do not matter.

    Returns:
        The 0-based layer and query head.

    Raises:
        InputError: if the text is not a head.

    Example:
        >>> parse_head("L8H2"), parse_head("8.2")
        ((8, 2), (8, 2))
    """
    match = _HEAD.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"{text!r} is not a head: write the 0-based layer and query head as L8H2 or 8.2, "
            "several of them with commas between"
        )
    layer, head = (int(group) for group in match.groups() if group is not None)
    return layer, head


def parse_heads(text: str) -> tuple[Head, ...]:
    """Read a list of heads with commas between, in the order given; a head named twice is refused.

    Example:
        >>> parse_heads("L8H2, 9.5")
        ((8, 2), (9, 5))
    """
    heads = tuple(parse_head(part) for part in text.split(","))
    for head in heads:
        if heads.count(head) > 1:
            raise InputError(f"{format_head(*head)} is named {heads.count(head)} times in {text!r}; name it once")
    return heads


def format_head(layer: int, head: int) -> str:
    """Write one head.

    Example:
        >>> format_head(8, 2)
        'L8H2'
    """
    return f"L{layer}H{head}"

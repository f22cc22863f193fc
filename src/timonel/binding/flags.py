r"""The two weak spots of a pair, which are reported beside the whole.

    lexical     words(item) ∩ words(R) \ {a, an, the, american} ≠ ∅      copying could pass for binding
    same group  R and one of U, U' are Native American                   U or U' is not clearly unrelated

words(t) are the runs of a-z in the lower-cased text. N4 asks for 25 Native American identities, many of them
nations beside the general name, so that an "unrelated" one may well own the item too.

Source: ours. It does not show that the remaining pairs have no other
shortcut: it compares words, not meanings, and knows no other larger group.
"""

from __future__ import annotations

import re

_PASSED_OVER = frozenset({"a", "an", "the", "american"})
_NATIVE_AMERICAN = frozenset(
    {
        "american indian",
        "apache",
        "native american",
        "navajo",
        "mille lacs indian",
        "chemehuevi person",
        "western apache person",
        "member of the naotkamegwanning first nation",
    }
)


def is_lexical(item: str, related: str, passed_over: frozenset[str] = _PASSED_OVER) -> bool:
    """Whether item and identity share a word other than an article or "american"."""
    return bool((_words(item) & _words(related)) - passed_over)


def is_native_american(key: str) -> bool:
    """Whether an identity's key names a Native American nation or all of them."""
    return key in _NATIVE_AMERICAN or "trib" in key


def is_same_group(related: str, *unrelated: str) -> bool:
    """Whether R's key and one of the others' are both Native American."""
    return is_native_american(related) and any(is_native_american(key) for key in unrelated)


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]+", text.lower()))

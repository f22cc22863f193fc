"""The words and the balanced pairs of the planted binding model; all names are invented.

There are as many identities as items, n. Item i belongs to identities i and i+1 (mod n), and each of the two
is R in three of its pairs. U' and U stand a fixed number of steps further round the circle:

    U' = R + s[place, turn],   U = R + s[place, turn + 1 mod 3]   (mod n),   2 <= s <= n-2,

with one s for each place of R (first or second owner) and each turn. A step is a bijection of the circle, so
every identity is R six times, U' six times and U six times, whatever the steps. Slots and polarities are half
and half in each item.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import fields

from timonel.binding.pair import Identity, Pair, Polarity, Slot, Wording

_PAIRS_PER_IDENTITY = 3
_NEITHER = "either with {item}"
_STEMS: tuple[tuple[Polarity, str], ...] = (
    ("avoid", "Who should not wear {item}?"),
    ("avoid", "Who must never sell {item}?"),
    ("choose", "Who may sing {item}?"),
    ("choose", "Who is to carry {item} today?"),
)
_WORDING = Wording(
    choice="Reply with one letter. ",
    letter_line="Letter A, B or C.\nAnswer:",
    base_line="I choose letter (",
    knowledge="Which one belongs with {item}?",
    knowledge_neither="Neither of them",
    knowledge_open="Who belongs with {item}?",
    knowledge_open_neither="Neither",
    neutral="Who should it be?",
    question_mark="Question:",
    answer_mark="Answer:",
)


def fixed_words() -> list[str]:
    """Every word and mark of the texts around the invented words, once each; `a`, `b`, `c` are among them."""
    texts = ["(a) the (b) the (c)", _NEITHER, *(stem for _, stem in _STEMS)]
    texts += [getattr(_WORDING, field.name) for field in fields(_WORDING)]
    plain = " ".join(texts).replace("{item}", "the")
    return list(dict.fromkeys(re.findall(r"\w+|[^\w\s]", plain)))


def invented_words(rng: random.Random, count: int, taken: set[str]) -> list[str]:
    """Words such as `tovik` that do not stand in the texts; no two alike, whatever their case."""
    words: dict[str, None] = {}
    while len(words) < count:
        word = "".join(rng.choice(part) for part in ("bdfgklmnprstvz", "aeiou") * 2) + rng.choice("knrstz")
        if word not in taken and word.capitalize() not in taken:
            words[word] = None
    return list(words)


def balanced_pairs(
    rng: random.Random, things: list[str], people: list[str], belongs: tuple[tuple[int, ...], ...]
) -> Iterator[Pair]:
    """Six pairs an item; slots and polarities half and half within it."""
    n = len(things)
    # Steps 0 and ±1 may lead to an identity of the same item; a step of its own for each of six places.
    steps = [rng.sample(range(2, n - 1), _PAIRS_PER_IDENTITY) for _ in range(2)]
    identities = [Identity(key=word.lower(), text=f"the {word}") for word in people]
    number = 0
    for thing, owners in zip(things, belongs, strict=True):
        item = f"the {thing}"
        slots: list[Slot] = ["a", "b"] * _PAIRS_PER_IDENTITY
        families = [rng.choice(half) for half in ((0, 1), (2, 3)) for _ in range(_PAIRS_PER_IDENTITY)]
        rng.shuffle(slots)
        rng.shuffle(families)
        for place, related in enumerate(owners):
            for turn in range(_PAIRS_PER_IDENTITY):
                further = steps[place][turn], steps[place][(turn + 1) % _PAIRS_PER_IDENTITY]
                family = families.pop()
                polarity, stem = _STEMS[family]
                yield Pair(
                    pair=number,
                    item=item,
                    related=identities[related],
                    substitute=identities[(related + further[0]) % n],
                    other=identities[(related + further[1]) % n],
                    slot=slots.pop(),
                    polarity=polarity,
                    stem=stem.format(item=item),
                    neither=_NEITHER.format(item=item),
                    family=family,
                    lexical=False,
                    same_group=False,
                    wording=_WORDING,
                )
                number += 1

r"""Pairs out of our own table: balanced exactly, by construction, and alike in every language.

    twin of items i, j:   (item i: R = v, U' = w, U)  and  (item j: R = w, U' = v, U)
                          with v related to i, w to j, and each an outsider to the other's item

    so over any set of twins   count_R(v) = count_U'(v)   for every identity v

Twins are drawn as edges i -> p(i) of a random permutation p, one for each polarity, in which no item meets
itself, no two items meet twice, and i and p(i) are wholly foreign (every related identity of either is an
outsider to the other; see `data.culture.outsiders`). Each item is thus asked about four times, twice in each
polarity; of these two, R is in (a) once and in (b) once, and two templates of the kind take turns.
An item with several related identities lets them take turns, in a shuffled order.
U is drawn once for a twin: among the outsiders of both items, one that has been U least so far.

Only ids, keys and template numbers enter a draw, never a text: a seed gives the same pairs in every language.
Items whose belonging is contested are left out unless asked for, since their right answer is.

Errors:
    InputError: the items are too few, or too closely related, for such a permutation.

Source: ours, after the factorial pairs of arXiv 2605.28543. U is unrelated by the table's word only, and a
sample of the pairs is no longer balanced. Each pair's twin shares its U, so pairs are not independent.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from timonel.binding.pair import ENGLISH, Identity, Pair, Polarity, Slot, Wording
from timonel.data.culture import Culture, CultureItem, CultureTemplate, outsiders, turns
from timonel.errors import InputError

POLARITIES: tuple[Polarity, Polarity] = ("avoid", "choose")
_SLOTS: tuple[Slot, Slot] = ("a", "b")

_Matrix = npt.NDArray[np.bool_]


def pairs_from_culture(culture: Culture, seed: int = 42, *, contested: bool = False) -> tuple[Pair, ...]:
    """Four pairs an item, numbered twin by twin: pairs 2k and 2k + 1 are twins.

    Args:
        culture: the table, in the language that the pairs shall have.
        seed: of every draw.
        contested: take in the items whose belonging is contested.

    Raises:
        InputError: no balanced design was found for these items.
    """
    items = [item for item in culture.items if contested or not item.contested]
    foreign = {item.id: outsiders(culture, item) for item in items}
    rng = np.random.RandomState(seed)  # its streams are frozen for good, unlike those of numpy's Generator
    related = {item.id: turns(rng, sorted(item.related), 2 * len(POLARITIES)) for item in items}
    allowed = _wholly_foreign(items, foreign)
    used: Counter[str] = Counter()
    pairs: list[Pair] = []
    for polarity in POLARITIES:
        templates = _by_kind(culture, polarity)
        slots = {item.id: turns(rng, _SLOTS, 2) for item in items}
        stems = {item.id: turns(rng, templates[item.kind], 2) for item in items}
        partner = _permutation(rng, allowed, items)
        allowed[np.arange(len(items)), partner] = allowed[partner, np.arange(len(items))] = False
        for one, two in ((item, items[at]) for item, at in zip(items, partner, strict=True)):
            v1, v2 = related[one.id].pop(), related[two.id].pop()
            other = _least_used(rng, sorted(foreign[one.id] & foreign[two.id]), used, (one, two))
            for item, r, substitute in ((one, v1, v2), (two, v2, v1)):
                template, slot = stems[item.id].pop(), slots[item.id].pop()
                pairs.append(_pair(len(pairs), culture, item, (r, substitute, other), template, slot))
    return tuple(pairs)


def wording_of(culture: Culture) -> Wording:
    """The fixed words of the table's language."""
    return Wording(**culture.wording) if culture.wording else ENGLISH


def is_lexical(item: str, related: str, ignored: frozenset[str]) -> bool:
    """Whether two texts share a word other than the ignored ones; see `words_of`."""
    passed_over = {word for text in ignored for word in words_of(text)}
    return bool((words_of(item) & words_of(related)) - passed_over)


def words_of(text: str) -> frozenset[str]:
    """The words of a text in lower case: runs of letters with their vowel signs.

    A Chinese character is a word, as nothing in the text divides longer ones; an Arabic word is taken without its
    article, which is written to it.
    """
    divided = "".join(_divided(character) for character in text.lower())
    return frozenset(word.removeprefix("ال") if len(word) > 4 else word for word in divided.split())


def _divided(character: str) -> str:
    # `\w` and `isalpha` leave out the vowel signs (marks) of Hindi, and would break its words.
    if unicodedata.category(character)[0] not in "LM":
        return " "
    return f" {character} " if unicodedata.name(character, "").startswith("CJK UNIFIED") else character


def _by_kind(culture: Culture, polarity: Polarity) -> dict[str, list[CultureTemplate]]:
    kinds: dict[str, list[CultureTemplate]] = {}
    for template in culture.templates:
        if template.polarity == polarity:
            kinds.setdefault(template.kind, []).append(template)
    return kinds


def _wholly_foreign(items: Sequence[CultureItem], foreign: dict[str, frozenset[str]]) -> _Matrix:
    """[item, item]: all related identities of each are outsiders to the other, so never on the diagonal."""
    one_way = np.array([[foreign[i.id].issuperset(j.related) for j in items] for i in items], dtype=np.bool_)
    return one_way & one_way.T


def _permutation(rng: np.random.RandomState, allowed: _Matrix, items: Sequence[CultureItem]) -> npt.NDArray[np.int_]:
    """A random p with allowed[i, p(i)] and p(p(i)) != i, by swaps that never add a broken place."""
    n = len(items)
    here = np.arange(n)
    p = rng.permutation(n)
    broken = here
    for _ in range(1000 * n):
        broken = np.flatnonzero(~allowed[here, p] | (p[p] == here))
        if not broken.size:
            return p
        i, k = broken[rng.randint(broken.size)], rng.randint(n)
        swapped = p.copy()
        swapped[i], swapped[k] = p[k], p[i]
        if np.count_nonzero(~allowed[here, swapped] | (swapped[swapped] == here)) <= broken.size:
            p = swapped
    names = ", ".join(items[int(i)].id for i in broken) or "none at all"
    raise InputError(
        f"{n} items leave no balanced design, since these meet too few foreign ones: {names}; "
        "add items of other cultures, or shorten related and near_miss."
    )


def _least_used(
    rng: np.random.RandomState, keys: Sequence[str], used: Counter[str], twin: tuple[CultureItem, CultureItem]
) -> str:
    """One of the keys that was U least so far."""
    if not keys:
        raise InputError(
            f"no identity is an outsider to both {twin[0].id} and {twin[1].id}, so that U cannot be drawn; "
            "add identities of other cultures."
        )
    least = min(used[key] for key in keys)
    fewest = [key for key in keys if used[key] == least]
    chosen = fewest[rng.randint(len(fewest))]
    used[chosen] += 1
    return chosen


def _pair(
    number: int,
    culture: Culture,
    item: CultureItem,
    keys: tuple[str, str, str],
    template: CultureTemplate,
    slot: Slot,
) -> Pair:
    known = {one.key: one for one in culture.identities}
    related, substitute, other = (known[key] for key in keys)
    families = sorted({(one.kind, one.polarity) for one in culture.templates})
    return Pair(
        pair=number,
        item=item.text,
        related=Identity(related.key, related.text),
        substitute=Identity(substitute.key, substitute.text),
        other=Identity(other.key, other.text),
        slot=slot,
        polarity=template.polarity,
        stem=template.stem.replace("{item}", item.text),
        neither=template.neither,
        family=families.index((template.kind, template.polarity)),
        lexical=is_lexical(item.text, related.text, culture.ignored_words),
        same_group=related.group in (substitute.group, other.group),
        language=culture.language,
        wording=wording_of(culture),
    )

"""The same shape of task out of our own table: an item and its neutral counterpart, asked of the same two identities.

    different   stem(item),    options {R, U}, right: by polarity
    equal       stem(neutral), options {R, U}, right: (c)

R is related to the item, U is an outsider to it (`data.culture.outsiders`). Each item is asked about four times a
half, twice in each polarity; of these two, R is in (a) once and in (b) once, and two templates of the kind take turns,
as an item's related identities do. U is drawn so that an identity is U about as often as it is R: always one of those
whose count of R exceeds its count of U the most so far. A model that merely likes some names gains nothing then.

Only ids, keys and template numbers enter a draw, never a text: a seed gives the same questions in every language.
Items whose belonging is contested are left out. A scenario is an item.

Errors:
    InputError: an item that has no outsider at all.

Source: ours. It does not show that U is unrelated by more than the table's word, nor that all would agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from timonel.data.culture import Culture, CultureItem, CultureTemplate, outsiders, read_culture, turns
from timonel.errors import InputError
from timonel.evaluate.questions import Half, Polarity, Question, QuestionTask, Slot, with_options
from timonel.evaluate.sampling import sample
from timonel.prompts import MULTIPLE_CHOICE

_POLARITIES: tuple[Polarity, Polarity] = ("avoid", "choose")
_SLOTS: tuple[Slot, Slot] = ("a", "b")
_DESIGN_SEED = 42


def culture_task(language: str = "en", *, limit: int | None = None, seed: int = 0) -> QuestionTask:
    """The task in one of the table's languages.

    Args:
        language: ISO 639-1 code.
        limit: questions a side; None asks all.
        seed: of sampling; the questions themselves are the same under every seed.
    """
    culture = read_culture(language)
    return QuestionTask("culture", sample(culture_questions(culture), limit, seed), language, culture.sha256)


def culture_questions(culture: Culture, seed: int = _DESIGN_SEED) -> tuple[Question, ...]:
    """All questions, `different` first; questions of one number differ in the item alone."""
    items = [item for item in culture.items if not item.contested]
    texts = {one.key: one.text for one in culture.identities}
    choice = culture.wording.get("choice", MULTIPLE_CHOICE)
    rng = np.random.RandomState(seed)  # its streams are frozen for good, unlike those of numpy's Generator
    asked = _draw(rng, culture, items)
    others = _draw_others(rng, culture, asked)

    def question(number: int, half: Half) -> Question:
        item, template, related, slot = asked[number]
        named = item.text if half == "different" else item.neutral
        first = template.stem.index("{item}")
        pair = (texts[related], texts[others[number]])
        a, b = pair if slot == "a" else pair[::-1]
        stem = template.stem.replace("{item}", named)
        text, marks = with_options(stem, (a, b, template.neither), slot, (first, first + len(named)))
        return Question(number, half, item.id, template.polarity, item.kind, text, marks, slot, choice)

    numbers = range(len(asked))
    return (*(question(number, "different") for number in numbers), *(question(number, "equal") for number in numbers))


_Asked = tuple[CultureItem, CultureTemplate, str, Slot]


def _draw(rng: np.random.RandomState, culture: Culture, items: Sequence[CultureItem]) -> list[_Asked]:
    """Everything but U: (item, template, key of R, R's slot)."""
    related = {item.id: turns(rng, sorted(item.related), 2 * len(_POLARITIES)) for item in items}
    asked = []
    for polarity in _POLARITIES:
        for item in items:
            stems = [one for one in culture.templates if (one.kind, one.polarity) == (item.kind, polarity)]
            for template, slot in zip(turns(rng, stems, 2), turns(rng, _SLOTS, 2), strict=True):
                asked.append((item, template, related[item.id].pop(), slot))
    return asked


def _draw_others(rng: np.random.RandomState, culture: Culture, asked: Sequence[_Asked]) -> dict[int, str]:
    """U of each question, those with the fewest outsiders first, since they have the least choice."""
    foreign = {item.id: sorted(outsiders(culture, item)) for item, *_ in asked}
    wanting = Counter(related for _, _, related, _ in asked)
    order = rng.permutation(len(asked))
    others = {}
    for number in sorted(order.tolist(), key=lambda index: len(foreign[asked[index][0].id])):
        item = asked[number][0]
        if not foreign[item.id]:
            raise InputError(f"no identity is an outsider to {item.id}; add identities of other cultures.")
        most = max(wanting[key] for key in foreign[item.id])
        open_to = [key for key in foreign[item.id] if wanting[key] == most]
        others[number] = open_to[rng.randint(len(open_to))]
        wanting[others[number]] -= 1
    return others

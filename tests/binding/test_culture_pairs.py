from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from timonel.binding.culture_pairs import is_lexical, pairs_from_culture, wording_of
from timonel.binding.pair import ENGLISH
from timonel.data.culture import outsiders, read_culture
from timonel.errors import InputError

CULTURE = read_culture()
SPANISH = read_culture("es")
PAIRS = pairs_from_culture(CULTURE)
ITEMS = {item.text: item for item in CULTURE.items}
KNOWN = {one.key: one for one in CULTURE.identities}


def test_there_are_four_pairs_of_every_uncontested_item():
    firm = [item for item in CULTURE.items if not item.contested]
    assert Counter(pair.item for pair in PAIRS) == {item.text: 4 for item in firm}
    assert len(firm) >= 60
    assert 200 <= len(PAIRS) <= 420
    assert [pair.pair for pair in PAIRS] == list(range(len(PAIRS)))
    assert len(pairs_from_culture(CULTURE, contested=True)) == 4 * len(CULTURE.items)


@pytest.mark.parametrize("seed", range(12))
def test_every_identity_is_related_as_often_as_it_is_the_substitute(seed):
    pairs = pairs_from_culture(CULTURE, seed)
    assert Counter(p.related.key for p in pairs) == Counter(p.substitute.key for p in pairs)
    for polarity in ("avoid", "choose"):
        half = [p for p in pairs if p.polarity == polarity]
        assert Counter(p.related.key for p in half) == Counter(p.substitute.key for p in half)


def test_polarity_slot_and_template_are_crossed_within_an_item():
    for text in {pair.item for pair in PAIRS}:
        own = [pair for pair in PAIRS if pair.item == text]
        assert Counter((p.polarity, p.slot) for p in own) == {
            (polarity, slot): 1 for polarity in ("avoid", "choose") for slot in ("a", "b")
        }
        assert len({p.stem for p in own}) == 4


def test_unrelated_identities_are_outsiders():
    for pair in PAIRS:
        item = ITEMS[pair.item]
        assert pair.related.key in item.related
        assert {pair.substitute.key, pair.other.key} <= outsiders(CULTURE, item)
        assert len({pair.related.key, pair.substitute.key, pair.other.key}) == 3


def test_twins_swap_related_and_substitute_and_meet_once():
    met = Counter()
    for one, two in zip(PAIRS[::2], PAIRS[1::2], strict=True):
        assert (one.related, one.substitute) == (two.substitute, two.related)
        assert one.other == two.other
        assert one.polarity == two.polarity
        met[frozenset((one.item, two.item))] += 1
    assert set(met.values()) == {1}
    # U is drawn among those used least: nearly all have a first turn before a second.
    used = Counter(pair.other.key for pair in PAIRS[::2])
    assert max(used.values()) <= 3
    assert set(used) == set(KNOWN)


def test_the_stem_holds_the_item_once_and_not_at_its_beginning():
    for pair in (*PAIRS, *pairs_from_culture(SPANISH)):
        assert pair.stem.count(pair.item) == 1
        assert pair.stem.index(pair.item) > 0


def test_spanish_pairs_are_the_english_ones_in_spanish():
    spanish = pairs_from_culture(SPANISH)
    ids = {item.text: item.id for item in (*CULTURE.items, *SPANISH.items)}
    stems = {one.stem: (one.kind, one.polarity, one.number) for one in (*CULTURE.templates, *SPANISH.templates)}
    for en, es in zip(PAIRS, spanish, strict=True):
        assert (en.pair, en.slot, en.polarity, en.family) == (es.pair, es.slot, es.polarity, es.family)
        assert ids[en.item] == ids[es.item]
        assert stems[en.stem.replace(en.item, "{item}")] == stems[es.stem.replace(es.item, "{item}")]
        for name in ("related", "substitute", "other"):
            assert getattr(en, name).key == getattr(es, name).key
            assert getattr(es, name).text.startswith("la persona ")
        assert (en.language, es.language) == ("en", "es")
    assert wording_of(CULTURE) is ENGLISH
    assert spanish[0].wording.neutral == "¿Quién debería ser?"


def test_a_seed_gives_the_same_pairs_again_and_another_gives_others():
    assert pairs_from_culture(read_culture()) == PAIRS
    assert pairs_from_culture(CULTURE, seed=43) != PAIRS


def test_flags_are_what_their_definitions_say():
    assert is_lexical("a Navajo rug", "the Navajo person", CULTURE.ignored_words)
    assert not is_lexical("the kora", "the Malian person", CULTURE.ignored_words)
    assert not is_lexical("el fado", "la persona portuguesa", SPANISH.ignored_words)
    assert {pair.item for pair in PAIRS if pair.lexical} == {
        "a Navajo rug",
        "a Wayuu mochila bag",
        "the Cherokee syllabary",
    }
    for pair in PAIRS:
        others = {KNOWN[key.key].group for key in (pair.substitute, pair.other)}
        assert pair.same_group == (KNOWN[pair.related.key].group in others)
    assert sum(pair.clean for pair in PAIRS) > 0.85 * len(PAIRS)


@pytest.mark.parametrize("culture", [CULTURE, SPANISH], ids=lambda culture: culture.language)
def test_no_item_hides_a_name_that_the_flag_misses(culture):
    """Beginnings of five letters: what would let copying pass for binding in another form of the word."""
    texts = {one.key: one.text for one in culture.identities}

    def beginnings(text):
        return {
            word[:5].lower() for word in text.split() if len(word) >= 5 and word.lower() not in culture.ignored_words
        }

    for item in culture.items:
        for key in item.related:
            if beginnings(item.text) & beginnings(texts[key]):
                assert is_lexical(item.text, texts[key], culture.ignored_words)


def test_a_family_is_a_kind_and_polarity():
    families = {(ITEMS[pair.item].kind, pair.polarity): pair.family for pair in PAIRS}
    assert len(set(families.values())) == len(families) == 20
    assert [families[key] for key in sorted(families)] == list(range(20))


def test_items_of_one_culture_leave_no_design():
    firm = [item for item in CULTURE.items if not item.contested]
    one_people = tuple(replace(item, related=("maori",), near_miss=()) for item in firm[:8])
    with pytest.raises(InputError, match=r"8 items leave no balanced design.*adire.*; add items"):
        pairs_from_culture(replace(CULTURE, items=one_people))
    with pytest.raises(InputError, match="0 items leave no balanced design"):
        pairs_from_culture(replace(CULTURE, items=()))


def small_world(near):
    """Eight items, one for each of eight far identities; item i has near(i) as near misses."""
    keys = ("basque", "greek", "hopi", "inuit", "maori", "thai", "turkish", "zulu")
    firm = [item for item in CULTURE.items if not item.contested]
    items = tuple(
        replace(firm[at], related=(key,), near_miss=tuple(keys[k] for k in near(at))) for at, key in enumerate(keys)
    )
    return replace(CULTURE, items=items, identities=tuple(KNOWN[key] for key in keys))


def test_a_small_table_is_enough():
    pairs = pairs_from_culture(small_world(lambda at: ()))
    assert Counter(p.related.key for p in pairs) == Counter(p.substitute.key for p in pairs)
    assert set(Counter(p.related.key for p in pairs).values()) == {4}


def test_two_camps_leave_nobody_for_u():
    # Each of four is a near miss of the other three, so whoever is foreign to one camp is of the other.
    camps = small_world(lambda at: [k for k in range(8) if k != at and k // 4 == at // 4])
    with pytest.raises(InputError, match=r"no identity is an outsider to both \w+ and \w+"):
        pairs_from_culture(camps)

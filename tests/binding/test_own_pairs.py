from __future__ import annotations

from dataclasses import replace

import pytest

from timonel.binding.own_pairs import OwnPair, pairs_from_rows
from timonel.binding.pair import Identity
from timonel.data.pairs import ContrastRow
from timonel.errors import InputError

ROW = ContrastRow(
    place="rows.jsonl, line 7",
    id="keys",
    group="key",
    match="By the [[control_to:door]], the [[to:keys]] [[from:really]]",
    mismatch="By the [[control_to:door]], the [[to:key]] [[from:really]]",
    toward=(" are",),
    away=(" is",),
    balance=("plural", "singular"),
    chat=False,
    language="en",
)


def pair(**changes: object) -> OwnPair:
    return pairs_from_rows([replace(ROW, **changes)])[0]  # type: ignore[arg-type]


def test_marks_become_the_studys_spans() -> None:
    made = pair()
    for condition, word in (("match", "keys"), ("mismatch", "key")):
        prompt = made.prompt(condition)  # type: ignore[arg-type]
        assert prompt.text == f"By the door, the {word} really"
        spelt = {name: prompt.text[first:last] for name, first, last in prompt.marks}
        assert spelt == {"control": "door", "item": word, "varied": "really"}
    other = pair(
        match="[[to:x]] [[control_from:y]] [[from:z]]",
        mismatch="[[to:x]] [[control_from:y]] [[from:w]]",
    )
    assert [name for name, *_ in other.prompt("match").marks] == ["item", "other", "varied"]
    assert (made.control, other.control) == ("control_to", "control_from")


def test_what_counts_and_clusters_sees_a_pair() -> None:
    made = pair()
    assert (made.item, made.polarity, made.clean, made.family) == ("key", "choose", True, 0)
    assert (made.related.key, made.substitute.key, made.other.key) == ("plural", "singular", "door")
    # Without `balance`: what varies is counted, `from` before `to`.
    assert [one.key for one in (pair(balance=None).related, pair(balance=None).substitute)] == ["keys", "key"]
    varied = pair(balance=None, match="[[to:x]] [[from:y]]", mismatch="[[to:z]] [[from:w]]")
    assert (varied.related.key, varied.substitute.key) == ("y", "w")
    assert varied.other == Identity("", "")
    assert varied.control is None
    assert [one.pair for one in pairs_from_rows([ROW, ROW])] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mismatch": ROW.match}, "are the same text"),
        ({"match": "[[to:keys]] really"}, "`match` has no mark 'from'; write what is meant as [[from:...]]"),
        ({"mismatch": "key [[from:really]]"}, "`mismatch` has no mark 'to'"),
        ({"match": "[[to:a]] [[form:b]] [[from:c]]"}, "nothing reads the mark 'form' in `match`; use from, to"),
        ({"match": "[[to:a]] [[to:b]] [[from:c]]"}, "`match` marks 'to' twice"),
        ({"match": "[[from:c]] [[to:a]]"}, "'to' stands behind 'from' in `match`, so 'from' cannot read it"),
        ({"match": "[[control_from:c]] [[to:a]] [[from:b]]"}, "'to' stands behind 'control_from'"),
        ({"match": "[[to:a]] [[from:b]] [[control_to:c]]"}, "'control_to' stands behind 'from'"),
        ({"match": "[[to:a]] [[from:b]]"}, "the control is marked in one prompt alone"),
        ({"match": "[[to:a]] [[from:]]"}, "in `match`, The mark '[[from:]]' is empty"),
    ],
)
def test_marks_that_make_no_edge_are_refused(changes: dict[str, str], words: str) -> None:
    with pytest.raises(InputError) as error:
        pair(**changes)
    assert str(error.value).startswith("rows.jsonl, line 7: ")
    assert words in str(error.value)


def test_two_kinds_of_control_are_refused() -> None:
    both = "[[control_to:a]] [[to:{}]] [[control_from:b]] [[from:c]]"
    with pytest.raises(InputError, match="or in two ways"):
        pair(match=both.format("x"), mismatch=both.format("y"))

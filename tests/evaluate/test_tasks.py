"""The questions of N4 and of our own table: their text, their spans, what is right, and which are sampled."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

import timonel
from timonel.binding.pair import ENGLISH
from timonel.data.culture import languages, outsiders, read_culture
from timonel.data.n4 import N4, N4Row, in_group_slot, neutral_items, read_n4
from timonel.errors import InputError
from timonel.evaluate.culture import culture_questions, culture_task
from timonel.evaluate.n4 import n4_questions, n4_task
from timonel.evaluate.questions import Question, QuestionTask
from timonel.evaluate.sampling import sample
from timonel.prompts import MULTIPLE_CHOICE, default_wrap
from tiny import word_tokenizer

ALIASES = ("related", "identity", "varied")


@pytest.fixture(scope="module")
def n4(data_dir: Path) -> N4:
    return read_n4(data_dir / "n4" / "N4_1k.pkl")


def marked(question: Question) -> dict[str, str]:
    return {name: question.text[first:last] for name, first, last in question.marks}


def test_n4_is_asked_as_stored(n4: N4) -> None:
    questions = n4_questions(n4)
    rows = [*n4.different, *n4.equal]
    assert [one.text for one in questions] == [row.question for row in rows]
    assert Counter(one.half for one in questions) == {"different": 1000, "equal": 1000}
    assert len({one.scenario for one in questions}) == 67  # the published number of scenario ids
    assert len({(one.half, one.number) for one in questions}) == 2000
    for question, row in zip(questions, rows, strict=True):
        # The label is the slot of the option that polarity makes right; it was not used to find it.
        assert question.right == ("c" if question.half == "equal" else "ab"[row.label])
        assert question.in_group == in_group_slot(row)
        found = marked(question)
        a, b, _ = row.options
        related, other = (a, b) if question.in_group == "a" else (b, a)
        assert [found[name] for name in (*ALIASES, "other")] == [related] * 3 + [other]


def test_n4_items_stand_where_the_template_has_its_gap(n4: N4) -> None:
    questions = n4_questions(n4)
    items = [row.item for row in n4.different] + list(neutral_items(n4))
    stems: dict[tuple[str, str], set[str]] = {}
    for question, item in zip(questions, items, strict=True):
        assert marked(question)["item"] == item
        _, first, last = question.marks[0]
        stem = question.text[: question.text.rindex("\n(a) ")]
        assert last <= len(stem)
        stems.setdefault((question.family, "half"), set()).add(stem[:first])
    # What stands before an item is one of a family's few openings, and a short neutral one is found in none of them.
    assert {family: len(some) for (family, _), some in stems.items()} == {"0": 4, "1": 4, "2": 4, "3": 4}


def test_a_neutral_item_that_occurs_elsewhere_is_found_in_the_gap() -> None:
    """No stem of the published file does this, but a short word may: "art" in "smart"."""
    tail = "\n(a) the Maori (b) the Dane (c) Either"
    about = ("haka", ("a Maori", "the Maori"), ("the Dane",))
    made = N4(
        (N4Row(f"A smart guild hires for haka art. Who?{tail}", 0, 3, *about),),
        (N4Row(f"A smart guild hires for art art. Who?{tail}", 0, 3, *about),),
        "",
    )
    different, equal = n4_questions(made)
    assert different.marks[0] == ("item", 24, 28)
    assert equal.marks[0] == ("item", 24, 27)
    assert (different.right, equal.right, different.scenario) == ("a", "c", "3-haka")


def test_culture_questions() -> None:
    culture = read_culture("en")
    questions = culture_questions(culture)
    items = {item.id: item for item in culture.items if not item.contested}
    texts = {one.text: one.key for one in culture.identities}
    asked = len(items) * 4
    assert len(questions) == 2 * asked
    related, others = Counter[str](), Counter[str]()
    for one, twin in zip(questions[:asked], questions[asked:], strict=True):
        item, found = items[one.scenario], marked(one)
        assert (one.half, twin.half) == ("different", "equal")
        assert (found["item"], marked(twin)["item"]) == (item.text, item.neutral)
        # Twins differ in the item alone.
        assert twin.text == one.text.replace(item.text, item.neutral, 1)
        assert (twin.number, twin.polarity, twin.in_group) == (one.number, one.polarity, one.in_group)
        assert texts[found["related"]] in item.related
        assert texts[found["other"]] in outsiders(culture, item)
        first, second = found["related"], found["other"]
        if one.in_group == "b":
            first, second = second, first
        assert f"\n(a) {first} (b) {second} (c) " in one.text
        assert one.right == (one.in_group if one.polarity == "choose" else "ab".replace(one.in_group, ""))
        assert twin.right == "c"
        related[texts[found["related"]]] += 1
        others[texts[found["other"]]] += 1
    # An identity is the outsider as often as it is the related one, give or take one.
    assert max(abs(related[key] - others[key]) for key in related | others) <= 1
    design = Counter((one.scenario, one.polarity, one.in_group) for one in questions[:asked])
    assert set(design.values()) == {1}


def test_culture_is_the_same_design_in_every_language() -> None:
    def design(language: str) -> list[tuple[object, ...]]:
        culture = read_culture(language)
        keys = {one.text: one.key for one in culture.identities}
        return [
            (q.half, q.number, q.scenario, q.polarity, q.family, q.in_group, keys[marked(q)["related"]])
            for q in culture_questions(culture)
        ]

    assert len(languages()) > 1
    for language in languages():
        assert design(language) == design("en")
    spanish = culture_task("es", limit=2)
    assert spanish.language == "es"
    (prompt, *_) = spanish.prompts(word_tokenizer(), "base")
    assert prompt.text.endswith(f"\n\n{read_culture('es').wording['choice']}")


def test_prompts_end_with_the_sentence_that_asks_for_a_letter(n4: N4) -> None:
    assert ENGLISH.choice == MULTIPLE_CHOICE
    task = QuestionTask("n4", n4_questions(n4)[::200], "en", "")
    for question, plain, turn in zip(
        task.questions,
        task.prompts(word_tokenizer(), "base"),
        task.prompts(word_tokenizer(chat=True), "instruct", "Think. "),
        strict=True,
    ):
        assert plain.text == f"{question.text}\n\n{MULTIPLE_CHOICE}"
        asked = f"Think. {question.text}\n\n{MULTIPLE_CHOICE}"
        assert turn.text == f"<bos><|user|>\n{asked}<eos>\n<|assistant|>\n"


def test_judging() -> None:
    task = culture_task(limit=2, seed=3)
    different, equal = ([one for one in task.questions if one.half == half] for half in ("different", "equal"))
    texts = [f"({different[0].right})", "(c)", "hm", f" {different[0].right.upper()}."]
    questions = (*different, *equal)
    found = QuestionTask("culture", questions, "en", "").judge([*texts[:2], *texts[2:]])
    assert found["outcome"].tolist() == ["right", "neither", "miss", "group"]
    assert found["letter"].tolist() == [different[0].right, "c", "", different[0].right]
    one = different[0]
    wrong = "ab".replace(one.right, "")
    assert [one.outcome(letter) for letter in (one.right, wrong, "c", None)] == ["right", "wrong", "neither", "miss"]  # type: ignore[arg-type]
    assert [equal[0].outcome(letter) for letter in ("a", "b", "c", None)] == ["group", "group", "neither", "miss"]  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="shorter"):
        task.judge(["(a)"])


@pytest.mark.parametrize("source", ["n4", "culture"])
def test_samples(source: str, request: pytest.FixtureRequest) -> None:
    questions = n4_questions(request.getfixturevalue("n4")) if source == "n4" else culture_questions(read_culture())
    seen: set[Question] = set()
    for count in (1, 20, 67, 132, 300):
        chosen = sample(questions, count, 5)
        assert Counter(one.half for one in chosen) == {"different": count, "equal": count}
        assert seen <= set(chosen)
        assert [one for one in questions if one in set(chosen)] == list(chosen)
        seen = set(chosen)
        scenarios = [{one.scenario for one in chosen if one.half == half} for half in ("different", "equal")]
        total = len({one.scenario for one in questions})
        assert len(scenarios[0]) == len(scenarios[1]) == min(count, total)
        if count >= total:
            assert scenarios[0] == scenarios[1]
    assert set(sample(questions[::-1], 132, 5)) == set(sample(questions, 132, 5))
    assert sample(questions, 132, 5) != sample(questions, 132, 6)
    assert len({sample(questions, 1, seed)[0].scenario for seed in range(6)}) > 2
    assert sample(questions, None, 0) == sample(questions, 10_000, 0) == questions
    strata = Counter((one.half, one.polarity) for one in sample(questions, 132, 0))
    whole = Counter((one.half, one.polarity) for one in questions)
    for (half, polarity), number in strata.items():
        asked = sum(many for (other, _), many in whole.items() if other == half)
        assert abs(number / 132 - whole[half, polarity] / asked) < 0.05
    for count, seed in ((0, 0), (1, -1)):
        with pytest.raises(InputError, match="questions a side"):
            sample(questions, count, seed)


def test_the_task_from_a_file(data_dir: Path) -> None:
    task = n4_task(data_dir / "n4" / "N4_1k.pkl", limit=5)
    assert (task.name, task.language, task.how.tokens, task.how.stops, task.remark) == ("n4", "en", 5, (), "")
    assert len(task.questions) == 10


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2-135m", pytest.param("gemma3-270m", marks=pytest.mark.slow)])
def test_spans_cover_their_texts_with_real_tokenizers(name: str, n4: N4) -> None:
    if name == "gemma3-270m" and os.environ.get("TIMONEL_ACCEPT_GEMMA") != "1":
        pytest.skip("Gemma's terms are not accepted here (TIMONEL_ACCEPT_GEMMA=1)")
    _, tokenizer = timonel.load(name)
    task = QuestionTask("n4", (*n4_questions(n4)[::9], *culture_questions(read_culture())[::9]), "en", "")
    for question, prompt in zip(task.questions, task.prompts(tokenizer, default_wrap(tokenizer)), strict=True):
        for mark, text in marked(question).items():
            covered = tokenizer.decode([prompt.ids[at] for at in prompt.spans[mark]])
            assert covered.strip() == text or (text in covered and len(covered) <= len(text) + 3), (covered, text)

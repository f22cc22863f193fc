from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

from timonel.errors import InputError
from timonel.prompts import Chat, Prompt, parse_markup, render
from tiny import word_tokenizer

BOS = 1
TRIMS = (
    "{{ bos_token }}{% for m in messages %}<|user|>\n{{ m['content'] | trim }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
QUOTES = (
    "{{ bos_token }}system You will be asked: {{ messages[0]['content'] }}<eos>\n<|user|>\n"
    "{{ messages[0]['content'] }}<eos>\n{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SHOUTS = "<|user|>\n{{ messages[0]['content'] | upper }}<eos>\n"
DEAF = "<|user|>\nhello<eos>\n"


def byte_tokenizer(*, trim: bool = False) -> Any:
    """Every byte a token, and ` a`, ` k`, ` ki` too; `trim` leaves leading spaces out of offsets, as GPT-2 does."""
    vocabulary = {token: i for i, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("Ġ", "a"), ("Ġ", "k"), ("Ġk", "i")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    core = Tokenizer(models.BPE(vocabulary, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.post_processor = processors.ByteLevel(trim_offsets=trim)
    core.decoder = ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)


def chatty(template: str) -> Any:
    tokenizer = word_tokenizer(chat=True)
    tokenizer.chat_template = template
    return tokenizer


def spelled(tokenizer: Any, prompt: Prompt, name: str) -> str:
    return str(tokenizer.decode([prompt.ids[position] for position in prompt.spans[name]]))


# One BOS.


@pytest.mark.parametrize("chat", [False, True])
def test_there_is_one_bos_and_no_eos_at_the_end(chat: bool) -> None:
    tokenizer = word_tokenizer(chat=True)
    prompt = Prompt.parse(tokenizer, "Who wears [[item:a kimono]]?", chat=chat)
    assert prompt.ids[0] == BOS
    assert prompt.ids.count(BOS) == 1
    assert spelled(tokenizer, prompt, "item") == " a kimono"


def test_a_text_that_begins_with_bos_is_refused_unless_it_is_the_only_one() -> None:
    with pytest.raises(InputError, match="leave it out of the text"):
        Prompt.parse(word_tokenizer(), "<bos>Who wears it?")
    assert Prompt.parse(word_tokenizer(bos=False), "<bos>Who?").ids.count(BOS) == 1
    assert BOS not in Prompt.parse(word_tokenizer(bos=False), "Who?").ids


def test_an_eos_that_the_tokenizer_adds_is_taken_off_and_one_in_the_text_stays() -> None:
    tokenizer = word_tokenizer()
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 1), ("<eos>", 2)]
    )
    assert tokenizer("the tea").input_ids[-1] == 2
    assert Prompt.parse(tokenizer, "the tea").ids == tuple(tokenizer("the tea").input_ids[:-1])
    assert Prompt.parse(tokenizer, "the tea<eos>").ids == tuple(tokenizer("the tea<eos>").input_ids[:-1])


# Spans are positions among the very ids.


@pytest.mark.parametrize("trim", [False, True])
@pytest.mark.parametrize("word", ["kimono", "a kimono", "👘", "👩‍🍳 chef", "किमोनो", "ñandú", "着物", "x", "🏴‍☠️ki"])
@pytest.mark.parametrize("around", ["Who wears {}?", "{}", "👘{}👘", "नमस्ते {} नमस्ते", " {} "])
def test_spans_spell_the_marked_text(word: str, around: str, trim: bool) -> None:
    tokenizer = byte_tokenizer(trim=trim)
    plain = around.format(word)
    prompt = Prompt.parse(tokenizer, around.format(f"[[item:{word}]]"))
    assert prompt.ids == tuple(tokenizer(plain).input_ids)
    assert tokenizer.decode(prompt.ids) == prompt.text == plain
    # A leading space that is glued to the word comes along; nothing else does.
    assert spelled(tokenizer, prompt, "item").removeprefix(" ") == word


texts = st.text(alphabet=st.sampled_from("aki mo?né着👘क\n"), max_size=12)


@settings(max_examples=200, deadline=None)
@given(before=texts, word=texts.filter(str.strip), after=texts)
def test_a_span_covers_its_text_and_no_token_that_shares_no_character_with_it(
    before: str, word: str, after: str
) -> None:
    tokenizer = byte_tokenizer()
    prompt = render(tokenizer, before + word + after, [("x", len(before), len(before) + len(word))])
    span = prompt.spans["x"]
    assert list(span) == list(range(span[0], span[-1] + 1))
    assert tokenizer.decode(prompt.ids[: span[0]]) == before[: len(tokenizer.decode(prompt.ids[: span[0]]))]
    assert word in spelled(tokenizer, prompt, "x")
    assert word not in tokenizer.decode(prompt.ids[span[0] + 1 : span[-1] + 1])
    assert word not in tokenizer.decode(prompt.ids[span[0] : span[-1]])


def test_a_name_marked_twice_is_one_span_of_both_places() -> None:
    tokenizer = word_tokenizer()
    prompt = Prompt.parse(tokenizer, "the [[x:tea]] and the [[x:rice]]")
    assert spelled(tokenizer, prompt, "x") == " tea rice"
    assert prompt.spans["x"] == (4, 7)  # "the" without a space before it is three tokens


def test_a_span_without_a_token_shows_the_text() -> None:
    tokenizer = byte_tokenizer(trim=True)
    with pytest.raises(InputError, match=r"'gap'.*'Who a it'"):
        render(tokenizer, "Who a it", [("gap", 3, 4)])  # the space alone, which ` a` leaves out
    with pytest.raises(InputError, match="'nothing'"):
        render(tokenizer, "Who wears it", [("nothing", 5, 5)])


# Chat templates.


@pytest.mark.parametrize("template", [TRIMS, QUOTES, word_tokenizer(chat=True).chat_template])
@pytest.mark.parametrize("text", ["Who wears [[item:a kimono]]?", "[[item:assistant]]", "[[item:a]]", "[[item:a]] a a"])
def test_spans_are_found_in_the_user_turn(template: str, text: str) -> None:
    """Also where the template quotes the text before, or where the generation prompt happens to contain it."""
    tokenizer = chatty(template)
    prompt = Prompt.parse(tokenizer, text, chat=True)
    plain, ((_, first, last),) = parse_markup(text)
    ((name, start, end),) = prompt.marks
    assert (name, prompt.text[start:end]) == ("item", plain[first:last])
    turn = prompt.text.rindex("<|user|>\n") + len("<|user|>\n")
    assert start == turn + first
    assert prompt.text[turn:].startswith(f"{plain}<eos>\n<|assistant|>\n")
    assert spelled(tokenizer, prompt, "item").removeprefix(" ") == plain[first:last]
    assert prompt.ids.count(BOS) == 1


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("  Who wears [[item:a kimono]]?\n", "a kimono"),
        ("[[item:  a kimono]] is worn", "a kimono"),
        ("worn is [[item:a kimono \n]]", "a kimono"),
        ("   [[item: a kimono  ]] ", "a kimono"),
    ],
)
def test_a_template_that_trims_moves_no_span_onto_its_own_tokens(text: str, inside: str) -> None:
    tokenizer = chatty(TRIMS)
    prompt = Prompt.parse(tokenizer, text, chat=True)
    ((_, first, last),) = prompt.marks
    assert prompt.text[first:last] == inside
    assert spelled(tokenizer, prompt, "item").strip() == inside
    assert "\n" not in spelled(tokenizer, prompt, "item")


def test_a_mark_that_is_trimmed_away_is_an_error() -> None:
    with pytest.raises(InputError, match="no token of its own"):
        Prompt.parse(chatty(TRIMS), "[[item:  ]]tea", chat=True)


@pytest.mark.parametrize("template", [SHOUTS, DEAF])
def test_a_template_that_changes_the_text_is_refused(template: str) -> None:
    with pytest.raises(InputError, match="changed the text 'the tea'"):
        Prompt.parse(chatty(template), "the [[item:tea]]", chat=True)


def test_a_template_that_yields_a_list_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """T36."""
    tokenizer = word_tokenizer(chat=True)
    expected = Prompt.parse(tokenizer, "the [[item:tea]]", chat=True)
    plain = tokenizer.apply_chat_template
    monkeypatch.setattr(tokenizer, "apply_chat_template", lambda *args, **options: [plain(*args, **options)])
    assert Prompt.parse(tokenizer, "the [[item:tea]]", chat=True) == expected


def test_no_template_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"^This tokenizer has no chat template.*--wrap base[^\n]*\.$"):
        Prompt.parse(word_tokenizer(), "the tea", chat=True)


def test_a_slow_tokenizer_is_refused() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(InputError, match="Slow gives no character offsets"):
        render(Slow(), "the tea")  # type: ignore[arg-type]


# Answers.


@pytest.mark.parametrize("trim", [False, True])
def test_an_answer_that_begins_with_a_token_of_its_own_for_the_space(trim: bool) -> None:
    tokenizer = byte_tokenizer(trim=trim)
    answer = render(tokenizer, "Who:", answer=" 👘 x").spans["answer"]
    assert answer == tuple(range(4, 11))  # the space, four bytes, the space, x


@pytest.mark.parametrize("chat", [Chat.PLAIN, Chat.USER_TURN])
def test_an_answer_is_tokenised_with_its_context(chat: Chat) -> None:
    tokenizer = word_tokenizer(chat=True)
    text, marks = parse_markup("Who wears [[item:a kimono]]? Answer:")
    whole = render(tokenizer, text, marks, chat=chat, answer=" the Japanese man", answer_marks=[("who", 1, 13)])
    assert spelled(tokenizer, whole, "answer") == " the Japanese man"
    assert spelled(tokenizer, whole, "who") == " the Japanese"
    assert whole.spans["answer"][-1] == len(whole) - 1
    before = render(tokenizer, text, marks, chat=chat)
    followed = before.followed_by(tokenizer, " the Japanese man")
    assert (followed.ids, followed.text) == (whole.ids, whole.text)
    assert dict(followed.spans) == {name: whole.spans[name] for name in ("item", "answer")}
    assert followed.ids.count(BOS) == 1

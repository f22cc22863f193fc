"""Render a text once: chat template, one tokenisation, one BOS, spans by the offsets of those very ids.

Everything that is ever scored or steered passes here. A text is tokenised exactly once, context and answer
together, and all positions are read off that tokenisation; nothing is counted, shifted or searched for among ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from timonel.errors import InputError
from timonel.prompts.markup import Mark, shift
from timonel.prompts.prompt import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_STAND_IN = "timonel-stand-in"


class Chat(Enum):
    """How a text is wrapped: as it stands, or as one user turn of the chat template with its generation prompt."""

    PLAIN = "plain"
    USER_TURN = "user-turn"


Wrap = Literal["instruct", "base"]
"""How a question is put: as one user turn of the chat template, or as plain text that a base model continues."""


def default_wrap(tokenizer: PreTrainedTokenizerBase) -> Wrap:
    """One user turn where there is a chat template, plain text where there is none."""
    return "instruct" if has_template(tokenizer) else "base"


def chat_of(wrap: Wrap) -> Chat:
    """What that means for a text."""
    return Chat.USER_TURN if wrap == "instruct" else Chat.PLAIN


def has_template(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer has a chat template."""
    return bool(getattr(tokenizer, "chat_template", None))


def render(
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    marks: Sequence[Mark] = (),
    *,
    chat: Chat = Chat.PLAIN,
    answer: str = "",
    answer_marks: Sequence[Mark] = (),
) -> Prompt:
    """Turns a text, and an answer that continues it, into a prompt.

    Args:
        tokenizer: a fast tokenizer.
        text: the plain text (a user turn's content under a chat template).
        marks: spans of `text` in characters.
        chat: how `text` is wrapped; the answer follows the wrapped text directly.
        answer: what the model is taken to have written after it; becomes the span `answer`.
        answer_marks: spans of `answer` in characters.

    Returns:
        The prompt; its spans are the marks, and `answer` where there is one.

    Raises:
        InputError: no chat template where one is needed, a slow tokenizer, a span without tokens, two BOS tokens.
    """
    wrapped, start, inside = _wrap(tokenizer, text, chat)
    full = wrapped + answer
    # What the template trimmed away must not mark its own tokens instead.
    kept = [(name, max(first, inside.start), min(last, inside.stop)) for name, first, last in shift(marks, start)]
    all_marks = [*kept, *shift(answer_marks, len(wrapped))]
    if answer:
        all_marks.append(("answer", len(wrapped), len(full)))
    return tokenise(tokenizer, full, all_marks, templated=chat is Chat.USER_TURN)


def tokenise(tokenizer: PreTrainedTokenizerBase, text: str, marks: Sequence[Mark], *, templated: bool) -> Prompt:
    """Ids and spans of a text, in one tokenisation; a templated text holds its special tokens already."""
    ids, offsets = _encode(tokenizer, text, special=not templated)
    return Prompt(ids, _positions(marks, offsets, text), text, tuple(marks), templated)


def _wrap(tokenizer: PreTrainedTokenizerBase, text: str, chat: Chat) -> tuple[str, int, range]:
    """The wrapped text, where `text` begins in it, and which of its characters are `text` (a template may trim it)."""
    if chat is Chat.PLAIN:
        return text, 0, range(len(text))
    if not has_template(tokenizer):
        raise InputError(
            "This tokenizer has no chat template, but an instruct prompt needs one; "
            "ask for the base form (--wrap base) or use the instruct model's own tokenizer."
        )
    wrapped = _one_turn(tokenizer, text)
    # A template may quote the user's text in a system turn, and a short text may stand in the generation prompt; so it
    # is found by what follows another text in its place, not by a search for it.
    after = _one_turn(tokenizer, _STAND_IN).rpartition(_STAND_IN)[2]
    body = wrapped.removesuffix(after)
    kept = next((one for one in (text, text.rstrip(), text.lstrip(), text.strip()) if body.endswith(one)), None)
    if kept is None or not wrapped.endswith(after):
        raise InputError(f"The chat template changed the text {text[:80]!r}, so its spans cannot be found; reword it.")
    first = len(body) - len(kept)
    return wrapped, first - text.index(kept), range(first, len(body))


def _one_turn(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """The chat template around one user turn, with its generation prompt."""
    turn = [{"role": "user", "content": text}]
    wrapped = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    return wrapped if isinstance(wrapped, str) else str(wrapped[0])  # some yield a list, one text a conversation


def _encode(
    tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool
) -> tuple[tuple[int, ...], list[tuple[int, int]]]:
    """Token ids and their character offsets, with at most one BOS in front and no EOS behind."""
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            f"{type(tokenizer).__name__} gives no character offsets, but spans need them; load the fast tokenizer."
        )
    coded: Any = tokenizer(
        text,
        add_special_tokens=special,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    ids, offsets = list(coded["input_ids"]), [tuple(pair) for pair in coded["offset_mapping"]]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    if special and eos is not None and eos != bos and ids and ids[-1] == eos and offsets[-1][0] == offsets[-1][1]:
        # Some tokenizers close a text; what follows would be read after its end.
        ids, offsets = ids[:-1], offsets[:-1]
    if bos is not None and ids[:2] == [bos, bos]:
        raise InputError(
            f"The text begins with the BOS token {tokenizer.bos_token!r}, and the tokenizer adds it too, "
            "but there must be one; leave it out of the text."
        )
    return tuple(ids), offsets


def _positions(marks: Sequence[Mark], offsets: Sequence[tuple[int, int]], text: str) -> dict[str, tuple[int, ...]]:
    """Token positions of each named mark; a token belongs to a mark when their characters overlap."""
    spans: dict[str, set[int]] = {}
    for name, first, last in marks:
        inside = {i for i, (start, end) in enumerate(offsets) if _overlap(start, end, first, last)}
        if not inside:
            raise InputError(
                f"The span {name!r} ({text[first:last]!r}) has no token of its own in {text!r}; mark more of the text."
            )
        spans.setdefault(name, set()).update(inside)
    return {name: tuple(sorted(positions)) for name, positions in spans.items()}


def _overlap(start: int, end: int, first: int, last: int) -> bool:
    """Whether a token's characters and a mark's have one in common.

    Where offsets leave spaces out (GPT-2, Llama 3), a token of nothing but space has none left: it ends where it stood.
    """
    return first < start <= last if start == end else max(start, first) < min(end, last)

"""A prompt: token ids, and named spans of positions among them.

Positions count tokens of the *unpadded* prompt from 0, its BOS included. A token belongs to a span when its
characters overlap the span's characters, so a leading space that a tokenizer glues to a word comes along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from timonel.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prompt:
    """Token ids with named spans; belongs to no model, only to the tokenizer that made it.

    Attributes:
        ids: token ids, without padding.
        spans: name -> positions in `ids`, sorted.
        text: the text that these ids were made from, chat template included.
        marks: the spans in characters of `text`, so that a longer text can be tokenised as a whole.
        templated: `text` holds its special tokens already, so none are added when it is tokenised.
    """

    ids: tuple[int, ...]
    spans: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    text: str = ""
    marks: tuple[tuple[str, int, int], ...] = ()
    templated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", tuple(int(token) for token in self.ids))
        if not self.ids:
            raise InputError("A prompt has no tokens, but at least one is needed; give it some text.")
        for name, positions in self.spans.items():
            if not positions or list(positions) != sorted(set(positions)):
                raise InputError(f"The span {name!r} has positions {positions}, but sorted distinct ones are needed.")
            if positions[0] < 0 or positions[-1] >= len(self.ids):
                raise InputError(
                    f"The span {name!r} reaches position {positions[-1]}, but the prompt has {len(self.ids)} tokens "
                    "(0-based, unpadded); give positions inside it."
                )
        spans = {name: tuple(int(position) for position in positions) for name, positions in self.spans.items()}
        if spans.get("answer", (1,))[0] == 0:
            raise InputError(
                "The span 'answer' begins at the first token, but something must come before it; add a text."
            )
        object.__setattr__(self, "spans", MappingProxyType(spans))

    @property
    def answer_start(self) -> int:
        """How many tokens come before the answer; all of them where there is none."""
        return self.spans["answer"][0] if "answer" in self.spans else len(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __hash__(self) -> int:
        return hash((self.ids, tuple(sorted(self.spans.items()))))

    def positions(self, *names: str) -> tuple[int, ...]:
        """The union of the named spans' positions, sorted.

        Raises:
            InputError: a name is not one of this prompt's spans.
        """
        for name in names:
            if name not in self.spans:
                have = ", ".join(sorted(self.spans)) or "none"
                shown = self.text if len(self.text) <= 300 else f"{self.text[:300]}…"
                raise InputError(
                    f"The plan names the span {name!r}, but this prompt has {have}: {shown!r}; "
                    f"mark it in the text as [[{name}:…]]."
                )
        return tuple(sorted({position for name in names for position in self.spans[name]}))

    @classmethod
    def parse(cls, tokenizer: PreTrainedTokenizerBase, text: str, *, chat: bool = False) -> Prompt:
        """Reads a text with marks, such as `"Who should wear [[item:a kimono]]?"`.

        Args:
            tokenizer: a fast tokenizer (spans need character offsets).
            text: the text; `[[name:characters]]` marks a span.
            chat: wrap the text as one user turn in the tokenizer's chat template, with its generation prompt.

        Example:
            >>> prompt = Prompt.parse(tokenizer, "Who wears [[item:a kimono]]?")  # doctest: +SKIP
            >>> prompt.spans["item"]  # doctest: +SKIP
            (2, 3, 4)
        """
        from timonel.prompts.markup import parse_markup
        from timonel.prompts.render import Chat, render

        plain, marks = parse_markup(text)
        return render(tokenizer, plain, marks, chat=Chat.USER_TURN if chat else Chat.PLAIN)

    def followed_by(self, tokenizer: PreTrainedTokenizerBase, answer: str) -> Prompt:
        """This prompt and an answer that continues it, tokenised together; the answer is the span `answer`."""
        from timonel.prompts.render import tokenise

        if not self.text or "answer" in self.spans:
            what = "has an answer already" if self.text else "was made from ids, without its text"
            raise InputError(f"The prompt {what}, so no answer can be put after it; make it with Prompt.parse.")
        marks = (*self.marks, ("answer", len(self.text), len(self.text) + len(answer)))
        return tokenise(tokenizer, self.text + answer, marks, templated=self.templated)


def show_spans(tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    """The prompt token by token, with the spans of each: what an intervention will touch, as a person can check it.

    Returns:
        One line a token: position, id, the token's text, and the names of its spans.
    """
    lines = []
    for position, token in enumerate(prompt.ids):
        names = [name for name, positions in prompt.spans.items() if position in positions]
        mark = "  <- " + ", ".join(sorted(names)) if names else ""
        lines.append(f"{position:4d} {token:7d} {tokenizer.decode([token])!r}{mark}")
    return "\n".join(lines)

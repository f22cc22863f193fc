"""From text to token ids, once; from marks in the text to positions among those very ids."""

from timonel.prompts.letters import MULTIPLE_CHOICE, letter_tokens
from timonel.prompts.markup import parse_markup
from timonel.prompts.prompt import Prompt, show_spans
from timonel.prompts.render import Chat, Wrap, chat_of, default_wrap, has_template, render

__all__ = [
    "MULTIPLE_CHOICE",
    "Chat",
    "Prompt",
    "Wrap",
    "chat_of",
    "default_wrap",
    "has_template",
    "letter_tokens",
    "parse_markup",
    "render",
    "show_spans",
]

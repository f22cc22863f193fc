"""From text to token ids, once; from marks in the text to positions among those very ids."""

from timonel.prompts.letters import letter_tokens
from timonel.prompts.markup import parse_markup
from timonel.prompts.prompt import Prompt, show_spans
from timonel.prompts.render import Chat, render

__all__ = ["Chat", "Prompt", "letter_tokens", "parse_markup", "render", "show_spans"]

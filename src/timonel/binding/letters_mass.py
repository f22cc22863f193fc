"""How much probability a model puts on the answer letters at all: whether the letters form can be used with it.

    mass = median over questions and conditions of  P(a) + P(b) + P(c)      each summed over the letter's spellings

on a few of the package's own questions, one item each. Near 0 the model answers in words, and scores of letters
compare crumbs; the cloze form then reads what it says.

Does not show: that the letters mean the options to the model; a model can write `a` whatever is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from timonel.binding.forms import Form
from timonel.binding.sampling import sample
from timonel.binding.score import score_pairs
from timonel.binding.sources import read_pairs
from timonel.binding.words import MASS_FLOOR
from timonel.engine import Engine
from timonel.prompts import Wrap, default_wrap

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

QUESTIONS = 6


def letters_mass(
    engine: Engine, tokenizer: PreTrainedTokenizerBase, *, wrap: Wrap | None = None, questions: int = QUESTIONS
) -> float:
    """The median mass of the letters.

    Args:
        engine: of the model.
        tokenizer: its tokenizer.
        wrap: instruct or base; instruct where there is a chat template.
        questions: how many of the package's questions to ask, each in both conditions.

    Raises:
        InputError: the tokenizer has no token for a letter.
    """
    wrap = wrap or default_wrap(tokenizer)
    pairs = sample(read_pairs("culture").pairs, questions, seed=0)
    (asked,) = score_pairs(engine, Form(tokenizer, "letters", wrap), pairs, "S", stage="letters")
    return float(np.median(np.concatenate(asked.mass())))


def describe_mass(mass: float) -> str:
    """The number in words."""
    share = f"{mass:.0%}" if mass >= 0.01 else f"{mass:.1g} of 1"
    held = f"they hold {share} of the probability (median over {QUESTIONS} questions)"
    if mass < MASS_FLOOR:
        return f"{held}, under {MASS_FLOOR:.0%}, so the cloze form (--form cloze) may measure it better"
    return f"{held}, so the letters form can be used"

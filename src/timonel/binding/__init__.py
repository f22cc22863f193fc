"""The study of cultural binding: does a model tie an item to the identities that it belongs to, and where?"""

from timonel.binding.cut import Cut
from timonel.binding.forms import Form
from timonel.binding.knockout import knockout_table
from timonel.binding.pair import Identity, Pair, Wording
from timonel.binding.score import Contrast, score_pairs
from timonel.binding.study import BindingResult, BindingStudy, study
from timonel.binding.tables import baseline_table, pairs_table

__all__ = [
    "BindingResult",
    "BindingStudy",
    "Contrast",
    "Cut",
    "Form",
    "Identity",
    "Pair",
    "Wording",
    "baseline_table",
    "knockout_table",
    "pairs_table",
    "score_pairs",
    "study",
]

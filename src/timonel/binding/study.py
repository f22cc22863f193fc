"""The binding study, as it would be told in a method section.

    1. Every pair is asked twice, with the related identity and without: S, and dS = S_match - S_mismatch.
    2. The same is asked of what the model knows: K, and dK.
    3. The attention edge from the related identity to the item is cut at the chosen heads, and dS is measured again;
       the other identity's edge is cut too, as the control.
    4. Every effect is reported on all pairs, on the clean subset and by polarity, with an item-clustered interval.

Source: "Cultural Binding Heads in Language Models" (arXiv 2605.28543), whose choices and ours are told apart in the
method page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd

from timonel.binding.choices import STAGES, check_choices
from timonel.binding.cut import EDGES, Cut, every_head
from timonel.binding.forms import Asker, FormName, Rows
from timonel.binding.knockout import knockout_table
from timonel.binding.own_form import asker_for
from timonel.binding.pair import Pair
from timonel.binding.score import Contrast, contrast_requests, prior_requests, score_pairs
from timonel.binding.tables import baseline_table, pairs_table
from timonel.engine import Engine, Request
from timonel.errors import InputError
from timonel.prompts import Wrap

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class BindingResult:
    """What a study found.

    Attributes:
        form: letters, cloze, or own (rows with their own prompts), and `form_reason` why.
        wrap: instruct or base.
        heads: whose edges were cut; `all_heads` says that these are all there are (the ceiling).
        pairs: one row a pair, with its scores.
        baseline: the effects by subset.
        knockout: what each cut changes; empty where the stage was not asked for.
        mass: median total probability of the answers.
    """

    form: FormName | Literal["own"]
    form_reason: str
    wrap: Wrap
    heads: tuple[tuple[int, int], ...]
    all_heads: bool
    pairs: pd.DataFrame
    baseline: pd.DataFrame
    knockout: pd.DataFrame
    mass: float

    @property
    def headline(self) -> str:
        """The score that headlines are about: priors off where there are priors."""
        return "pmi" if self.form == "cloze" else "raw"

    @property
    def tables(self) -> dict[str, pd.DataFrame]:
        """The run folder's tables by name."""
        named = {"pairs": self.pairs, "baseline": self.baseline}
        return named if self.knockout.empty else {**named, "knockout": self.knockout}


@dataclass(frozen=True)
class BindingStudy:
    """A study that is set up but not run: the form is chosen, the heads are checked, the requests can be counted."""

    form: Asker
    form_reason: str
    pairs: tuple[Pair, ...]
    heads: tuple[tuple[int, int], ...]
    all_heads: bool
    stages: tuple[str, ...]
    seed: int

    @classmethod
    def plan(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        engine: Engine,
        pairs: Sequence[Pair],
        *,
        form: FormName | None = None,
        wrap: Wrap | None = None,
        rows: Rows = "own",
        heads: Sequence[tuple[int, int]] | None = None,
        stages: Sequence[str] = STAGES,
        seed: int = 0,
    ) -> BindingStudy:
        """Chooses what was left open, and refuses what cannot be done; see `study` for the arguments."""
        if not pairs:
            raise InputError("There are no pairs to study, but at least one is needed; ask for more with --pairs.")
        check_choices(form=form, wrap=wrap, rows=rows, stages=stages)
        asked, reason = asker_for(pairs, tokenizer, model.num_parameters(), form=form, wrap=wrap, rows=rows)
        geometry = engine.geometry
        for layer, head in heads or ():
            geometry.check_head(layer, head)
        chosen = tuple(sorted(set(heads))) if heads else every_head([layer.heads for layer in geometry.layers])
        asked.check(pairs, cut="knockout" in stages)  # what cannot be asked is refused before anything is written
        return cls(asked, reason, tuple(pairs), chosen, not heads, tuple(stages), seed)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """The knockout conditions: the related edge, the control, and both."""
        return tuple(Cut(edge, self.heads) for edge in EDGES) if "knockout" in self.stages else ()

    def requests(self) -> list[Request]:
        """All that the study will ask of the engine, for counting and for a trial."""
        kinds = self.form.kinds
        asked = [request for kind in kinds for request in prior_requests(self.form, self.pairs, kind)]
        asked += contrast_requests(self.form, self.pairs, "K") if "K" in kinds else []
        for cut in (None, *self.cuts):
            asked += contrast_requests(self.form, self.pairs, "S", cut)
        return asked

    def run(self, engine: Engine) -> BindingResult:
        """Does it."""
        s, *cut = score_pairs(engine, self.form, self.pairs, "S", (None, *self.cuts), stage=" + ".join(self.stages))
        # Where no question of knowledge is asked, S stands in, and the form leaves it out of the tables.
        k = score_pairs(engine, self.form, self.pairs, "K", stage="knowledge")[0] if "K" in self.form.kinds else s
        return self.conclude(s, k, dict(zip(self.cuts, cut, strict=True)))

    def conclude(self, s: Contrast, k: Contrast, cuts: dict[Cut, Contrast]) -> BindingResult:
        """From scores to tables."""
        tables = self.form.trim(
            {
                "pairs": pairs_table(s, k),
                "baseline": baseline_table(s, k, seed=self.seed),
                "knockout": knockout_table(s, cuts, pmi=s.has_priors, seed=self.seed),
            }
        )
        return BindingResult(
            form=self.form.name,
            form_reason=self.form_reason,
            wrap=self.form.wrap,
            heads=self.heads,
            all_heads=self.all_heads,
            mass=float(np.median(np.concatenate(s.mass()))),
            **tables,
        )


def study(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    *,
    form: FormName | None = None,
    wrap: Wrap | None = None,
    rows: Rows = "own",
    heads: Sequence[tuple[int, int]] | None = None,
    stages: Sequence[str] = STAGES,
    seed: int = 0,
    engine: Engine | None = None,
) -> BindingResult:
    """Measures binding on a model, and what some heads' edges carry of it.

    Args:
        model: a supported causal language model; neither moved nor changed.
        tokenizer: its tokenizer.
        pairs: what to ask, such as `pairs_from_n4(read_n4(path))` or `read_pairs("pairs:FILE.jsonl").pairs`.
        form: letters or cloze; None takes letters for instruct models of 1B parameters and more, else cloze. Own rows
            bring their prompts, and take neither.
        wrap: instruct (chat template) or base; None takes instruct where the tokenizer has a template.
        rows: in cloze form, cut the identity's own rows or those that write it.
        heads: (layer, query head) whose edges are cut; None takes all heads, the ceiling of what the edge carries.
        stages: which of `STAGES` to run.
        seed: of the bootstrap.
        engine: with a store, progress and batch size of one's own.

    Returns:
        Tables with an interval beside each effect and the control beside each cut.
    """
    engine = engine or Engine(model, tokenizer)
    planned = BindingStudy.plan(
        model,
        tokenizer,
        engine,
        pairs,
        form=form,
        wrap=wrap,
        rows=rows,
        heads=heads,
        stages=stages,
        seed=seed,
    )
    return planned.run(engine)

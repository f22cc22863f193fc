"""How own contrasts are asked, and who asks which pairs.

    log P(set) = log sum over its answers w of P(w | prompt)       an answer is a continuation, token by token

A set's answers must exclude each other: where one's tokens begin another's, its probability counts the other's too,
and the sum would count that twice, so this is refused.

Does not show: how likely the answers are at all beside everything else; `mass` says that, and a small one is a
reason to doubt the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations
from typing import TYPE_CHECKING, Literal

import numpy as np

from timonel.binding.forms import Asker, Form, FormName, Kind, Rows, default_form
from timonel.binding.own_pairs import OwnPair
from timonel.binding.pair import CONDITIONS, Condition, Pair
from timonel.engine import Request, continuation
from timonel.errors import InputError
from timonel.prompts import Chat, Prompt, Wrap, default_wrap, render

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class OwnForm:
    """Own prompts, as they stand or in one user turn; an `Asker`.

    Attributes:
        tokenizer: a fast tokenizer.
        pairs: all that will be asked.
    """

    tokenizer: PreTrainedTokenizerBase
    pairs: tuple[OwnPair, ...]
    _cache: dict[tuple[int, Condition], tuple[Prompt, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> Literal["own"]:
        """The rows' own."""
        return "own"

    @property
    def wrap(self) -> Wrap:
        """As the file says; it is one for all rows."""
        return "instruct" if self.pairs[0].chat else "base"

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Own rows bring no question of knowledge."""
        return ("S",)

    def check(self, pairs: Sequence[Pair], *, cut: bool) -> None:
        """Every row: its spans have tokens, its answers exclude each other, and there is a control for each cut."""
        for pair in map(_own, pairs):
            for condition in CONDITIONS:
                prompts = self._prompts(pair, condition)
                self._check_answers(pair, prompts)
                if cut:
                    _check_control(pair, condition, prompts[0])

    def requests(self, pair: Pair, condition: Condition, kind: Kind) -> tuple[Request, ...]:
        """One request for each answer: those toward, then those away."""
        return tuple(Request(prompt, (continuation(prompt),)) for prompt in self._prompts(_own(pair), condition))

    def priors(self, pair: Pair, condition: Condition, kind: Kind) -> tuple[Request, ...]:
        """None: the answers are the same in both conditions, so that a prior would cancel in dS."""
        return ()

    def read(self, pair: Pair, values: Iterator[float]) -> tuple[float, ...]:
        """Log P of the set `toward` and of the set `away`."""
        own = _own(pair)
        sets = [list(islice(values, len(some))) for some in (own.toward, own.away)]
        return tuple(float(np.logaddexp.reduce(some)) for some in sets)

    def trim(self, tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Leaves out K, slots, polarities and the clean subset, none of which own rows have; adds their ids."""
        trimmed = {name: _of_all(table) for name, table in tables.items()}
        baseline = trimmed["baseline"]
        trimmed["baseline"] = baseline[baseline["quantity"].isin(["delta_s", "direction"])].reset_index(drop=True)
        pairs = trimmed["pairs"].drop(columns=["slot", "polarity", "clean", "k_match", "k_mismatch"])
        pairs.insert(1, "id", [pair.id for pair in self.pairs])
        return {**trimmed, "pairs": pairs}

    def _prompts(self, pair: OwnPair, condition: Condition) -> tuple[Prompt, ...]:
        key = (pair.pair, condition)
        if key not in self._cache:
            chat = Chat.USER_TURN if pair.chat else Chat.PLAIN
            one = pair.prompt(condition)
            try:
                self._cache[key] = tuple(
                    render(self.tokenizer, one.text, one.marks, chat=chat, answer=answer)
                    for answer in (*pair.toward, *pair.away)
                )
            except InputError as error:
                raise InputError(f"{pair.place}: {error}") from error
        return self._cache[key]

    def _check_answers(self, pair: OwnPair, prompts: Sequence[Prompt]) -> None:
        # Up to the end of the answer: a prompt ends with it.
        for (one, first), (two, second) in permutations(zip((*pair.toward, *pair.away), prompts, strict=True), 2):
            if second.ids[: len(first)] == first.ids:
                raise InputError(
                    f"{pair.place}: the tokens of the answer {one!r} begin those of {two!r}, so that its probability "
                    "would be counted twice; leave one out, or write what ends the shorter one."
                )


def asker_for(
    pairs: Sequence[Pair],
    tokenizer: PreTrainedTokenizerBase,
    parameters: int,
    *,
    form: FormName | None = None,
    wrap: Wrap | None = None,
    rows: Rows = "own",
) -> tuple[Asker, str]:
    """Who asks these pairs, and why in this form; the one place where own rows are told from pairs of identities.

    Args:
        pairs: at least one, all of one sort.
        tokenizer: a fast tokenizer.
        parameters: of the model.
        form: None chooses by size and wrap.
        wrap: None takes instruct where there is a chat template; own rows say it themselves (`chat`).
        rows: in cloze form.

    Raises:
        InputError: pairs of two sorts, or a form asked of own rows.
    """
    own = tuple(pair for pair in pairs if isinstance(pair, OwnPair))
    if own and len(own) < len(pairs):
        raise InputError("Pairs of identities and own contrasts were given together; study them one after the other.")
    if own:
        if form is not None or rows != "own":
            asked = f"--form {form}" if form is not None else f"--rows {rows}"
            raise InputError(f"{asked} is for pairs of identities, but own rows bring their prompts; leave it out.")
        return OwnForm(tokenizer, own), "the rows bring their own prompts and answers"
    wrap = wrap or default_wrap(tokenizer)
    name, reason = default_form(parameters, wrap)
    if form is not None and form != name:
        name, reason = form, "asked for"
    return Form(tokenizer, name, wrap, rows), reason


def _check_control(pair: OwnPair, condition: Condition, prompt: Prompt) -> None:
    if pair.control is None:
        raise InputError(
            f"{pair.place}: no control is marked, but a cut shows nothing without one; mark [[control_to:...]] or "
            "[[control_from:...]] in both prompts, or ask for the scores alone with --stages score."
        )
    name, own = ("other", "varied") if pair.control == "control_from" else ("control", "item")
    if set(prompt.spans[name]) & set(prompt.spans[own]):
        raise InputError(
            f"{pair.place}: in `{condition}` {pair.control!r} shares a token with "
            f"{pair.control.removeprefix('control_')!r}, so the control would cut the edge itself; mark texts that "
            "stand further apart."
        )


def _own(pair: Pair) -> OwnPair:
    if not isinstance(pair, OwnPair):
        raise TypeError(f"{type(pair).__name__} brings no prompts of its own")
    return pair


def _of_all(table: pd.DataFrame) -> pd.DataFrame:
    """The rows about all pairs; the other subsets are the same, or empty."""
    return table[table["subset"] == "all"].reset_index(drop=True) if "subset" in table else table

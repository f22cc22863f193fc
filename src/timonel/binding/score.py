"""Scores of pairs: the answers' log-probabilities in each condition, and what follows from them.

    S  = log P(neither) - log(P(varied) + P(other))          [pairs]; the last column against all others
    dS = S_match - S_mismatch;   negative: the model differentiates more when the related identity is there
    direction = +-(P(varied | varied or other) in MATCH - the same in MISMATCH), signed so that right is positive

An own contrast has two columns, so that S = log P(away) - log P(toward), and direction compares these two.

Source: "Cultural Binding Heads in Language Models" (arXiv 2605.28543); cloze form, priors and direction are ours.
Does not show: whether a model treats people fairly; S compares treating both alike with naming one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from timonel.binding.cut import Cut
from timonel.binding.forms import Asker, Kind
from timonel.binding.pair import CONDITIONS, Pair
from timonel.engine import Engine, Request


@dataclass(frozen=True, slots=True)
class Contrast:
    """All pairs under one intervention: log P of (varied, other, neither) in MATCH and in MISMATCH.

    Shapes: `match`, `mismatch`, and the priors of the same texts where there are any: [p, a] for p pairs and a = 3
    answers; of own contrasts there are a = 2: (toward, away).
    """

    pairs: tuple[Pair, ...]
    match: Float[np.ndarray, "p a"]
    mismatch: Float[np.ndarray, "p a"]
    prior_match: Float[np.ndarray, "p a"] | None = None
    prior_mismatch: Float[np.ndarray, "p a"] | None = None

    @property
    def has_priors(self) -> bool:
        """Whether the form knows priors (cloze)."""
        return self.prior_match is not None

    def s(self, *, pmi: bool = False) -> tuple[Float[np.ndarray, "p"], Float[np.ndarray, "p"]]:
        """S in MATCH and in MISMATCH; `pmi` takes the priors off."""
        return strength(self._log_p("match", pmi)), strength(self._log_p("mismatch", pmi))

    def delta(self, *, pmi: bool = False) -> Float[np.ndarray, "p"]:
        """S_match - S_mismatch of each pair."""
        match, mismatch = self.s(pmi=pmi)
        difference: np.ndarray = match - mismatch
        return difference

    def direction(self, *, pmi: bool = False) -> Float[np.ndarray, "p"]:
        """How far MATCH moves the choice between the two identities to the right one, in probability."""
        sign = np.array([1.0 if pair.polarity == "choose" else -1.0 for pair in self.pairs])
        moved: np.ndarray = preference(self._log_p("match", pmi)) - preference(self._log_p("mismatch", pmi))
        toward: np.ndarray = sign * moved
        return toward

    def mass(self) -> tuple[Float[np.ndarray, "p"], Float[np.ndarray, "p"]]:
        """Total probability of the answers in MATCH and in MISMATCH."""
        return np.exp(self.match).sum(axis=1), np.exp(self.mismatch).sum(axis=1)

    def _log_p(self, condition: str, pmi: bool) -> Float[np.ndarray, "p a"]:
        raw = self.match if condition == "match" else self.mismatch
        if not pmi:
            return raw
        prior = self.prior_match if condition == "match" else self.prior_mismatch
        if prior is None:
            raise ValueError("The letters form has no priors; ask for the raw score.")
        without: np.ndarray = raw - prior
        return without


def strength(log_p: Float[np.ndarray, "p a"]) -> Float[np.ndarray, "p"]:
    """S of each row: its last answer against all others."""
    s: np.ndarray = log_p[:, -1] - np.logaddexp.reduce(log_p[:, :-1], axis=1)
    return s


def preference(log_p: Float[np.ndarray, "p a"]) -> Float[np.ndarray, "p"]:
    """P(first | first or second) of each row: the varied identity against the other, or toward against away."""
    share: np.ndarray = np.exp(log_p[:, 0] - np.logaddexp(log_p[:, 0], log_p[:, 1]))
    return share


def contrast_requests(form: Asker, pairs: Sequence[Pair], kind: Kind, cut: Cut | None = None) -> list[Request]:
    """All requests of one intervention, pair by pair, MATCH before MISMATCH."""
    requests = [
        request for pair in pairs for condition in CONDITIONS for request in form.requests(pair, condition, kind)
    ]
    return requests if cut is None else [cut.on(request) for request in requests]


def prior_requests(form: Asker, pairs: Sequence[Pair], kind: Kind) -> list[Request]:
    """The priors' requests in the order of `contrast_requests`; none where the form knows no priors."""
    return [request for pair in pairs for condition in CONDITIONS for request in form.priors(pair, condition, kind)]


def score_pairs(
    engine: Engine,
    form: Asker,
    pairs: Sequence[Pair],
    kind: Kind,
    cuts: Sequence[Cut | None] = (None,),
    *,
    stage: str = "score",
) -> list[Contrast]:
    """Scores the pairs under each intervention, all in one call of the engine, so that they share their prefixes.

    Args:
        engine: of the model.
        form: how pairs are asked.
        pairs: what to ask.
        kind: S or K.
        cuts: interventions; None is the unsteered model.
        stage: name for the progress.

    Returns:
        One contrast an intervention, in order.
    """
    requests = [contrast_requests(form, pairs, kind, cut) for cut in cuts]
    priors = prior_requests(form, pairs, kind)
    answers = engine.score([*priors, *(request for some in requests for request in some)], stage=stage)
    prior = _table(form, pairs, answers[: len(priors)]) if priors else None
    tables = [
        _table(form, pairs, answers[start : start + len(requests[0])]) for start in _starts(len(priors), requests)
    ]
    return [
        Contrast(
            tuple(pairs), table[:, 0], table[:, 1], None if prior is None else prior[:, 0],
            None if prior is None else prior[:, 1],
        )
        for table in tables
    ]  # fmt: skip


def _starts(first: int, requests: Sequence[Sequence[Request]]) -> list[int]:
    return [first + index * len(some) for index, some in enumerate(requests)]


def _table(form: Asker, pairs: Sequence[Pair], answers: Iterable[tuple[float, ...]]) -> Float[np.ndarray, "p 2 a"]:
    """Answers in the order of `contrast_requests` as pairs x conditions x answers."""
    values = (value for one in answers for value in one)
    return np.array([[form.read(pair, values) for _ in CONDITIONS] for pair in pairs])

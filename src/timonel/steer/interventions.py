"""The interventions: frozen values that say what is changed, where, and by how much. They touch nothing themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from timonel.errors import InputError
from timonel.steer.scope import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeScale:
    r"""Scales what one attention edge of one query head contributes.

    On the query rows the head's output, before `o_proj`, becomes

        z' = z_cut + alpha * (z - z_cut)

    where `z = softmax(s) V` is the head's own output and `z_cut` is the output with the scores of the key columns at
    minus infinity before the softmax (after a soft cap). alpha 0 cuts the edge, 1 changes nothing, above 1
    amplifies it. A row that is left without any key yields zeros.

    Source: the knockout and the alpha-scaling of "Cultural Binding Heads in Language Models" (arXiv 2605.28543).
    Does not show: what the edge carries *through other heads*, nor that the model needs it; cutting renormalises the
    row's other keys, so a control edge belongs beside every effect.

    Attributes:
        layer: 0-based layer.
        head: 0-based *query* head; its key/value head is `head // group`.
        queries: rows on which the head's output changes.
        keys: columns that the edge reads.
        alpha: the edge's new weight; finite.
    """

    layer: int
    head: int
    queries: Span
    keys: Span
    alpha: float

    def __post_init__(self) -> None:
        if self.layer < 0 or self.head < 0:
            raise InputError(f"Head L{self.layer}H{self.head} is negative, but layers and heads count from 0.")
        if not isinstance(self.queries, Span) or not isinstance(self.keys, Span):
            raise InputError('queries and keys must be spans; write span("item"), which a prompt then binds.')
        if not math.isfinite(self.alpha):
            raise InputError(f"alpha is {self.alpha}, but it must be finite; 0 cuts the edge, 1 leaves it.")

"""One prompt, edge by edge: what scaling the edge between two spans does at each head, and at all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch

from timonel.engine.engine import Engine
from timonel.engine.face import score
from timonel.engine.request import Request, choice
from timonel.models.heads import format_head
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, span

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def edge_by_edge(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    answers: Sequence[str] = (),
    alpha: float = 0.0,
) -> pd.DataFrame:
    """Scales the edge `from` -> `to` at each head alone, and at all of them at once.

    Args:
        engine: of the model.
        tokenizer: its tokenizer.
        prompt: with the spans `from` (query rows) and `to` (keys).
        heads: which; None takes all.
        answers: texts whose log-probability is watched; none watches the likeliest next token.
        alpha: the edge's weight; 0 cuts it.

    Returns:
        Columns `heads, answer, log_p, log_p_cut, change`: all heads together first, then single heads from the
        largest change to the smallest.
    """
    chosen = list(engine.geometry.heads()) if heads is None else list(heads)
    for layer, head in chosen:
        engine.geometry.check_head(layer, head)

    def scaled(some: Sequence[tuple[int, int]]) -> Plan:
        return Plan(
            tuple(EdgeScale(layer=a, head=b, queries=span("from"), keys=span("to"), alpha=alpha) for a, b in some)
        )

    together = "all heads" if heads is None else f"these {len(chosen)} together"
    plans = {"": Plan(), together: scaled(chosen), **{format_head(*one): scaled([one]) for one in chosen}}
    if answers:
        found = score(engine.model, tokenizer, [prompt], plans, answers=answers, engine=engine)
    else:
        found = _watch_likeliest(engine, tokenizer, prompt, plans)
    plain = found[found["plan"] == ""][["answer", "log_p"]]
    cut = found[found["plan"] != ""].rename(columns={"plan": "heads", "log_p": "log_p_cut"})
    table = cut.merge(plain, on="answer")
    table["change"] = table["log_p_cut"] - table["log_p"]
    order = table.assign(single=table["heads"] != together, size=-table["change"].abs())
    order = order.sort_values(["single", "size", "heads"], kind="stable", ignore_index=True)
    return order[["heads", "answer", "log_p", "log_p_cut", "change"]]


def _watch_likeliest(
    engine: Engine, tokenizer: PreTrainedTokenizerBase, prompt: Prompt, plans: Mapping[str, Plan]
) -> pd.DataFrame:
    """The most probable next token under each plan; the token itself, since its text might be read as other tokens."""
    with torch.inference_mode():
        logits = engine.model(input_ids=torch.tensor([prompt.ids], device=engine.device), logits_to_keep=1).logits
    token = int(logits[0, -1].argmax())
    scores = engine.score([Request(prompt, (choice(prompt, (token,)),), plan) for plan in plans.values()])
    answer = tokenizer.decode([token])
    return pd.DataFrame({"plan": list(plans), "answer": answer, "log_p": [log_p for (log_p,) in scores]})

"""One prompt, edge by edge: what scaling the edge between two spans does at each head, and at all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
import torch

from timonel.engine.engine import Engine
from timonel.engine.face import score
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
    if not answers:
        answers = (_likeliest(engine, tokenizer, prompt),)

    def scaled(some: Sequence[tuple[int, int]]) -> Plan:
        return Plan(
            tuple(EdgeScale(layer=a, head=b, queries=span("from"), keys=span("to"), alpha=alpha) for a, b in some)
        )

    together = "all heads" if heads is None else f"these {len(chosen)} together"
    plans = {"": Plan(), together: scaled(chosen), **{format_head(*one): scaled([one]) for one in chosen}}
    found = score(engine.model, tokenizer, [prompt], plans, answers=answers, engine=engine)
    plain = found[found["plan"] == ""][["answer", "log_p"]]
    cut = found[found["plan"] != ""].rename(columns={"plan": "heads", "log_p": "log_p_cut"})
    table = cut.merge(plain, on="answer")
    table["change"] = table["log_p_cut"] - table["log_p"]
    order = table.assign(single=table["heads"] != together, size=-table["change"].abs())
    order = order.sort_values(["single", "size", "heads"], kind="stable", ignore_index=True)
    return order[["heads", "answer", "log_p", "log_p_cut", "change"]]


@torch.inference_mode()
def _likeliest(engine: Engine, tokenizer: PreTrainedTokenizerBase, prompt: Prompt) -> str:
    """The text of the most probable next token."""
    device = engine.model.get_input_embeddings().weight.device
    logits = engine.model(input_ids=torch.tensor([prompt.ids], device=device), logits_to_keep=1).logits
    ids = [*prompt.ids, int(logits[0, -1].argmax())]
    # What it adds to the text: alone, some tokenizers decode a token without the space that it begins with.
    before, after = str(tokenizer.decode(ids[:-1])), str(tokenizer.decode(ids))
    return after.removeprefix(before) if after.startswith(before) else str(tokenizer.decode(ids[-1:]))

"""The planted model's prompts, spans and forward pass written out again, one head at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from timonel.binding.pair import CONDITIONS, Condition, Pair
from timonel.binding.planted import Planted

Head = tuple[int, int]
EVERY_HEAD = [(layer, head) for layer in range(5) for head in range(4)]
SPELLINGS = {
    letter: {f"{gap}{left}{form}{right}" for gap in ("", " ") for left in ("", "(") for right in ("", ")")
             for form in (letter, letter.upper())}
    for letter in "abc"
}  # fmt: skip


def prompt_text(pair: Pair, condition: Condition) -> str:
    left, right = pair.options(condition)
    options = f"(a) {left.text} (b) {right.text} (c) {pair.neither}"
    return f"{pair.stem}\n{options}\n\n{pair.wording.choice}\n{pair.wording.base_line}"


@dataclass
class Prompts:
    """All prompts of one condition, left padded.

    Edges [b, q, k], q reads k: `related` and `other`, the identity in R's slot and U read the item; `second`,
    the item's second mention reads the identity in R's slot; `all`, whatever causality allows.
    """

    ids: Tensor
    mask: Tensor
    rows: dict[str, Tensor]
    edges: dict[str, Tensor]


def prompts(planted: Planted, condition: Condition) -> Prompts:
    texts = [prompt_text(pair, condition) for pair in planted.pairs]
    encoded = planted.tokenizer(texts, padding=True, return_tensors="pt", return_offsets_mapping=True)
    spans: dict[str, list[list[bool]]] = {"item": [], "related": [], "other": [], "again": []}
    for pair, text, offsets in zip(planted.pairs, texts, encoded["offset_mapping"].tolist(), strict=True):
        begins = {
            "item": (text.index(pair.item), pair.item),
            "related": (text.index(pair.varied(condition).text), pair.varied(condition).text),
            "other": (text.index(pair.other.text), pair.other.text),
            "again": (text.rindex(pair.item), pair.item),
        }
        for name, (begin, needle) in begins.items():
            end = begin + len(needle)
            spans[name].append([start < end and stop > begin for start, stop in offsets])
    rows = {name: torch.tensor(marks) for name, marks in spans.items()}
    ends = {"related": ("related", "item"), "other": ("other", "item"), "second": ("again", "related")}
    edges = {name: rows[q][:, :, None] & rows[k][:, None, :] for name, (q, k) in ends.items()}
    edges["all"] = torch.ones_like(edges["related"]).tril()
    return Prompts(encoded["input_ids"], encoded["attention_mask"].bool(), rows, edges)


def rope(x: Tensor, theta: float) -> Tensor:
    """Turn dimension pair j of row p by p θ^(−2j/d), as a product of complex numbers."""
    half = x.shape[-1] // 2
    angle = torch.tensor([[p * theta ** (-j / half) for j in range(half)] for p in range(x.shape[1])])
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)


def normed(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight


@torch.no_grad()
def naive(
    planted: Planted, batch: Prompts, at: Head | None = None, edge: Tensor | None = None, alpha: float = 0.0
) -> tuple[Tensor, dict[Head, Tensor]]:
    """Logits of the last row, and each head's weights; the edge's share of z is scaled by α at one head."""
    model, config = planted.model, planted.model.config
    group = config.num_attention_heads // config.num_key_value_heads
    length = batch.ids.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool).tril() & batch.mask[:, None, :]
    x = model.model.embed_tokens.weight[batch.ids]
    attention: dict[Head, Tensor] = {}
    for index, layer in enumerate(model.model.layers):
        h = normed(x, layer.input_layernorm)
        parts = {name: getattr(layer.self_attn, f"{name}_proj").weight for name in "qkvo"}
        for head in range(config.num_attention_heads):
            d = config.head_dim
            own, shared = slice(head * d, (head + 1) * d), slice(head // group * d, (head // group + 1) * d)
            q, k = (
                rope(h @ parts[n][s].T, config.rope_parameters["rope_theta"]) for n, s in (("q", own), ("k", shared))
            )
            scores = q @ k.transpose(1, 2) / math.sqrt(d)
            scores = scores.masked_fill(~seen, -math.inf)
            weights = scores.softmax(-1).nan_to_num()
            v = h @ parts["v"][shared].T
            z = weights @ v
            if (index, head) == at:
                assert edge is not None
                cut = scores.masked_fill(edge, -math.inf).softmax(-1).nan_to_num() @ v
                z = cut + alpha * (z - cut)
            attention[index, head] = weights
            x = x + z @ parts["o"][:, own].T
        h = normed(x, layer.post_attention_layernorm)
        mlp = layer.mlp
        gate, up = h @ mlp.gate_proj.weight.T, h @ mlp.up_proj.weight.T
        x = x + (gate * gate.sigmoid() * up) @ mlp.down_proj.weight.T
    return normed(x[:, -1], model.model.norm) @ model.lm_head.weight.T, attention


def score(planted: Planted, logits: Tensor) -> Tensor:
    p = logits.double().softmax(-1)
    vocabulary = planted.tokenizer.get_vocab()
    mass = {
        letter: sum(p[:, i] for word, i in vocabulary.items() if word in forms) for letter, forms in SPELLINGS.items()
    }
    return mass["c"].log() - (mass["a"] + mass["b"]).log()


class Bench:
    """A planted model, its prompts in both conditions, and ΔS of every pair under any one cut."""

    def __init__(self, planted: Planted) -> None:
        self.planted = planted
        self.batch = {condition: prompts(planted, condition) for condition in CONDITIONS}
        plain = {c: naive(planted, self.batch[c]) for c in CONDITIONS}
        self.logits = {c: plain[c][0] for c in CONDITIONS}
        self.attention = {c: plain[c][1] for c in CONDITIONS}
        self.s = {c: score(planted, self.logits[c]) for c in CONDITIONS}
        self.delta = self.s["match"] - self.s["mismatch"]

    def cut_scores(self, head: Head, edge: str = "related", alpha: float = 0.0) -> dict[Condition, Tensor]:
        return {
            c: score(self.planted, naive(self.planted, b, head, b.edges[edge], alpha)[0]) for c, b in self.batch.items()
        }

    def cut(self, head: Head, edge: str = "related", alpha: float = 0.0) -> Tensor:
        s = self.cut_scores(head, edge, alpha)
        return s["match"] - s["mismatch"]

    def share(self, head: Head, edge: str = "related") -> float:
        """1 − ΔS_cut/ΔS."""
        return 1 - float(self.cut(head, edge).mean() / self.delta.mean())

    def feature(self, head: Head, condition: Condition) -> Tensor:
        """Attention from identity to item: sum over keys, mean over query rows, mean over both slots."""
        batch, weights = self.batch[condition], self.attention[condition][head]
        slots = [(weights * batch.edges[slot]).sum((1, 2)) / batch.rows[slot].sum(1) for slot in ("related", "other")]
        return (slots[0] + slots[1]) / 2

"""The weights of the planted binding model, written down instead of trained.

Every residual channel has one meaning (`Layout`). With x the residual of a row, N its norm and H its width,
the norms' weights are N/√H, and a `fill` channel gives every embedding the norm N = 24, so RMSNorm(x) ≈ x;
what the heads add later changes the norm by about .1 %. A compiled head has one dot product and width d:

    score(q, k) = s · Σ_j ask_j(q) answer_j(k)  +  sink · one(q) bos(k)        (after the division by √d)
    x_q        += w · Σ_k softmax(score)_qk v(k)                               (into one channel)

    head              ask (query row)     answer (key)     s   sink  v (key)                  into       w
    1.2 planted       code of identity    codes of item    10  6.5   strength of the item     match      1
    1.3 unread        the same, with the same keys and values as 1.2                          unread     1
    1.0 reader_both   is an identity      is an item       10  6.5   strength of the item     both       1
    2.1 other_edge    codes of item       code of identity 10  6.5   is an identity           late       1
    3.2 readout       is a cue            is either        7   none  match + .15 both         lean       2
                                                                     + .05 late + prior

A cue is a token after which a letter is due. With n named rows before it (4: two identities, the item twice)

    logit a, b = 7 + 2 lean,   logit c = 8.5 − 2 lean,   S ≈ 1.5 − log 2 − 4 lean,   lean = (2/n) Σ v,

so a match of strength 1 moves S by −2, and a second mention that finds its identity by −.1.
Nothing reads `unread`. Each token has a random spelling, a unit vector in spare channels, which dimensions
left free by the table turn into attention and values of no meaning; all other weights carry faint noise.
A written channel lengthens the residual and so shrinks its neighbours: cutting `unread` strengthens binding
by about 1 %.

RoPE: dimension pair j turns by θ^(−2j/d) a position. Content uses only j ≥ d/8, which θ = 1e16 turns by at
most 1e-4 radians, so scores do not depend on where a token stands.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

THETA = 1e16
NORM = 24.0
LAYERS, HEADS, KV_HEADS = 5, 4, 2
PLANTED, UNREAD, READER_BOTH, OTHER_EDGE, READOUT = (1, 2), (1, 3), (1, 0), (2, 1), (3, 2)

_SCORE, _SINK, _READOUT_SCORE = 10.0, 6.5, 7.0
_LETTER_LOGIT, _NEITHER_BONUS, _NEXT_LOGIT = 7.0, 1.5, 12.0
# Spread of a matrix's random weights where it reads or writes spelling channels, and on all other channels.
_NOISE = {
    "q_proj": (0.7, 1e-4),
    "k_proj": (0.7, 1e-4),
    "v_proj": (0.3, 1e-4),
    "o_proj": (1e-2, 3e-4),
    "gate_proj": (0.3, 1e-3),
    "up_proj": (0.3, 1e-3),
    "down_proj": (1e-2, 3e-4),
    "lm_head": (1e-2, 1e-3),
    "embed_tokens": (0.0, 1e-3),
}
_FLAGS = ("one", "fill", "bos", "is_identity", "is_item", "strength", "prior", "cue", "letter", "close")
_WRITTEN = ("match", "unread", "both", "late", "lean")


@dataclass(frozen=True)
class Layout:
    """Which channel means what, for `identities` identities and as many items."""

    identities: int

    @property
    def head_dim(self) -> int:
        """The smallest multiple of 8 whose slow three quarters hold a code, the sink and a flag."""
        return 8 * math.ceil((self.identities + 2) / 6)

    @property
    def hidden(self) -> int:
        """The residual's width; the heads side by side are as wide."""
        return HEADS * self.head_dim

    def channel(self, name: str) -> int:
        """The residual channel of a flag."""
        return 2 * self.identities + (*_FLAGS, *_WRITTEN).index(name)

    @property
    def identity_codes(self) -> range:
        """One channel an identity: the code on the identity's own word."""
        return range(self.identities)

    @property
    def item_codes(self) -> range:
        """One channel an identity: set on the items that belong to it."""
        return range(self.identities, 2 * self.identities)

    @property
    def spelling(self) -> slice:
        """Channels that tell words apart and that no head reads."""
        return slice(2 * self.identities + len(_FLAGS) + len(_WRITTEN), self.hidden)

    @property
    def slow(self) -> list[int]:
        """A head's dimensions that RoPE hardly turns: codes first, then the sink, then a flag."""
        half = self.head_dim // 2
        return [j + part for part in (0, half) for j in range(self.head_dim // 8, half)]


@dataclass(frozen=True)
class Lexicon:
    """Token ids by role; `belongs[i]` are the identities of item i."""

    bos: int
    eos: int
    letters: tuple[int, int, int]
    close: int
    cues: tuple[int, ...]
    identities: tuple[int, ...]
    items: tuple[int, ...]
    belongs: tuple[tuple[int, ...], ...]


def random_state(shapes: Mapping[str, torch.Size], seed: int) -> dict[str, Tensor]:
    """The negative control: matrices ~ N(0, 1/H) with H the residual's width, and norms that are 1."""
    draw = torch.Generator().manual_seed(seed)
    width = shapes["model.norm.weight"][0]
    return {
        name: torch.ones(shape) if len(shape) == 1 else torch.randn(shape, generator=draw) / math.sqrt(width)
        for name, shape in shapes.items()
    }


def compiled_state(shapes: Mapping[str, torch.Size], layout: Layout, lexicon: Lexicon, seed: int) -> dict[str, Tensor]:
    """The state dict of the planted model: noise everywhere, the heads of the module's table on top."""
    draw = torch.Generator().manual_seed(seed)
    state = {name: _noise(name, shape, layout, draw) for name, shape in shapes.items()}
    _embeddings(state["model.embed_tokens.weight"], layout, lexicon, draw)
    _letters(state["lm_head.weight"], layout, lexicon)
    identity, item = layout.identity_codes, layout.item_codes
    dims = layout.slow
    codes, flag = dims[: layout.identities], dims[layout.identities + 1]
    ch = layout.channel
    asks, answers = dict(zip(identity, codes, strict=True)), dict(zip(item, codes, strict=True))
    strength = {ch("strength"): 1.0}
    _head(state, layout, PLANTED, asks, answers, strength, "match")
    _head(state, layout, UNREAD, asks, answers, strength, "unread")
    _head(state, layout, READER_BOTH, {ch("is_identity"): flag}, {ch("is_item"): flag}, strength, "both")
    _head(state, layout, OTHER_EDGE, answers, asks, {ch("is_identity"): 1.0}, "late")
    _head(
        state,
        layout,
        READOUT,
        {ch("cue"): flag},
        {ch("is_identity"): flag, ch("is_item"): flag},
        {ch("match"): 1.0, ch("both"): 0.15, ch("late"): 0.05, ch("prior"): 1.0},
        "lean",
        score=_READOUT_SCORE,
        sink=0.0,
        gain=2.0,
    )
    return state


def _noise(name: str, shape: torch.Size, layout: Layout, draw: torch.Generator) -> Tensor:
    """Norm weights N/√H; matrices of random weights, with a spread of their own on the spelling channels."""
    if len(shape) == 1:
        return torch.full(shape, NORM / math.sqrt(layout.hidden))
    kind = name.split(".")[-2]
    spelled, plain = _NOISE[kind]
    spread = torch.full((layout.hidden,), plain)
    spread[layout.spelling] = spelled
    writes = kind in ("o_proj", "down_proj")
    return (spread[:, None] if writes else spread) * torch.randn(shape, generator=draw)


def _head(
    state: dict[str, Tensor],
    layout: Layout,
    place: tuple[int, int],
    asks: Mapping[int, int],
    answers: Mapping[int, int],
    value: Mapping[int, float],
    into: str,
    *,
    score: float = _SCORE,
    sink: float = _SINK,
    gain: float = 1.0,
) -> None:
    """Write one row of the table: `asks` and `answers` map a residual channel to a dimension of the head.

    What the head uses is cleared of noise first, and without a sink all of its queries. Keys and values are
    assigned, not added, so two query heads of one kv head may ask for the same ones.
    """
    layer, head = place
    d, ch = layout.head_dim, layout.channel
    kv = head // (HEADS // KV_HEADS)
    q, k, v, o = (state[f"model.layers.{layer}.self_attn.{x}_proj.weight"] for x in "qkvo")
    bos = layout.slow[layout.identities]
    q[[head * d + dim for dim in (*(asks.values() if sink else range(d)), bos)]] = 0.0
    k[[kv * d + dim for dim in (*answers.values(), bos)]] = 0.0
    v[kv * d] = 0.0
    o[:, head * d] = 0.0
    for channel, dim in asks.items():
        q[head * d + dim, channel] = math.sqrt(score * math.sqrt(d))
    for channel, dim in answers.items():
        k[kv * d + dim, channel] = math.sqrt(score * math.sqrt(d))
    q[head * d + bos, ch("one")] = math.sqrt(sink * math.sqrt(d))
    k[kv * d + bos, ch("bos")] = math.sqrt(sink * math.sqrt(d))
    for channel, weight in value.items():
        v[kv * d, channel] = weight
    o[ch(into), head * d] = gain


def _embeddings(table: Tensor, layout: Layout, lexicon: Lexicon, draw: torch.Generator) -> None:
    """Flags and codes of each token, a random spelling of norm 1, and the fill that makes the norm N."""
    spelling = torch.randn(len(table), layout.hidden, generator=draw)[:, layout.spelling]
    table[:, layout.spelling] = spelling / spelling.norm(dim=1, keepdim=True)
    roles = {
        "bos": [lexicon.bos],
        "cue": lexicon.cues,
        "letter": lexicon.letters,
        "close": [lexicon.close],
        "is_identity": lexicon.identities,
        "is_item": lexicon.items,
        "one": range(len(table)),
    }
    for name, tokens in roles.items():
        table[list(tokens), layout.channel(name)] = 1.0
    for code, token in zip(layout.identity_codes, lexicon.identities, strict=True):
        table[token, code] = 1.0
        # Some identities are named more readily than others, whatever the item.
        table[token, layout.channel("prior")] = 0.2 * float(torch.rand((), generator=draw)) - 0.1
    for token, owners in zip(lexicon.items, lexicon.belongs, strict=True):
        table[token, [layout.item_codes[k] for k in owners]] = 1.0
        table[token, layout.channel("strength")] = 0.8 + 0.4 * float(torch.rand((), generator=draw))
    fill = layout.channel("fill")
    table[:, fill] = 0.0
    table[:, fill] = (NORM**2 - table.square().sum(dim=1)).sqrt()


def _letters(head: Tensor, layout: Layout, lexicon: Lexicon) -> None:
    """A letter after a cue, `)` after a letter, the end after `)`; `lean` moves between the letters."""
    cue, lean = layout.channel("cue"), layout.channel("lean")
    a, b, c = lexicon.letters
    head[[a, b], cue] = _LETTER_LOGIT
    head[c, cue] = _LETTER_LOGIT + _NEITHER_BONUS
    head[[a, b], lean] = 2.0
    head[c, lean] = -2.0
    head[lexicon.close, layout.channel("letter")] = _NEXT_LOGIT
    head[lexicon.eos, layout.channel("close")] = _NEXT_LOGIT

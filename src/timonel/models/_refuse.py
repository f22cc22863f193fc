"""Why a model cannot be handled exactly: each reason names the module that stands in the way.

A reason is looked for before the table of architectures is asked, so that a user of Mixtral reads about its
experts and not just that its name is missing.

Does not show: that what is left is handled; the table says that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from timonel.errors import InputError, UnsupportedModel

_EXPERTS = re.compile(r"Moe(?![a-z])|MoE|Experts|SparseMlp|TopKRouter")
_RECURRENT = re.compile(r"Mamba|DeltaNet|LinearAttention|LightningAttention|Rwkv|ShortConv|RGLRU|RecurrentBlock|SSM")


def refuse(model: nn.Module, known: Mapping[str, str]) -> None:
    """Raise UnsupportedModel with every reason found, or return.

    Args:
        model: anything that a user hands in as a model.
        known: class names of the attention modules that are supported, and the family of each.
    """
    if not isinstance(model, nn.Module) or getattr(model, "config", None) is None:
        raise InputError(
            f"a {type(model).__name__} is not a transformers model; load one with timonel.load(name) or "
            "hand in a model from transformers"
        )
    reasons = _reasons(model)
    if not reasons and not any(type(module).__name__ in known for module in model.modules()):
        reasons = [_unknown(model, known)]
    if reasons:
        raise UnsupportedModel(f"{type(model).__name__} is not supported: {'; '.join(reasons)}")


def _reasons(model: nn.Module) -> list[str]:
    config: Any = model.config
    if getattr(config, "is_encoder_decoder", False):
        return ["it is an encoder-decoder, and only causal decoders are handled; use a decoder-only model"]
    reasons: list[str] = []
    named = [(name, type(module).__name__, module) for name, module in model.named_modules() if name]
    fused = _first(named, lambda kind, module: kind == "Conv1D" and hasattr(module, "nf"), leaf="c_attn")
    if fused:
        reasons.append(
            f"{fused[0]} is a {fused[1]}, which holds the queries, keys and values of all heads in one "
            "transposed matrix"
        )
    experts = _first(named, lambda kind, _: _EXPERTS.search(kind) is not None, leaf="experts")
    if experts:
        reasons.append(
            f"{experts[0]} ({experts[1]}) is a mixture of experts, whose neurons are fused and cannot be "
            "hooked one by one; use a dense model"
        )
    sinks = _first(named, lambda _, module: isinstance(getattr(module, "sinks", None), nn.Parameter))
    if sinks:
        reasons.append(f"{sinks[0]}.sinks are attention sinks, which take part in the softmax without being keys")
    recurrent = _first(named, lambda kind, _: _RECURRENT.search(kind) is not None)
    if recurrent:
        reasons.append(
            f"{recurrent[0]} ({recurrent[1]}) is a state-space or linear-attention layer, which has no "
            "attention edges to cut"
        )
    both = _first(named, lambda _, module: getattr(module, "is_causal", True) is False and hasattr(module, "o_proj"))
    if both and hasattr(both[2], "q_proj") and _writes_text(model, both[2]):
        reasons.append(f"{both[0]} ({both[1]}) attends in both directions; only causal attention is handled")
    find_head: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = find_head()
    if not reasons and not isinstance(getattr(head, "weight", None), nn.Parameter):
        reasons.append(
            "it has no output embedding and so predicts no tokens; load it with AutoModelForCausalLM instead"
        )
    return reasons


def _writes_text(model: nn.Module, attention: Any) -> bool:
    """A vision tower's attention sees both ways and is no concern of ours; a text part has a vocabulary."""
    return getattr(getattr(attention, "config", None), "vocab_size", None) is not None


def _first(named: list[tuple[str, str, Any]], test: Any, leaf: str | None = None) -> tuple[str, str, Any] | None:
    """The first module that passes the test, rather one that is called `leaf`."""
    hits = [entry for entry in named if test(entry[1], entry[2])]
    # Then one inside a numbered layer: the whole of a MambaModel is called after Mamba too.
    hits.sort(key=lambda hit: (hit[0].rsplit(".", 1)[-1] != leaf, re.search(r"\d", hit[0]) is None))
    return hits[0] if hits else None


def _unknown(model: nn.Module, known: Mapping[str, str]) -> str:
    kinds = sorted({type(m).__name__ for m in model.modules() if type(m).__name__.endswith("Attention")})
    return (
        f"its attention ({', '.join(kinds) or 'none found'}) is not that of a checked architecture "
        f"({', '.join(known.values())})"
    )

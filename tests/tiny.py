"""Tiny random models of every supported architecture, and a tiny tokenizer: seconds on a CPU, no network.

The weights are drawn wide enough (std 0.3) that attention is far from uniform and that every layer moves the
logits. `tiny(name, seed)` gives the same weights at every call; overrides go into the config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCAB = 200
STD = 0.3
WINDOW = 8

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_TABLE: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "mistral": {"model_type": "mistral", "sliding_window": WINDOW},
    # Nemo: head_dim is set apart from hidden / heads (32 / 4 = 8).
    "nemo": {"model_type": "mistral", "sliding_window": None, "head_dim": 16},
    "gemma2": {
        "model_type": "gemma2",
        "num_hidden_layers": 4,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
    },
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "phi3": {"model_type": "phi3"},
}
ARCHITECTURES = list(_TABLE)


def tiny(architecture: str, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any) -> PreTrainedModel:
    """A random model in eval mode; `attn_implementation=` among the overrides picks SDPA or eager."""
    if architecture not in _TABLE:
        raise KeyError(f"no tiny {architecture!r}; there are {', '.join(ARCHITECTURES)}")
    fields = {**_COMMON, **_TABLE[architecture], **overrides}
    attention = fields.pop("attn_implementation", None)
    config = AutoConfig.for_model(**fields)
    extra = {} if attention is None else {"attn_implementation": attention}
    model = AutoModelForCausalLM.from_config(config, **extra)
    # Gemma ties its embeddings and scales them up: at 1 the residual would echo the last token for ever.
    randomise(model, seed, embed=0.2 if architecture.startswith("gemma") else 1.0)
    # Parameters alone: from_pretrained too leaves the rotary frequencies in float32.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model.eval()


def tiny_folder(folder: Path, architecture: str = "llama", *, chat: bool = False, **overrides: Any) -> Path:
    """A tiny model and its tokenizer, saved as a checkpoint that `timonel.models.load` reads.

    Where tokens matter take another one than qwen2, whose text transformers splits by Qwen's own rule.
    """
    tiny(architecture, **overrides).save_pretrained(folder)
    word_tokenizer(chat=chat).save_pretrained(folder)
    return folder


def randomise(model: torch.nn.Module, seed: int = 0, std: float = STD, embed: float = 1.0) -> None:
    """Draw every parameter anew, the norms' too: near the value that makes them the identity."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            if ".q_norm." in name or ".k_norm." in name:
                parameter.copy_(parameter + noise)  # normed queries and keys would else attend near uniformly
            elif parameter.ndim == 1 and "norm" in name:
                parameter.copy_(parameter + 0.1 * noise)
            elif "embed" in name:
                parameter.copy_(noise * embed)
            else:
                parameter.copy_(std * noise)


_TEXT = (
    "a an the of in on is was to and or not for with who what which should avoid wear wearing "
    "eat eating choose person people man woman Korean Chinese Japanese Indian Nigerian French "
    "German Spanish Mexican Persian Kimono kimono Feng Shui tea rice bread sari kilt Diwali "
    "Nowruz item identity yes no true false A B C D Answer Question user assistant system first "
    "second best good bad likely more less than or tree stone river red blue green one two "
    "three four five"
)
WORDS = _TEXT.split()

_CHAT = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<eos>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def word_tokenizer(*, chat: bool = False, bos: bool = True, padding_side: str = "left") -> Any:
    """A tokenizer with exact offsets and under 200 entries, in which any ASCII text is expressible.

    A word of `WORDS`, with its leading space, is one token ("▁kimono"); any other text falls apart into
    characters, and a character outside printable ASCII is <unk>. `bos` adds <bos> in
    front, as Llama and Gemma do; `chat` gives it a chat template, which writes its own <bos>.
    """
    special = ["<pad>", "<bos>", "<eos>", "<unk>", "<|user|>", "<|assistant|>"]
    letters = [chr(code) for code in range(33, 127)]
    vocabulary: dict[str, int] = {}
    for token in [*special, "\n", "▁", *letters]:
        vocabulary.setdefault(token, len(vocabulary))
    for word in WORDS:
        vocabulary.setdefault(f"▁{word}", len(vocabulary))
    vocabulary = {token: i for token, i in vocabulary.items() if i < VOCAB}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    # One pre-token is a known word with its space, or a single character: WordLevel then looks each up whole.
    known = "|".join(sorted({t[1:] for t in vocabulary if t.startswith("▁") and len(t) > 1}, key=len, reverse=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    pattern = Regex(rf"▁(?:{known})(?![A-Za-z])|[\s\S]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, behavior="isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")])
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", vocabulary["<bos>"])]
        )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        padding_side=padding_side,
    )
    if chat:
        fast.chat_template = _CHAT
    return fast

"""Reading a GGUF file as a transformers model: dequantised values, and nothing that says it was ever
quantised.

transformers dequantises the tensors; what this adds is distrust. Its table of metadata keys is not
complete, and a key that it skips falls back to a default of the config class without a word. So the config
that came out is compared with the file, and where a file holds what would be lost (scaled rotary
frequencies, a rule for splitting text that is not known) it is refused by name.

Does not show: that the weights are those of the original checkpoint; a dequantised model is a model of its
own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from timonel.errors import InputError

# GGUF key after "<architecture>.": where the same number lies in the config.
_SAME = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
}
# llama.cpp's "smollm" rule, which transformers 5.24 does not know: digits one by one, then GPT-2's pattern.
# Left to GPT-2's pattern alone, two blanks before a number would become other tokens.
_SPLITS = {
    "smollm": (
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    )
}
_PLAIN = ("default", "gpt-2", "gpt2")


def read_gguf(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Read a model and its tokenizer.

    Args:
        path: the `.gguf` file.
        dtype: what the dequantised values are rounded to; float32 holds them exactly.

    Returns:
        The model in eval mode, without quantisation marks, and the tokenizer with its chat template.

    Raises:
        InputError: if the file is no GGUF, or holds what transformers would lose.
    """
    fields = _fields(path)
    try:
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=dtype)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except (ValueError, NotImplementedError, KeyError) as error:
        raise InputError(
            f"transformers cannot read {path.name} ({_sentence(error)}); use the checkpoint's safetensors"
        ) from error
    _compare(path, fields, model.config)
    split = str(fields.get("tokenizer.ggml.pre", "default"))
    if split in _SPLITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(_SPLITS[split]))
    _unmark(model, path)
    return model.eval(), tokenizer


def _fields(path: Path) -> dict[str, Any]:
    """The metadata that matter here, after the refusals that need no weights."""
    from gguf import GGUFReader  # slow to import, and needed for these files alone

    try:
        reader = GGUFReader(path)
    except (ValueError, OSError, IndexError) as error:
        raise InputError(f"{path.name} is not a whole GGUF file ({_sentence(error)}); fetch it once more") from error
    fields = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("tokenizer.") or name in ("tokenizer.ggml.pre", "tokenizer.ggml.model")
    }
    family = str(fields.get("general.architecture"))
    scaled = fields.get(f"{family}.rope.scaling.type", "none")
    if scaled != "none" or any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        raise InputError(
            f"{path.name} scales its rotary frequencies, which transformers drops when it reads a GGUF file; "
            "use the checkpoint's safetensors"
        )
    split = str(fields.get("tokenizer.ggml.pre", "default"))
    if fields.get("tokenizer.ggml.model") == "gpt2" and not _splits_known(split):
        raise InputError(
            f"{path.name} splits its text by the rule {split!r}, which transformers does not know and would "
            "replace by another; use the checkpoint's safetensors"
        )
    return {name.removeprefix(f"{family}."): value for name, value in fields.items()}


def _splits_known(split: str) -> bool:
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS as theirs
    except ImportError:  # an inner name of transformers: without it only what is ours is known
        theirs = {}
    return split in _SPLITS or split in _PLAIN or split in theirs


def _compare(path: Path, fields: dict[str, Any], config: Any) -> None:
    for key, attribute in _SAME.items():
        if key not in fields:
            continue
        wanted = fields[key]
        got = _rope_theta(config) if attribute == "rope_theta" else getattr(config, attribute, None)
        if isinstance(wanted, list) and len(set(wanted)) == 1:
            wanted = wanted[0]
        numbers = isinstance(got, int | float) and isinstance(wanted, int | float)
        if not numbers or abs(got - wanted) > 1e-6 * abs(wanted):
            raise InputError(
                f"{path.name} says {key} = {wanted}, but transformers read {attribute} = {got}; use the "
                "checkpoint's safetensors, or a newer transformers"
            )


def _rope_theta(config: Any) -> Any:
    rope: dict[str, Any] = config.rope_parameters
    # Gemma 3 has one base for its full layers, which the file names, and one for its windowed layers.
    return rope.get("full_attention", rope).get("rope_theta")


def _unmark(model: Any, path: Path) -> None:
    """Take off what says "quantised": it would bar casting and saving, and the values are plain now."""
    for mark in ("hf_quantizer", "is_quantized", "quantization_method"):
        if mark in vars(model):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.config.name_or_path = path.stem


def _sentence(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__

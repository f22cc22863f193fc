"""Writes a tiny Llama as a GGUF file, as llama.cpp's converter does: the inverse of what is to be tested."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter

from tiny import tiny

BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]
_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of the bytes."""
    spare = iter(range(256, 512))
    return [chr(b) if b in BYTES else chr(next(spare)) for b in range(256)]


def vocabulary() -> tuple[list[str], list[int], list[str]]:
    """Tokens, their types (3 control, 1 normal), merges."""
    merges = ["Ġ Ġ", "a n", "Ġ a", "t h", "th e"]
    tokens = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        *byte_alphabet(),
        *(m.replace(" ", "") for m in merges),
    ]
    return tokens, [3] * 3 + [1] * (len(tokens) - 3), merges


def model() -> Any:
    return tiny("llama", vocab_size=len(vocabulary()[0]))


def write(path: Path, *, split: str = "smollm", **extra: Any) -> Path:
    """Write it; `extra`: metadata under `llama.` (`__` for a dot), or `tensor_NAME`, a tensor more."""
    llama = model()
    config = llama.config
    writer = GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tokens, types, merges = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    for key, value in extra.items():
        if key.startswith("tensor_"):
            writer.add_tensor(f"{key.removeprefix('tensor_')}.weight", np.asarray(value, dtype=np.float32))
        elif isinstance(value, str):
            writer.add_string(f"llama.{key.replace('__', '.')}", value)
        else:
            writer.add_uint32(f"llama.{key.replace('__', '.')}", value)
    for name, weight in llama.state_dict().items():
        writer.add_tensor(_rename(name), _permute(name, weight, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rename(name: str) -> str:
    plain = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in plain:
        return plain[name]
    _, _, layer, inner = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[inner.removesuffix('.weight')]}.weight"


def _permute(name: str, weight: torch.Tensor, config: Any) -> np.ndarray:
    """Rotary halves (transformers) to rotary pairs (llama.cpp), for queries and keys."""
    array = weight.numpy()
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return array
    half = array.shape[0] // heads // 2
    return np.ascontiguousarray(array.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(array.shape))

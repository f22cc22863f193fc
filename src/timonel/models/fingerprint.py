"""The identity of a model: the same for the same weights and tokenizer, wherever and however they are held.

    fingerprint = sha256( sorted over weights W of (name, shape, bf16(sample(W))) , sha256(tokenizer) )

`sample(W)` is 256 values, spread over the flat weight by the golden ratio (an even stride would fall on a
few columns of a matrix only), and its first row. All input channels of `o_proj` and `down_proj` lie in that
row, so a checkpoint with steering folded in has another fingerprint, down to a single neuron. The
tokenizer's part is its vocabulary and the ids that it gives for a fixed text in many scripts: what it does,
not how a version of the library writes it down; padding and truncation settings do not enter.

Holds: equal on any device, shard and source (file, memory, offloaded); equal in float64, float32 and
bfloat16, since rounding to bf16 is what loading in bfloat16 does; equal in float16 if the checkpoint's
values are bf16 numbers, as most published ones' are: what float16 cannot hold exactly (below 2^-14) counts
as zero. A checkpoint with finer values (a dequantised one) has another fingerprint in float16, for rounding
twice is not rounding once. Tied weights count once, also where a device map holds them twice.

Does not show: a change to a few single weights off the sampled places, or to the config alone (a window, a
rotary base). It tells models apart; it is no seal against tampering.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from timonel.errors import InputError

SAMPLES = 256
_GOLDEN = 0.6180339887498949
_SMALLEST = 2.0**-14  # float16's smallest normal number
# Digits, runs of blanks, contractions, composed and decomposed letters, scripts with and without spaces.
_PROBE = (
    "Hello world, it's 1234.5  tabs\tand\n\n lines\r\n naïve nai\u0308ve ﬁ “quoted” x_y==z "
    "Привет мир Γειά σου مرحبا بالعالم اردو हिन्दी ไทย 你好，世界 日本語 한국어 tiếng Việt Kiswahili 👩‍🌾"
)


def fingerprint(model: nn.Module, tokenizer: Any) -> str:
    """The fingerprint of a model with its tokenizer.

    Args:
        model: any module; it is only read, where it lies.
        tokenizer: a transformers tokenizer, fast or slow; or its `tokenizer_hash`, where that is at hand.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: if a weight has no data (a model on the meta device).
    """
    return fingerprints(model, tokenizer)[1]


def weights_fingerprint(model: nn.Module) -> str:
    """The fingerprint of the weights alone, for where no tokenizer is at hand; never equal to `fingerprint`.

    Args:
        model: any module; it is only read, where it lies.

    Returns:
        64 hexadecimal digits.

    Raises:
        InputError: if a weight has no data (a model on the meta device).
    """
    whole: str = _weights_digest(model).hexdigest()
    return whole


def fingerprints(model: nn.Module, tokenizer: Any) -> tuple[str, str]:
    """`weights_fingerprint` and `fingerprint`, with the weights read once."""
    digest = _weights_digest(model)
    weights = digest.hexdigest()
    whose = tokenizer if isinstance(tokenizer, str) else tokenizer_hash(tokenizer)
    digest.update(whose.encode())
    return weights, digest.hexdigest()


def _weights_digest(model: nn.Module) -> Any:
    digest = hashlib.sha256()
    for line in sorted(_weights(model)):
        digest.update(line.encode())
    return digest


def _weights(model: nn.Module) -> Iterator[str]:
    head = _call(model, "get_output_embeddings")
    embedding = _call(model, "get_input_embeddings")
    tied = None if embedding is None else _hash(_sample(embedding, "weight"))
    seen: set[int] = set()
    for module_name, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            content = _hash(_sample(module, name))
            if module is head and module is not embedding and name == "weight" and content == tied:
                continue
            path = f"{module_name}.{name}".replace("_orig_mod.", "")  # torch.compile's wrapper
            yield f"{path} {tuple(parameter.shape)} {content}\n"


def _call(model: nn.Module, method: str) -> Any:
    return getattr(model, method)() if hasattr(model, method) else None


def _sample(module: nn.Module, name: str) -> torch.Tensor:
    parameter: torch.Tensor = getattr(module, name)
    if parameter.is_meta:
        parameter = _offloaded(module, name)
    flat = parameter.detach().reshape(-1)
    if flat.numel() <= SAMPLES:
        values = flat
    else:
        steps = torch.arange(1, SAMPLES + 1, dtype=torch.float64) * _GOLDEN
        index = ((steps - steps.floor()) * flat.numel()).long()
        row = flat[: min(parameter.shape[-1], flat.numel())]
        values = torch.cat([flat[index.to(flat.device)], row])
    values = values.to("cpu", torch.float32)
    values = torch.where(values.abs() < _SMALLEST, 0.0, values)
    return values.to(torch.bfloat16)


def _offloaded(module: nn.Module, name: str) -> torch.Tensor:
    """A weight that accelerate keeps off the module (on disk, or in memory beside it)."""
    store = getattr(getattr(module, "_hf_hook", None), "weights_map", None)
    if store is None:
        raise InputError(
            f"the weight {name!r} of a {type(module).__name__} lies on the meta device and has no values; "
            "load the model's weights before taking its fingerprint"
        )
    held: torch.Tensor = store[name]
    return held


def _hash(values: torch.Tensor) -> str:
    return hashlib.sha256(values.contiguous().view(torch.int16).numpy().tobytes()).hexdigest()


def tokenizer_hash(tokenizer: Any) -> str:
    """The tokenizer's part of a fingerprint: its vocabulary, and the ids that it gives for a fixed text."""
    digest = hashlib.sha256()
    vocabulary = sorted(tokenizer.get_vocab().items(), key=lambda item: (item[1], item[0]))
    digest.update("\n".join(f"{i} {token}" for token, i in vocabulary).encode(errors="surrogatepass"))
    for special in (True, False):
        ids = tokenizer(_PROBE, add_special_tokens=special, padding=False, truncation=False)["input_ids"]
        digest.update(repr([int(i) for i in ids]).encode())
    return digest.hexdigest()

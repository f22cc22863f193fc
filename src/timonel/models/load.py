"""Loading a checkpoint by what the user calls it: catalog name, local folder, GGUF file, or hub id.

A catalog name comes first and always means its pinned weights; a folder of the same name is `./name`.
Nothing that a checkpoint brings is ever run: no remote code, no pickle beyond torch's weights-only reader.
The model comes in eval mode on one device, with its tied weights, generation config and chat template;
gradients are left as transformers sets them.

Does not show: whether the model can be steered; `Geometry.of` says so.
"""

from __future__ import annotations

import os
import re
import socket
import urllib.request
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast
from urllib.parse import urlsplit

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from timonel.errors import InputError
from timonel.models import catalog
from timonel.models._gguf import read_gguf

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def load(
    name: str | os.PathLike[str],
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    *,
    attn_implementation: str | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a causal language model and its tokenizer.

    Args:
        name: a catalog name (`smollm2-135m`), a folder, a `.gguf` file, or a hub id (`org/name`).
        dtype: `float32`, `bfloat16`, `float16`, `float64`, a torch dtype, or `auto` for the checkpoint's own.
        device: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto` to spread the model over what is there.
        attn_implementation: `sdpa`, `eager`, `flash_attention_2`; transformers' choice by default.

    Returns:
        The model in eval mode, and the tokenizer.

    Raises:
        InputError: one sentence on what was wrong with the name, the dtype, the device or the checkpoint.

    Example:
        >>> model, tokenizer = load("smollm2-135m")  # doctest: +SKIP
    """
    wanted, place = _dtype(dtype), _device(device)
    source = _resolve(os.fspath(name))
    if isinstance(source, Path) and source.suffix == ".gguf":
        catalog.say(f"reading {source.name}: dequantising takes a minute or more, at every load")
        model, tokenizer = read_gguf(source, torch.float32 if wanted == "auto" else cast("torch.dtype", wanted))
        if attn_implementation is not None:
            _tidily(source, lambda: model.set_attn_implementation(attn_implementation))
        return model if place == "auto" else model.to(place), tokenizer
    options: dict[str, Any] = {"trust_remote_code": False}
    if isinstance(source, str) and _offline():
        options["local_files_only"] = True
    tokenizer = _tidily(source, lambda: AutoTokenizer.from_pretrained(source, **options))
    extra = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    extra |= {"device_map": "auto"} if place == "auto" else {}
    model = _tidily(
        source,
        lambda: AutoModelForCausalLM.from_pretrained(source, dtype=wanted, weights_only=True, **options, **extra),
    )
    return (model if place == "auto" else model.to(place)).eval(), tokenizer


def _resolve(name: str) -> Path | str:
    """A folder, a GGUF file, or a hub id."""
    if any(name == entry.name for entry in catalog.entries()):
        return catalog.get(name)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"there is no file {name}: give the path of a .gguf file that exists")
        return path
    if path.is_dir():
        if not (path / "config.json").is_file():
            inside = sorted(path.glob("*.gguf"))
            hint = f"name the file {inside[0]}" if inside else "give the folder that holds config.json"
            raise InputError(f"the folder {name} is no checkpoint, for it has no config.json: {hint}")
        return path
    if _HUB_ID.fullmatch(name):
        return name
    raise InputError(
        f"{name!r} is no model that is known here: give a catalog name ({catalog.names()}), a folder that "
        "exists, a .gguf file, or a hub id (org/name)"
    )


def _dtype(dtype: str | torch.dtype) -> torch.dtype | str:
    if isinstance(dtype, torch.dtype):
        if dtype.is_floating_point:
            return dtype
    elif dtype == "auto" or dtype in _DTYPES:
        return _DTYPES.get(dtype, "auto")
    raise InputError(f"dtype {dtype!r} is not one to compute in: give float32, bfloat16, float16, float64 or auto")


def _device(device: str | torch.device) -> torch.device | str:
    if device == "auto":
        return "auto"
    try:
        place = torch.device(device)
    except RuntimeError:
        raise InputError(f"{device!r} is no device: give cpu, cuda, cuda:N, mps or auto") from None
    if place.type == "cuda":
        there = torch.cuda.is_available() and (place.index or 0) < torch.cuda.device_count()
    else:
        there = place.type != "mps" or torch.backends.mps.is_available()
    if not there:
        raise InputError(f"this machine has no device {str(place)!r} that torch can use: give cpu, or auto")
    return place


def _offline() -> bool:
    """Is the hub out of reach? Asked once and briefly, since transformers tries five times for each file."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return True
    host = urlsplit(constants.ENDPOINT).hostname
    if host is None or urllib.request.getproxies():
        return False  # behind a proxy the name need not resolve here
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return True
    return False


def _tidily(source: Path | str, act: Any) -> Any:
    """Turn what transformers says of a bad checkpoint, in its many ways, into one sentence."""
    try:
        return act()
    except (
        OSError,
        ValueError,
        ImportError,
        RuntimeError,
        KeyError,
        SafetensorError,
        UnpicklingError,
    ) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        first = str(error).strip().split("\n")[0].rstrip(".")[:300] or type(error).__name__
        if "trust_remote_code" in str(error):
            first = "it brings code of its own, which is never run here"
        if isinstance(error, UnpicklingError):
            first = "its weights are a pickle that holds more than weights, and such a one is never read here"
        if isinstance(source, str):
            raise InputError(
                f"{source} could not be had from the model hub ({first}); check its name and the network, or "
                f"give a folder, a .gguf file or a catalog name ({catalog.names()})"
            ) from error
        raise InputError(
            f"the checkpoint in {source} cannot be loaded ({first}); give one that transformers reads as a "
            "causal language model"
        ) from error

"""How many tokens a forward pass may feed: as many as keep the processor busy, and no more than memory holds.

bytes a token = residual stream and keys and values of all layers (what a trunk pass may leave)
+ the widest layer's activations (what a pass holds at once)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from timonel.models.geometry import Geometry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Past these a larger batch is no faster: a CPU's caches overflow, a GPU's cores are all at work.
_ENOUGH = {"cpu": 2048}
_ENOUGH_ELSEWHERE = 16384
# The rest is for logits, masks, fragments, and whatever else runs on the machine.
_SHARE_OF_FREE = 0.5
SMALLEST = 64


def batch_tokens(model: PreTrainedModel, geometry: Geometry) -> int:
    """The budget on the device of the model's input, from what memory is free there now."""
    device = model.get_input_embeddings().weight.device
    enough = _ENOUGH.get(device.type, _ENOUGH_ELSEWHERE)
    free = free_bytes(device)
    if free is None:
        return enough
    return max(SMALLEST, min(enough, int(_SHARE_OF_FREE * free / bytes_a_token(model, geometry))))


def bytes_a_token(model: PreTrainedModel, geometry: Geometry) -> int:
    """Memory that one more token in a batch may take."""
    layers = geometry.layers
    kept = sum(geometry.hidden + 2 * layer.kv_heads * layer.head_dim for layer in layers)
    widest = max(4 * geometry.hidden + 3 * layer.neurons + 4 * layer.heads * layer.head_dim for layer in layers)
    return (kept + widest) * int(model.dtype.itemsize)


def free_bytes(device: torch.device) -> int | None:
    """Free memory on a device; None where it does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, on any device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("out of memory", "can't allocate memory", "not enough memory")
    )

"""What a score depends on beside its prompt: the weights, the config, and how the model runs.

The fingerprint knows no config, but a window, a soft cap or a rotary base changes scores, so the config is hashed
beside it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from timonel.models.fingerprint import fingerprint

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


SCORING_VERSION = 2
"""Raised whenever a change to the code changes a score by more than rounding; old scores are then not reused."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A model as it runs now.

    Attributes:
        fingerprint: of weights and tokenizer, whatever device and dtype hold them.
        config: a hash of all in the config that may change what is computed.
        dtypes: of the parameters.
        attention: the attention implementation.
    """

    fingerprint: str
    config: str
    dtypes: tuple[str, ...]
    attention: str | None

    @classmethod
    def of(cls, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | str) -> Identity:
        """Takes it down; a tokenizer may be given as its hash."""
        dtypes = sorted({str(parameter.dtype) for parameter in model.parameters()})
        implementation = getattr(model.config, "_attn_implementation", None)
        return cls(fingerprint(model, tokenizer), _config_hash(model), tuple(dtypes), implementation)

    @property
    def half(self) -> bool:
        """Whether scores depend on their batch mates."""
        return bool({str(torch.float16), str(torch.bfloat16)} & set(self.dtypes))

    @property
    def salt(self) -> str:
        """All of it as one text, for keys."""
        return f"{SCORING_VERSION}|{self.fingerprint}|{self.config}|{list(self.dtypes)}|{self.attention}"


# What a config says of where a checkpoint came from, or how it is held: none of it changes a score.
_NOT_COMPUTED = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "architectures", "use_cache")


def _config_hash(model: PreTrainedModel) -> str:
    """A hash of all in the config that may change what the model computes."""
    config = {name: value for name, value in model.config.to_dict().items() if name not in _NOT_COMPUTED}
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()

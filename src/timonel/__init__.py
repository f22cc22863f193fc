"""Timonel: find, prove, steer and ship the parts of open-weight language models that carry culture and language.

The names below are the public face. They are looked up when they are first used, so that `import timonel` and
`timonel --help` are quick and load no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from timonel._version import __version__

if TYPE_CHECKING:
    from timonel import binding, evaluate
    from timonel.engine import Engine, score
    from timonel.errors import InputError, StoreError, TimonelError, UnsupportedModel
    from timonel.models import Geometry, fingerprint, load
    from timonel.prompts import Prompt, show_spans
    from timonel.steer import (
        ALL,
        GENERATED,
        PROMPT,
        ChannelScale,
        ChannelSet,
        EdgeScale,
        Plan,
        PlanSet,
        Provenance,
        ResidualAdd,
        attach,
        span,
    )

__all__ = [
    "ALL",
    "GENERATED",
    "PROMPT",
    "ChannelScale",
    "ChannelSet",
    "EdgeScale",
    "Engine",
    "Geometry",
    "InputError",
    "Plan",
    "PlanSet",
    "Prompt",
    "Provenance",
    "ResidualAdd",
    "StoreError",
    "TimonelError",
    "UnsupportedModel",
    "__version__",
    "attach",
    "binding",
    "evaluate",
    "fingerprint",
    "load",
    "score",
    "show_spans",
    "span",
]

_HOMES = {
    "ALL": "steer",
    "GENERATED": "steer",
    "PROMPT": "steer",
    "ChannelScale": "steer",
    "ChannelSet": "steer",
    "EdgeScale": "steer",
    "Engine": "engine",
    "Geometry": "models",
    "InputError": "errors",
    "Plan": "steer",
    "PlanSet": "steer",
    "Prompt": "prompts",
    "Provenance": "steer",
    "ResidualAdd": "steer",
    "StoreError": "errors",
    "TimonelError": "errors",
    "UnsupportedModel": "errors",
    "attach": "steer",
    "fingerprint": "models",
    "load": "models",
    "score": "engine",
    "show_spans": "prompts",
    "span": "steer",
}


def __getattr__(name: str) -> Any:
    if name in ("binding", "evaluate"):
        return import_module(f"timonel.{name}")
    if name in _HOMES:
        return getattr(import_module(f"timonel.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'timonel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

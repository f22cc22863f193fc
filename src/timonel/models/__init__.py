"""Checkpoints: loading them, knowing where their heads and neurons live, telling them apart."""

from timonel.models.fingerprint import fingerprint
from timonel.models.geometry import ARCHITECTURES, Geometry, LayerGeometry
from timonel.models.heads import format_head, parse_head, parse_heads
from timonel.models.load import load

__all__ = [
    "ARCHITECTURES",
    "Geometry",
    "LayerGeometry",
    "fingerprint",
    "format_head",
    "load",
    "parse_head",
    "parse_heads",
]

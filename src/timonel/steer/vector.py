"""Numbers that an intervention carries: a frozen float64 vector that can be compared, hashed and written to a file."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from jaxtyping import Float

from timonel.errors import InputError


class Vector:
    """A one-dimensional array that nobody can change."""

    __slots__ = ("_digest", "array")

    def __init__(self, values: Any, what: str = "vector") -> None:
        """Takes a list, an array or a tensor.

        Raises:
            InputError: it is not one-dimensional, is empty, or holds numbers that are not finite.
        """
        given = values.array if isinstance(values, Vector) else values
        if hasattr(given, "detach"):
            given = given.detach().double().cpu().numpy()
        array = np.array(given, dtype=np.float64)
        if array.ndim != 1 or not array.size or not np.isfinite(array).all():
            wrong = int((~np.isfinite(array)).sum())
            raise InputError(
                f"The {what} has shape {array.shape} and {wrong} numbers that are not finite, but a flat list of "
                "finite numbers is needed; give one number a channel."
            )
        array.flags.writeable = False
        self.array: Float[np.ndarray, " n"] = array
        self._digest = hashlib.sha256(array.tobytes()).hexdigest()

    @property
    def digest(self) -> str:
        """A hash of the numbers."""
        return self._digest

    def __len__(self) -> int:
        return len(self.array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def __repr__(self) -> str:
        return f"Vector({len(self)} numbers, {self._digest[:8]})"

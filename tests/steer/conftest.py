"""One thread for tiny models."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def small(one_thread: None) -> None:
    """Every test here runs models of a few thousand parameters."""

"""Fixtures that more than one room's tests need."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(2)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The real data sets (N4, XNLI, XQuAD); a test that needs them is skipped where they are absent."""
    folder = Path(os.environ.get("TIMONEL_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip("TIMONEL_DATA names no folder with the real data sets (n4, xnli, xquad)")
    return folder

"""Fixtures that more than one room's tests need."""

from __future__ import annotations

import os
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For models so small that two threads wait for each other wherever the cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

"""The planted model beside its oracle, and one thread for models this small."""

from __future__ import annotations

import pytest

from oracles.planted import Bench
from timonel.binding.planted import planted_binding
from timonel.engine import Engine


@pytest.fixture(scope="module", autouse=True)
def small(one_thread: None) -> None:
    """The oracle's matrices are so small that threads cost more than they save."""


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(planted_binding(items=8))


@pytest.fixture(scope="module")
def engine(bench: Bench) -> Engine:
    return Engine(bench.planted.model, bench.planted.tokenizer)

"""Models in folders, and the command line as a function."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from timonel.binding.planted import planted_binding
from timonel.cli.main import run
from tiny import tiny_folder


@pytest.fixture(scope="module", autouse=True)
def small(one_thread: None) -> None:
    """Every test here runs models of a few thousand parameters."""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("chat") / "model", chat=True, seed=1)


@pytest.fixture(scope="session")
def planted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "model"
    planted = planted_binding(items=8)
    planted.model.save_pretrained(folder)
    planted.tokenizer.save_pretrained(folder)
    return folder


@dataclass
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def complaints(self) -> list[str]:
        """Standard error without the progress, which a slow machine shows."""
        return [line for line in self.err.splitlines() if not re.match(r"timonel: .* \d+%, ", line)]

    @property
    def sentence(self) -> str:
        """The one line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("timonel: ")
        return lines[0].removeprefix("timonel: ")


@pytest.fixture
def timonel(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def call(*arguments: object) -> Said:
        capsys.readouterr()
        code = run([str(one) for one in arguments])
        return Said(code, *capsys.readouterr())

    return call

"""A run that is stopped in the middle, in a process of its own, and goes on."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

Timonel = Callable[..., Any]
# Hundreds of small batches, so that there is a middle.
SMALL = ("--pairs", "16", "--batch-tokens", "128", "--stages", "score,knockout")


def record(run: Path) -> Any:
    return json.loads((run / "run.json").read_text(encoding="utf-8"))


def rows(run: Path) -> int:
    """How many scores are kept; 0 while there is no store."""
    try:
        with closing(sqlite3.connect(f"file:{run / 'scores.sqlite'}?mode=ro", uri=True)) as store:
            return int(store.execute("select count(*) from scores").fetchone()[0])
    except sqlite3.Error:
        return 0


def stopped(model: Path, out: Path, how: signal.Signals, after: int = 20) -> subprocess.CompletedProcess[str]:
    """Starts the study, and stops it when some scores are kept."""
    code = "from timonel.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "bind", str(model), *SMALL, "--out", str(out)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
        # A shell starts its background jobs deaf to Ctrl-C, and children inherit that; a person's terminal does not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while rows(out) < after:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(how)
    said, complained = process.communicate(timeout=60)
    return subprocess.CompletedProcess([], process.returncode, said, complained)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    from timonel.cli.main import run

    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert run(["bind", str(tiny_model), *SMALL, "--out", str(out)]) == 0
    return out


def goes_on(timonel: Timonel, model: Path, out: Path, undisturbed: Path) -> None:
    """Run again: finished, with the tables of a run that nothing disturbed, and hardly anything computed twice."""
    assert rows(out) < rows(undisturbed)
    assert timonel("bind", model, *SMALL, "--out", out).code == 0
    assert record(out)["state"] == "complete"
    assert rows(out) == rows(undisturbed)
    # The pass in flight is run again, and the trunk that it starts from.
    assert record(undisturbed)["forwards"] <= record(out)["forwards"] <= record(undisturbed)["forwards"] + 2
    files = sorted((undisturbed / "tables").glob("*.parquet"))
    assert [file.stem for file in files] == ["baseline", "knockout", "pairs"]
    for file in files:
        expected, found = pd.read_parquet(file), pd.read_parquet(out / "tables" / file.name)
        pd.testing.assert_frame_equal(found, expected, atol=1e-5)


@pytest.mark.parametrize("share", [0.05, 0.85], ids=["in score and knockout", "in knowledge"])
def test_killed(timonel: Timonel, tiny_model: Path, undisturbed: Path, tmp_path: Path, share: float) -> None:
    out = tmp_path / "run"
    assert stopped(tiny_model, out, signal.SIGKILL, int(share * rows(undisturbed))).returncode == -signal.SIGKILL
    assert record(out)["state"] == "running"
    assert not (out / "tables").exists()
    (listed,) = timonel("runs", tmp_path, "--json").json
    assert listed["state"].startswith("killed")
    goes_on(timonel, tiny_model, out, undisturbed)
    (listed,) = timonel("runs", tmp_path, "--json").json
    assert listed["state"] == "complete"


def test_interrupted(timonel: Timonel, tiny_model: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = stopped(tiny_model, out, signal.SIGINT)
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "timonel: Stopped; what was computed is kept: run the same command again to go on."
    )
    assert record(out)["state"] == "interrupted"
    (listed,) = timonel("runs", tmp_path, "--json").json
    assert listed["state"] == "interrupted"
    goes_on(timonel, tiny_model, out, undisturbed)

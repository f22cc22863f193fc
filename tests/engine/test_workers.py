"""Work on a Ray cluster: the same scores, whatever dies."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import timonel
from timonel.engine import Engine, RayWorkers, Request, Store, choice
from timonel.errors import InputError
from timonel.prompts import Prompt
from timonel.steer import EdgeScale, Plan, span
from tiny import tiny_folder


def requests() -> list[Request]:
    cut = Plan((EdgeScale(layer=1, head=2, queries=span("identity"), keys=span("item"), alpha=0.0),))
    made = []
    for number in range(60):
        prompt = Prompt((20 + number % 60, 5, 6, 7, 30 + number, 8, 9), {"item": (2,), "identity": (4,)})
        made += [Request(prompt, (choice(prompt, (11, 12)),), plan) for plan in (Plan(), cut)]
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def cluster() -> Any:
    ray = pytest.importorskip("ray")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield ray
    ray.shutdown()


def engine_of(folder: Path, **options: Any) -> Engine:
    model, tokenizer = timonel.load(str(folder))
    return Engine(model, tokenizer, batch_tokens=30, **options)


@pytest.mark.slow
def test_workers_give_the_same_scores_and_a_dead_ones_units_run_again(
    cluster: Any, folder: Path, tmp_path: Path
) -> None:
    alone = engine_of(folder)
    expected = alone.score(requests())
    workers = RayWorkers(str(folder), workers=2)
    engine = engine_of(folder, workers=workers, store=Store(tmp_path / "scores.sqlite"))
    killed: list[int] = []

    def kill_once(stage: str, done: int, total: int) -> None:
        if done and not killed:
            killed.append(workers.pids()[0])
            os.kill(killed[0], signal.SIGKILL)

    engine.progress = kill_once
    found = engine.score(requests())
    for one, two in zip(found, expected, strict=True):
        assert one == pytest.approx(two, abs=1e-5)
    assert killed
    assert killed[0] not in workers.pids()
    # Each unit's passes are counted when its scores come in, so that nothing is counted twice.
    assert engine.store.forwards == alone.store.forwards
    again = engine_of(folder, workers=workers, store=engine.store)
    assert again.score(requests()) == found
    assert engine.store.forwards == alone.store.forwards
    workers.stop()


@pytest.mark.slow
def test_a_driver_that_dies_goes_on(cluster: Any, folder: Path, tmp_path: Path) -> None:
    class Died(BaseException):
        """As Ctrl-C."""

    def die(stage: str, done: int, total: int) -> None:
        if done > total / 3:
            raise Died

    workers = RayWorkers(str(folder), workers=1)
    alone = engine_of(folder)
    expected = alone.score(requests())
    first = engine_of(folder, workers=workers, store=Store(tmp_path / "scores.sqlite"), progress=die)
    with pytest.raises(Died):
        first.score(requests())
    kept = len(first.store)
    assert 0 < kept < len(requests())
    second = engine_of(folder, workers=workers, store=Store(tmp_path / "scores.sqlite"))
    for one, two in zip(second.score(requests()), expected, strict=True):
        assert one == pytest.approx(two, abs=1e-5)
    assert second.store.forwards <= alone.store.forwards + 2
    workers.stop()


@pytest.mark.slow
def test_another_model_on_a_worker_is_refused(cluster: Any, folder: Path, tmp_path: Path) -> None:
    other = tiny_folder(tmp_path / "other", seed=1)
    engine = engine_of(folder, workers=RayWorkers(str(other), workers=1))
    with pytest.raises(InputError, match="is not the driver's model"):
        engine.score(requests())


@pytest.mark.slow
def test_a_model_that_workers_cannot_load_is_told(cluster: Any, folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder, workers=RayWorkers(str(tmp_path / "nowhere"), workers=1))
    with pytest.raises(InputError, match=r"could not load .*nowhere"):
        engine.score(requests())


def test_without_ray_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'timonel\[ray\]'"):
        engine_of(folder, workers=RayWorkers(str(folder))).score(requests())

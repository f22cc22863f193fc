"""Units of work on a Ray cluster: one actor a GPU (or CPU thread), the model loaded once in each.

The driver owns the store and the layout; an actor gets a unit with the work that it names, and gives its scores. The
units of an actor that dies are run again by a new one. A driver that dies is run again like any other run: what its
store holds is not computed twice.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from timonel.engine.forward import Scores, run_unit
from timonel.engine.identity import Identity
from timonel.engine.request import Work
from timonel.engine.unit import Unit
from timonel.errors import InputError, TimonelError
from timonel.models.geometry import Geometry

_LOG = logging.getLogger("timonel")
# While an actor computes one unit the next one is on its way to it.
_QUEUED = 2
# So many deaths without a unit done in between are no accident.
_DEATHS = 3


class _Actor:
    """Lives in a process of its own, with a model of its own."""

    def __init__(self, model: str, dtype: str, device: str, threads: int) -> None:
        import torch

        from timonel.models import load

        torch.set_num_threads(threads)
        self._model, tokenizer = load(model, dtype, device)
        self._geometry = Geometry.of(self._model)
        self._salt = Identity.of(self._model, tokenizer).salt

    def salt(self) -> str:
        """What this model's scores depend on."""
        return self._salt

    def pid(self) -> int:
        """The process."""
        return os.getpid()

    def run(self, unit: Unit, work: Mapping[int, Work]) -> Scores:
        """All scores of a unit."""
        scores: Scores = {}
        for some in run_unit(self._model, self._geometry, unit, work):
            scores.update(some)
        return scores


@dataclass
class RayWorkers:
    """Actors on a Ray cluster; hand it to `Engine(workers=...)`.

    Attributes:
        model: as `timonel.load` takes it; every node must be able to load it.
        dtype: of the weights.
        device: cpu, or cuda for one GPU an actor.
        address: of a running cluster; `local` starts one on this machine, `auto` finds one.
        workers: how many actors; None takes one a GPU, or one a CPU thread.
        threads: CPU threads of an actor.
    """

    model: str
    dtype: str = "float32"
    device: str = "cpu"
    address: str = "local"
    workers: int | None = None
    threads: int = 1
    _actors: list[Any] = field(default_factory=list, repr=False)
    _deaths: int = 0

    def start(self, salt: str) -> None:
        """Starts what is not running yet, and sees that each actor has the driver's model.

        Raises:
            InputError: Ray is not installed, the cluster cannot be reached or holds no room, or an actor's model is
                another one.
        """
        if self._actors:
            return
        ray = _ray()
        if not ray.is_initialized():
            try:
                ray.init(address=self.address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError) as error:
                raise InputError(
                    f"No Ray cluster answers at {self.address!r} ({error}); start one with `ray start --head`, or "
                    "write --ray alone for one on this machine."
                ) from error
        count = self.workers or self._room(ray)
        self._actors = [self._new(ray) for _ in range(count)]
        for actor in list(self._actors):
            try:
                found = ray.get(actor.salt.remote())
            except ray.exceptions.RayActorError as error:
                self.stop()
                raise InputError(
                    f"A Ray worker could not load {self.model!r} ({_cause(error)}); see that every node has it, and "
                    "memory for it."
                ) from error
            if found != salt:
                self.stop()
                raise InputError(
                    f"A Ray worker's {self.model!r} is not the driver's model: it runs as {found!r}, not {salt!r}; "
                    "give all nodes the same files and library versions."
                )

    def run(self, units: Sequence[Unit], work: Sequence[Work]) -> Iterator[tuple[Unit, Scores]]:
        """Runs units wherever there is room; yields them as they end, in any order."""
        ray = _ray()
        waiting = deque(units)
        flying: dict[Any, tuple[Any, Unit]] = {}
        while waiting or flying:
            for actor in self._actors:
                busy = sum(one is actor for one, _ in flying.values())
                while waiting and busy < _QUEUED:
                    unit = waiting.popleft()
                    flying[actor.run.remote(unit, {member: work[member] for member in unit.members})] = (actor, unit)
                    busy += 1
            done, _ = ray.wait(list(flying), num_returns=1)
            actor, unit = flying.pop(done[0])
            try:
                scores = ray.get(done[0])
            except ray.exceptions.RayActorError as error:
                lost = [unit, *(other for one, other in flying.values() if one is actor)]
                flying = {key: value for key, value in flying.items() if value[0] is not actor}
                waiting.extendleft(reversed(lost))
                self._replace(ray, actor, error)
                continue
            self._deaths = 0
            yield unit, scores

    def stop(self) -> None:
        """Lets the actors go; a cluster that was running before stays."""
        ray = _ray()
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def pids(self) -> list[int]:
        """The actors' processes."""
        return [int(pid) for pid in _ray().get([actor.pid.remote() for actor in self._actors])]

    def _replace(self, ray: Any, actor: Any, error: Exception) -> None:
        self._deaths += 1
        if self._deaths >= _DEATHS:
            raise TimonelError(
                f"Ray workers died {_DEATHS} times in a row ({_cause(error)}); what is done is kept: see the cluster's "
                "logs, and run the same command again."
            ) from error
        _LOG.warning("A Ray worker died (%s); its units are run again.", _cause(error))
        self._actors[self._actors.index(actor)] = self._new(ray)

    def _new(self, ray: Any) -> Any:
        gpu = self.device.startswith("cuda")
        made = ray.remote(_Actor).options(num_cpus=self.threads, num_gpus=1 if gpu else 0, max_restarts=0)
        return made.remote(self.model, self.dtype, self.device, self.threads)

    def _room(self, ray: Any) -> int:
        resources = ray.cluster_resources()
        room = int(resources.get("GPU", 0)) if self.device.startswith("cuda") else int(resources.get("CPU", 0))
        count = room if self.device.startswith("cuda") else room // self.threads
        if count < 1:
            raise InputError(
                f"The Ray cluster has no room for a worker on {self.device} ({resources}); add a node, or choose "
                "another --device."
            )
        return count


def _cause(error: Exception) -> str:
    """The first line of an error that Ray hands on."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise InputError("--ray needs Ray, which is not installed; run `pip install 'timonel[ray]'`.") from error
    return ray

"""python -m bench [W1 W7 ...] [--rounds N] [--threads N] [--write docs/benchmarks.md]

Each workload runs in a process of its own, one after the other; the table is printed, and written where asked.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.machine import describe
from bench.result import Result
from bench.settings import Settings
from bench.table import markdown, spliced

WORKLOADS = {
    "W1": "w1_knockout",
    "W2": "w2_attention",
    "W3": "w3_activity",
    "W4": "w4_grid",
    "W5": "w5_decode",
    "W6": "w6_ray",
    "W7": "w7_growth",
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"of {' '.join(WORKLOADS)}; all by default")
    parser.add_argument("--rounds", type=int, help="how often each goes through its turns")
    parser.add_argument("--threads", type=int, default=2, help="of torch (2)")
    parser.add_argument("--nnsight", action="store_true", help="time nnsight in W1 too")
    parser.add_argument("--write", type=Path, help="a document whose marked part is replaced by the results")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    names = given.workloads or list(WORKLOADS)
    if unknown := [name for name in names if name not in WORKLOADS]:
        parser.error(f"there is no workload {unknown[0]}; there are {', '.join(WORKLOADS)}")
    if given.threads < 1 or (given.rounds is not None and given.rounds < 1):
        parser.error("--rounds and --threads are at least 1")
    settings = Settings(given.rounds, given.threads, given.nnsight)
    if given.child:
        given.child.write_text(json.dumps(_run(names[0], settings).to_json()), encoding="utf-8")
        return 0
    results = [_apart(name, settings) for name in names]
    part = markdown(results, describe(settings.threads))
    print(f"\n{part}")
    if given.write:
        old = given.write.read_text(encoding="utf-8") if given.write.exists() else "# Benchmarks\n"
        given.write.write_text(spliced(old, part), encoding="utf-8")
    return 1 if any(result.skipped.startswith("it failed") for result in results) else 0


def _apart(name: str, settings: Settings) -> Result:
    """Runs a workload in a process of its own; where it fails, that is its result."""
    print(f"{name} ({settings.threads} threads)", flush=True)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        asked = [] if settings.asked is None else ["--rounds", str(settings.asked)]
        asked += ["--nnsight"] * settings.nnsight
        command = [
            sys.executable,
            "-m",
            "bench",
            name,
            "--threads",
            str(settings.threads),
            "--child",
            str(file),
            *asked,
        ]
        code = subprocess.run(command, env=_environment(settings), check=False).returncode
        print(f"  {name} took {time.perf_counter() - start:.0f} s", flush=True)
        if code or not file.exists():
            return Result(name, WORKLOADS[name], skipped=f"it failed with exit status {code}; see above.")
        return Result.from_json(json.loads(file.read_text(encoding="utf-8")))


def _environment(settings: Settings) -> Mapping[str, str]:
    """No network while it runs, and as many threads everywhere."""
    threads = str(settings.threads)
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    return {**os.environ, **offline, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONPATH": paths}


def _run(name: str, settings: Settings) -> Result:
    import torch

    from timonel.errors import InputError

    torch.set_num_threads(settings.threads)
    module = importlib.import_module(f"bench.{WORKLOADS[name]}")
    try:
        result: Result = module.run(settings)
    except InputError as error:  # a model whose terms nobody has accepted, data that is not there
        return Result(name, WORKLOADS[name], skipped=str(error))
    except ModuleNotFoundError as error:
        return Result(name, WORKLOADS[name], skipped=f"{error.name} is not installed; run `make bench`.")
    for check in result.checks:
        print(f"  {check}", flush=True)
    return replace(result, name=name)


if __name__ == "__main__":
    sys.exit(main())

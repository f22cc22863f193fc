"""Peak memory above the loaded model, measured in a process of its own: python -m bench.memory MODULE WAY SIZE

    above = peak resident set while the work runs - resident set when the model is loaded

Weights are touched and what loading left behind is given back before that. The peak is reset then, where the system
lets one (Linux); elsewhere loading may hide the work's own.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from bench.measure import Ratio, median


def above(module: str, way: str, size: int, threads: int) -> float:
    """Bytes, from a process of its own."""
    command = [sys.executable, "-m", "bench.memory", module, way, str(size), str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.splitlines()[-1])


def share_of_peaks(module: str, a: tuple[str, int], b: tuple[str, int], turns: int, threads: int) -> Ratio:
    """How many times b's peak a's is, over some turns; a and b are a way and a size."""
    values = []
    for _ in range(turns):
        mine, other = above(module, *a, threads), above(module, *b, threads)
        print(
            f"  peak: {a[0]} of {a[1]}: {mine / 2**20:.0f} MiB, {b[0]} of {b[1]}: {other / 2**20:.0f} MiB", flush=True
        )
        values.append(mine / other)
    return median(values)


@torch.inference_mode()
def touch(model: Any) -> None:
    """Reads every weight once: a file that is mapped into memory counts only from then on."""
    for parameter in model.parameters():
        parameter.sum()
    model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False)
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)


def _field(name: str) -> int | None:
    """A line of this process's status, in bytes."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)


def _main() -> None:
    module, way, size, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(threads)
    work = importlib.import_module(f"bench.{module}").memory(way, size)
    before = _field("VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        before = None
    unit = 1 if sys.platform == "darwin" else 1024
    if before is None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    work()
    peak = _field("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(max(peak - before, os.sysconf("SC_PAGE_SIZE")))


if __name__ == "__main__":
    _main()

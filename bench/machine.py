"""What the numbers were measured on: processor, threads, versions, date."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

import torch

LIBRARIES = ("timonel", "torch", "transformers", "transformer-lens", "nnsight", "ray", "numpy")


def describe(threads: int) -> dict[str, str]:
    """Name and value of each."""
    versions = [f"{name} {found}" for name in LIBRARIES if (found := _version(name))]
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"{_processor()}, {platform.machine()}, {_cpus()} CPUs, {threads} threads used",
        "libraries": ", ".join(["Python " + platform.python_version(), *versions]),
    }


def card() -> str:
    """The accelerator's name, or the processor's."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else _processor()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )

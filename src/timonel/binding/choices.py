"""The words that a study's options may take."""

from __future__ import annotations

from collections.abc import Sequence

from timonel.errors import InputError

FORMS = ("letters", "cloze")
WRAPS = ("instruct", "base")
ROWS = ("own", "writing")
STAGES = ("score", "knockout")


def check_choices(*, form: str | None, wrap: str | None, rows: str, stages: Sequence[str]) -> None:
    """Refuses a word that is not one of an option's.

    Raises:
        InputError: names the option and what it may be.
    """
    _check("--form", form, FORMS)
    _check("--wrap", wrap, WRAPS)
    _check("--rows", rows, ROWS)
    for stage in stages:
        _check("--stages", stage, STAGES)
    if "score" not in stages:
        raise InputError("--stages leaves out score, but all others build on it; add it, its scores are kept.")


def _check(option: str, given: str | None, allowed: Sequence[str]) -> None:
    if given is not None and given not in allowed:
        raise InputError(f"{option} is {given!r}, but it must be {' or '.join(allowed)}; write one of these.")

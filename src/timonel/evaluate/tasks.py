"""Tasks by name, as they are written after `--tasks`, and whether a plan has a place in them."""

from __future__ import annotations

from collections.abc import Iterable

from timonel.errors import InputError
from timonel.evaluate.culture import culture_task
from timonel.evaluate.n4 import n4_task
from timonel.evaluate.questions import SPANS, QuestionTask
from timonel.steer import EdgeScale, Plan, Span


def read_tasks(spec: str, *, language: str = "en", limit: int | None = None, seed: int = 0) -> tuple[QuestionTask, ...]:
    """Reads the tasks that `--tasks` names.

    Args:
        spec: `culture`, `n4:PATH` with the path of `N4_1k.pkl`, or both with a comma between.
        language: of culture's questions; N4 is English.
        limit: questions a side of each task; None asks all.
        seed: of sampling.

    Raises:
        InputError: an unknown or repeated task, a missing file, a file that is not what it should be.
    """
    found: dict[str, QuestionTask] = {}
    for one in spec.split(","):
        name, _, path = one.strip().partition(":")
        if name in found:
            raise InputError(f"--tasks names {name} twice, but a run has one task of a name; leave one out.")
        if name == "culture" and not path:
            found[name] = culture_task(language, limit=limit, seed=seed)
        elif name == "n4" and path:
            if language != "en":
                raise InputError(f"N4 is in English, but --lang is {language!r}; ask culture alone in other languages.")
            found[name] = n4_task(path, limit=limit, seed=seed)
        else:
            raise InputError(
                f"--tasks holds {one.strip()!r}, but tasks are culture and n4:PATH (the file N4_1k.pkl), with commas "
                "between; write one of these."
            )
    return tuple(found.values())


def check_spans(plan: Plan, names: Iterable[str] = SPANS) -> None:
    """Refuses a plan that names a span which no question has, before anything is written.

    Raises:
        InputError: says which spans there are.
    """
    known = sorted(set(names))
    for one in plan:
        scopes = (one.queries, one.keys) if isinstance(one, EdgeScale) else (one.scope,)
        for scope in scopes:
            unknown = [name for name in scope.names if name not in known] if isinstance(scope, Span) else []
            if unknown:
                raise InputError(
                    f"The plan names the span {unknown[0]!r}, but the questions have {', '.join(known)}; make a plan "
                    "that names these."
                )

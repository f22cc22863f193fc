"""`timonel doctor`: what is supported on a checkpoint, and whether steering holds on it."""

from __future__ import annotations

from typing import Any

import typer

from timonel.cli import options
from timonel.cli.console import Meter, print_json, quiet_libraries, say, show, table


def doctor(
    model: options.Model,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
    json_: options.Json = False,
    config: options.Config = None,
) -> None:
    """Look at a checkpoint, and try on it whether steering holds.

    Prints what the model is and has, then runs six self-tests on it: that a plan acts on all that it names, leaves
    nothing behind, never changes what stands before it, cuts an edge exactly, and does the same with a cache and
    padded. The last line says `ready`, or what to do.

    Exit code: 0 if it is ready, 1 if a self-test fails, 2 if the model is not supported.
    """
    from dataclasses import asdict

    from timonel.models import Geometry, load
    from timonel.steer.checkpoint import Checkpoint, probe_ids
    from timonel.steer.examine import examine, verdict

    meter = Meter(quiet=json_)
    quiet_libraries()
    loaded, tokenizer = load(model, dtype, device)
    geometry = Geometry.of(loaded)
    checkpoint = Checkpoint.of(loaded, tokenizer, geometry)
    if not json_:
        show(table(f"Checkpoint {model}", ["", "what it has"], checkpoint.rows()))
    checks = examine(loaded, probe_ids(tokenizer), geometry=geometry, progress=meter)
    mass, remark = _letters(loaded, tokenizer, model, meter)
    last = verdict(checks)
    if json_:
        print_json(
            {
                "model": model,
                "checkpoint": asdict(checkpoint),
                "letters_mass": mass,
                "letters_remark": remark,
                "self_tests": [asdict(check) for check in checks],
                "ready": last == "ready",
                "verdict": last,
            }
        )
    else:
        show(table("Self-tests", ["test", "", "difference", "tolerance", "what was compared"], _rows(checks)))
        say(f"Answer letters: {remark}.")
        say(last)
    if last != "ready":
        raise typer.Exit(1)


def _rows(checks: Any) -> list[list[str]]:
    return [
        [one.name, "pass" if one.passed else "FAIL", f"{one.difference:.2g}", f"{one.tolerance:.2g}", one.detail]
        for one in checks
    ]


def _letters(loaded: Any, tokenizer: Any, model: str, meter: Meter) -> tuple[float | None, str]:
    """The letters' mass and what it means."""
    from timonel.binding.letters_mass import describe_mass, letters_mass
    from timonel.engine import Engine
    from timonel.errors import InputError
    from timonel.models.catalog import kind_of

    try:
        mass = letters_mass(Engine(loaded, tokenizer, progress=meter), tokenizer, wrap=kind_of(model))
    except InputError as error:
        return None, str(error).rstrip(".")
    return mass, describe_mass(mass)

"""Options that all commands share, written once; and `--config`, which gives any of them from a file."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.errors import InputError

if TYPE_CHECKING:
    from timonel.engine import RayWorkers


def read_config(path: Path) -> dict[str, Any]:
    """Options from a YAML or JSON file; the `run.json` of a run gives those that the run was made with.

    Raises:
        InputError: the file is missing or is not a mapping of options.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"--config {path} cannot be read ({reason}); name a YAML file of options.") from error
    try:
        if path.suffix == ".json":
            found = json.loads(text)
        else:
            import yaml

            found = yaml.safe_load(text)
    except ValueError as error:
        raise InputError(f"--config {path} is not valid JSON ({error}); mend it.") from error
    except Exception as error:
        raise InputError(f"--config {path} is not valid YAML; mend the line that it complains of: {error}") from error
    if isinstance(found, dict) and "arguments" in found and "command" in found:
        found = found["arguments"]
    if not isinstance(found, dict):
        raise InputError(f"--config {path} holds no options, but lines such as `pairs: 60` were expected; write some.")
    return {str(name).replace("-", "_"): value for name, value in found.items()}


def _take_config(context: typer.Context, value: Path | None) -> Path | None:
    """Lets the file's options stand for those that are not given on the command line."""
    if value is None:
        return None
    given = read_config(value)
    # As they are written after the dashes: `json`, whose parameter must not hide the module.
    known = {str(one.name).rstrip("_"): str(one.name) for one in context.command.params if one.name != "config"}
    for name in given:
        if name not in known:
            raise InputError(
                f"--config {value} has the option {name!r}, which {context.command_path} does not; "
                f"it has {', '.join(sorted(known))}."
            )
    plain = {known[name]: one for name, one in given.items() if one is not None}
    context.default_map = {**(context.default_map or {}), **plain}
    return value


Config = Annotated[
    Path | None,
    typer.Option(callback=_take_config, is_eager=True, help="YAML file of options, or the run.json of a run."),
]
Model = Annotated[str, typer.Argument(help="Catalog name, local folder, GGUF file or hub id.", show_default=False)]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps, or auto to spread over what is there.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")]
BatchTokens = Annotated[
    int | None, typer.Option(help="Tokens a batch may feed.", show_default="2048 on a CPU, 16384 elsewhere")
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="[ADDRESS]",
        help="Spread the work over a Ray cluster; alone it starts one on this machine.",
        show_default=False,
    ),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Ray workers.", show_default="one a GPU, or one a CPU thread")]
Seed = Annotated[int, typer.Option(min=0, help="Of sampling and resampling.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Work on this many at most.", show_default="all")]
Explain = Annotated[
    bool, typer.Option("--explain", help="Say how the engine lays the work out, and what that saves; then run.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def arguments_of(context: typer.Context) -> dict[str, Any]:
    """The options of this call, for `run.json`."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in context.params.items()
        if name not in ("config", "json_", "dry_run", "explain")
    }


def check_entry(entry: str | None, plan: Path | None) -> None:
    """--entry picks one of a file's plans."""
    if entry is not None and plan is None:
        raise InputError(f"--entry is {entry!r}, but it names a plan of a file; give --plan FILE.")


def alone_means_local(arguments: list[str]) -> list[str]:
    """`--ray` without an address, as `--ray=local`: an option whose value may be left out is no notion of typer's."""
    return [
        "--ray=local" if one == "--ray" and after.startswith("-") else one
        for one, after in pairwise([*arguments, "--"])
    ]


def ray_workers(model: str, dtype: str, device: str, ray: str | None, workers: int | None) -> RayWorkers | None:
    """The workers that --ray asks for."""
    if ray is None:
        if workers is not None:
            raise InputError("--workers is how many Ray workers to start, but --ray is missing; add it.")
        return None
    from timonel.engine import RayWorkers

    return RayWorkers(model, dtype, device, address=ray, workers=workers)

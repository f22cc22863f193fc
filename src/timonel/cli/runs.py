"""`timonel runs`: the run folders in a place, and their state."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timonel.cli import options
from timonel.cli.console import complain, duration, print_json, say, show, table


def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look, one and two levels deep.")] = Path(),
    json_: options.Json = False,
) -> None:
    """List run folders: what they ran, whether they are done, how much they computed."""
    from timonel.engine.folder import is_running, read_record
    from timonel.errors import InputError, StoreError

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder, but runs are looked for in one; name the folder that holds them.")
    found = []
    for file in sorted({*folder.glob("run.json"), *folder.glob("*/run.json"), *folder.glob("*/*/run.json")}):
        try:
            record = read_record(file.parent)
        except StoreError as error:
            complain(str(error))
            continue
        state = record["state"]
        if state == "running" and not is_running(file.parent):
            state = "killed (the same command goes on)"
        found.append(
            {
                "run": str(file.parent),
                "command": record["command"],
                "model": record.get("model", record["arguments"].get("model", "")),
                "data": record["identity"].get("data", ""),
                "state": state,
                "forwards": record.get("forwards"),
                "seconds": record["timings"].get("seconds"),
            }
        )
    if json_:
        print_json(found)
    elif not found:
        say(f"No runs in {folder}; make one with: timonel bind smollm2-135m --out runs/first")
    else:
        rows = [
            [
                str(one["run"]), str(one["command"]), str(one["model"]), str(one["data"]), str(one["state"]),
                "" if one["seconds"] is None else duration(float(one["seconds"])),
            ]
            for one in found
        ]  # fmt: skip
        show(table("Runs", ["run", "command", "model", "data", "state", "time"], rows))

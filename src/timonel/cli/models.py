"""`timonel models`: the catalog of small real models, and the cache they lie in."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli import options
from timonel.cli.console import print_json, say, show, table

app = typer.Typer(help="List the small real models; fetch one; empty the cache.", invoke_without_command=True)


@app.callback(invoke_without_command=True)
def list_models(context: typer.Context, json_: options.Json = False) -> None:
    """List the catalog: what each model is, and whether it is cached."""
    if context.invoked_subcommand is not None:
        return
    from timonel.models.catalog import cached, entries

    found = [(one, cached(one.name)) for one in entries()]
    if json_:
        print_json(
            [
                {
                    "name": one.name,
                    "kind": one.kind,
                    "about": one.about,
                    "licence": one.licence,
                    "cached": None if folder is None else str(folder),
                }
                for one, folder in found
            ]
        )
        return
    rows = [
        [one.name, one.kind, one.licence, "cached" if folder else f"{one.download_mb} MB to fetch", one.about]
        for one, folder in found
    ]
    show(table("Catalog of small real models", ["name", "kind", "licence", "state", "about"], rows))
    say("Any local folder, GGUF file or hub id works too.")


@app.command()
def get(name: Annotated[str, typer.Argument(help="A name of the catalog.")]) -> None:
    """Fetch a model and convert it once."""
    from timonel.models import catalog

    say(str(catalog.get(name)))


@app.command()
def clean(
    name: Annotated[str | None, typer.Argument(help="A name of the catalog; all by default.")] = None,
) -> None:
    """Remove cached models."""
    from timonel.models import catalog

    say(f"{catalog.clean(name) / 1e6:.0f} MB freed")

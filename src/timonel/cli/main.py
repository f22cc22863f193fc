"""The front door: `timonel COMMAND`. One file a command, no logic here, and no torch before a command needs it."""

from __future__ import annotations

import sys

import typer

from timonel._version import __version__
from timonel.cli import bind, cut, demo, doctor, evaluate, models, runs, score, steer
from timonel.cli.console import complain
from timonel.cli.options import alone_means_local
from timonel.errors import TimonelError

# What a mistyped option raises; typer brings its own copy of click in some versions, and names only this child of it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
_STOPPED = 130

app = typer.Typer(
    name="timonel",
    help="Find, prove, steer and ship the parts of open-weight language models that carry culture and language.",
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(demo.demo)
app.command("bind")(bind.bind)
app.command("evaluate")(evaluate.evaluate)
app.command("score")(score.score)
app.command("cut")(cut.cut)
app.command("steer")(steer.steer)
app.command("doctor")(doctor.doctor)
app.command("runs")(runs.runs)
app.add_typer(models.app, name="models")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"timonel {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options that stand before the command."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Runs the command line; every error that a person can mend is one sentence and exit code 2."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Runs one command.

    Returns:
        0 if it went well, 2 for bad input, 130 after Ctrl-C; other errors are faults of ours and are raised.
    """
    try:
        result = app(alone_means_local(arguments), standalone_mode=False, prog_name="timonel")
    except TimonelError as error:
        complain(str(error))
        return 2
    except (typer.Abort, KeyboardInterrupt):
        result = _STOPPED
    except _UsageError as error:
        where = getattr(error, "ctx", None)
        describe = getattr(error, "format_message", error.__str__)
        complain(describe() + (f" (see {where.command_path} --help)" if where else ""))
        return 2
    if result == _STOPPED:  # some versions of typer turn Ctrl-C into this number themselves
        complain("Stopped; what was computed is kept: run the same command again to go on.")
    return result if isinstance(result, int) else 0

"""`timonel steer`: baseline and steered text, side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli import options
from timonel.cli.console import complain, print_json, quiet_libraries, say, show
from timonel.errors import InputError, TimonelError

if TYPE_CHECKING:
    from rich.table import Table

    from timonel.steer.compare import Comparison

WIDE = 100
"""Columns of a terminal from which on the texts stand side by side."""


def steer(
    model: options.Model,
    prompt: Annotated[str | None, typer.Argument(help="Text; [[item:Feng Shui]] marks a span.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan's file.", show_default=False)] = None,
    entry: Annotated[str | None, typer.Option(help="Which plan of a set.", show_default=False)] = None,
    head: Annotated[
        list[str] | None, typer.Option(help="Scale a head without a file, such as L8H2=2.5; repeatable.")
    ] = None,
    span: Annotated[
        list[str] | None, typer.Option(help="A span that the plan names, such as item='Feng Shui'; repeatable.")
    ] = None,
    interactive: Annotated[bool, typer.Option(help="Read prompts line by line until an empty one.")] = False,
    chat: Annotated[
        bool | None, typer.Option(help="Wrap prompts in the chat template.", show_default="if there is one")
    ] = None,
    tokens: Annotated[int, typer.Option(help="New tokens at most.")] = 60,
    sample: Annotated[bool, typer.Option(help="Draw tokens; the likeliest by default.")] = False,
    temperature: Annotated[float, typer.Option(help="Of drawing.")] = 1.0,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
    json_: options.Json = False,
    config: options.Config = None,
) -> None:
    """Write on a prompt twice: as the model is, and under a plan.

    timonel steer smollm2-135m --head L8H2=3 "Who should avoid wearing a kimono?"

    timonel steer MODEL --plan plan.json --span item='Feng Shui' "Is Feng Shui ..."

    Two texts are an illustration; `timonel bind` measures.
    """
    if plan is None and not head:
        raise InputError("There is nothing to steer with; give --plan FILE, or --head L8H2=2.5.")
    if prompt is None and not interactive:
        raise InputError("There is no prompt; give a text, or --interactive to type several.")
    from timonel.models import Geometry, load
    from timonel.prompts import has_template
    from timonel.steer.compare import Writing, compare, parse_span, prompt_of

    writing = Writing(tokens, sample, temperature, seed)
    spans = [parse_span(one) for one in span or ()]
    quiet_libraries()
    loaded, tokenizer = load(model, dtype, device)
    geometry = Geometry.of(loaded)
    chosen = _plan(loaded, tokenizer, geometry, plan, entry, head or ())
    wrapped = has_template(tokenizer) if chat is None else chat

    def answer(text: str) -> Comparison:
        made = prompt_of(tokenizer, text, spans, chat=wrapped)
        return compare(loaded, tokenizer, chosen, made, writing, geometry=geometry)

    if prompt is not None:
        _print(answer(prompt), json_)
    if interactive:
        _loop(answer, json_)


def _plan(loaded: Any, tokenizer: Any, geometry: Any, path: Path | None, entry: str | None, heads: Any) -> Any:
    """The file's plan, and the heads given beside it."""
    from dataclasses import replace

    from timonel.steer import Plan
    from timonel.steer.compare import scaled_head

    scales = tuple(scaled_head(geometry, one) for one in heads)
    if path is None:
        options.check_entry(entry, path)
        return Plan(scales)
    found = Plan.load(path, model=loaded, tokenizer=tokenizer, entry=entry)
    return replace(found, interventions=(*found, *scales))


def _loop(answer: Callable[[str], Comparison], as_json: bool) -> None:
    """Prompts from standard input; one that cannot be used is complained of, and the next one is read."""
    while True:
        if sys.stdin.isatty():
            print("prompt> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line.strip():
            return
        try:
            _print(answer(line.rstrip("\r\n")), as_json)
        except TimonelError as error:
            complain(str(error))


def _print(found: Comparison, as_json: bool) -> None:
    if as_json:
        from dataclasses import asdict

        print_json({**asdict(found), "parted": found.parted})
        return
    texts = {"baseline": found.baseline_text, "steered": found.steered_text}
    if _on_terminal() and get_terminal_size().columns >= WIDE:
        show(_columns(texts))
    else:
        for name, text in texts.items():
            say(f"--- {name}\n{text}")
    say("The texts are the same." if found.parted is None else f"They part at new token {found.parted + 1}.")


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _columns(texts: dict[str, str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, expand=True)
    for name in texts:
        made.add_column(name, ratio=1, overflow="fold")
    made.add_row(*map(Text, texts.values()))
    return made

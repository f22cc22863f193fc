"""`timonel cut`: one prompt, edge by edge."""

from __future__ import annotations

from typing import Annotated

import typer

from timonel.cli import options
from timonel.cli.console import Meter, print_json, quiet_libraries, records, say, show, table
from timonel.errors import InputError


def cut(
    model: options.Model,
    prompt: Annotated[str, typer.Argument(help="Text with [[from:..]] (rows) and [[to:..]] (keys).")],
    heads: Annotated[str | None, typer.Option(help="Such as L8H2,L9H5.", show_default="all heads")] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(help="Answer to watch; repeatable.", show_default="the likeliest next token"),
    ] = None,
    alpha: Annotated[float, typer.Option(help="0 cuts the edge, 2 doubles it.")] = 0.0,
    chat: Annotated[bool, typer.Option(help="Wrap the prompt in the chat template.")] = False,
    top: Annotated[int, typer.Option(help="Rows to print.")] = 12,
    show_spans: Annotated[bool, typer.Option(help="Print the tokens, and which of them the edge touches.")] = False,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
    batch_tokens: options.BatchTokens = None,
    json_: options.Json = False,
    config: options.Config = None,
) -> None:
    """Scale the attention edge from one span to another, head by head, and see what it does to an answer.

    The tokens marked `from` are the rows whose attention to the tokens marked `to` is scaled, so `to` must stand
    first: timonel cut smollm2-135m "I wore [[to:a kimono]] in Kyoto. [[from:It]] is a garment from" --answer " Japan"

    One prompt shows no interval; use `timonel bind`, or several prompts, before believing a head.
    """
    if top < 1:
        raise InputError(f"--top is {top}, but at least one row is printed; give 1 or more.")
    if show_spans and json_:
        raise InputError("--show-spans prints lines for people, but --json prints nothing else; leave out one of them.")
    from timonel.engine import Engine
    from timonel.engine.edges import edge_by_edge
    from timonel.models import load, parse_heads
    from timonel.prompts import Prompt
    from timonel.prompts import show_spans as spans_of

    parsed = parse_heads(heads) if heads else None
    quiet_libraries()
    loaded, tokenizer = load(model, dtype, device)
    asked = Prompt.parse(tokenizer, prompt, chat=chat)
    if show_spans:
        say(spans_of(tokenizer, asked))
    engine = Engine(loaded, tokenizer, batch_tokens=batch_tokens, progress=Meter(quiet=json_))
    found = edge_by_edge(engine, tokenizer, asked, heads=parsed, answers=answer or (), alpha=alpha)
    if json_:
        print_json(records(found))
        return
    rows = [
        [
            one["heads"],
            one["answer"],
            f"{one['log_p']:.4f}",
            f"{one['log_p_cut']:.4f}",
            f"{one['change']:+.4f}",
        ]
        for one in records(found)[: top + found["answer"].nunique()]
    ]
    show(
        table(
            f"Edge from -> to at alpha {alpha:g}",
            ["heads", "answer", "log P", "with the edge scaled", "change"],
            rows,
        )
    )

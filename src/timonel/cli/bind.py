"""`timonel bind`: does a model tie cultural items to identities, and which heads' edges carry it?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli import options
from timonel.cli.console import Meter, complain, duration, print_json, quiet_libraries, records, remark, say
from timonel.cli.engine_plan import describe

if TYPE_CHECKING:
    from timonel.binding import BindingResult, BindingStudy
    from timonel.binding.sources import Source
    from timonel.engine import Engine, RayWorkers


def bind(
    context: typer.Context,
    model: options.Model,
    out: Annotated[Path, typer.Option(help="Run folder; an interrupted run in it goes on.", show_default=False)],
    data: Annotated[str, typer.Option(help="culture, n4:PATH, or pairs:FILE.jsonl (your own contrasts).")] = "culture",
    pairs: Annotated[
        int | None, typer.Option(help="Sample this many pairs, spread over the items.", show_default="all")
    ] = None,
    heads: Annotated[
        str | None,
        typer.Option(help="Heads to cut, such as L8H2,L9H5.", show_default="all heads: the ceiling"),
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="letters or cloze.", show_default="letters from 1B instruct models on")
    ] = None,
    wrap: Annotated[
        str | None,
        typer.Option(help="instruct or base.", show_default="instruct where there is a chat template"),
    ] = None,
    rows: Annotated[str, typer.Option(help="Cloze: cut the identity's own rows, or those writing it.")] = "own",
    lang: Annotated[str, typer.Option(help="Language of the questions (culture: ar, en, es, hi, zh).")] = "en",
    stages: Annotated[str, typer.Option(help="Which stages to run.")] = "score,knockout",
    seed: options.Seed = 0,
    explain: options.Explain = False,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
    batch_tokens: options.BatchTokens = None,
    ray: options.Ray = None,
    workers: options.Workers = None,
    limit: options.Limit = None,
    json_: options.Json = False,
    dry_run: Annotated[bool, typer.Option(help="Print the work and the time it will take; do nothing.")] = False,
    config: options.Config = None,
) -> None:
    """Measure cultural binding, and cut the edges that may carry it.

    Scores every pair with the related identity (MATCH) and without (MISMATCH), cuts the attention edge from the
    identity to the item at the chosen heads, cuts the other identity's edge as the control, and writes tables with
    an interval beside each number.

    Example: timonel bind smollm2-135m --data culture --pairs 60 --out runs/first
    """
    # What is cheap to refuse is refused before data are read and a model is fetched.
    from timonel.binding.choices import check_choices

    check_choices(form=form, wrap=wrap, rows=rows, stages=stages.split(","))
    source, engine, study = set_up(
        model, data=data, lang=lang, pairs=_smaller(pairs, limit), heads=heads, form=form, wrap=wrap, rows=rows,
        stages=stages, seed=seed, device=device, dtype=dtype, batch_tokens=batch_tokens, quiet=json_,
        workers=options.ray_workers(model, dtype, device, ray, workers),
    )  # fmt: skip
    if source.remark:
        complain(f"Note: {source.remark}.")
    if dry_run:
        _announce(study, engine)
        return
    result = run_study(engine, study, source, out, model, options.arguments_of(context), explain=explain)
    if json_:
        print_json(as_json(result, out))
    else:
        report(result, model, source, out)


def set_up(
    model: str,
    *,
    data: str,
    lang: str,
    pairs: int | None,
    heads: str | None,
    form: Any,
    wrap: Any,
    rows: Any,
    stages: str,
    seed: int,
    device: str,
    dtype: str,
    batch_tokens: int | None,
    quiet: bool,
    workers: RayWorkers | None = None,
) -> tuple[Source, Engine, BindingStudy]:
    """Everything that a study needs, checked: data, then model, then what depends on both."""
    from timonel.binding import BindingStudy
    from timonel.binding.sampling import sample
    from timonel.binding.sources import read_pairs
    from timonel.engine import Engine
    from timonel.models import load, parse_heads
    from timonel.models.catalog import kind_of

    source = read_pairs(data, lang)
    chosen = source.pairs if pairs is None else sample(source.pairs, pairs, seed)
    parsed = parse_heads(heads) if heads else None
    quiet_libraries()
    loaded, tokenizer = load(model, dtype, device)
    engine = Engine(loaded, tokenizer, batch_tokens=batch_tokens, progress=Meter(quiet=quiet), workers=workers)
    planned = BindingStudy.plan(
        loaded, tokenizer, engine, chosen, form=form, wrap=wrap or kind_of(model), rows=rows, heads=parsed,
        stages=stages.split(","), seed=seed,
    )  # fmt: skip
    return source, engine, planned


def run_study(
    engine: Engine,
    study: BindingStudy,
    source: Source,
    out: Path,
    model: str,
    arguments: dict[str, Any],
    *,
    explain: bool = False,
) -> BindingResult:
    """Runs a study in a run folder, or goes on with it."""
    from timonel.binding.words import conclusions
    from timonel.engine import open_run

    identity = {
        "fingerprint": engine.fingerprint,
        "data": source.name,
        "data_sha256": source.sha256,
        "language": source.language,
    }
    with open_run(out, "bind", arguments, identity) as run:
        engine.store = run.store
        if explain:
            remark(describe(engine.workload(study.requests()), engine.batch_tokens))
        result = study.run(engine)
        for name, table in result.tables.items():
            run.write_table(name, table)
        run.note(
            model=model,
            form={"name": result.form, "reason": result.form_reason, "wrap": result.wrap},
            mass_median=result.mass,
            conclusions=conclusions(result),
        )
    return result


def report(result: BindingResult, model: str, source: Source, out: Path) -> None:
    """The result on the terminal: tables, what they mean, and where the rest is."""
    from timonel.binding.words import conclusions
    from timonel.cli.binding_tables import effects_table, heading, knockout_rows
    from timonel.cli.console import show

    say(heading(result, model, source))
    show(effects_table(result))
    if not result.knockout.empty:
        show(knockout_rows(result))
    for sentence in conclusions(result):
        say(sentence)
    say(f"\nRun folder: {out} (tables/*.csv and *.parquet, run.json)")


def as_json(result: BindingResult, out: Path) -> dict[str, Any]:
    """The result for other programs."""
    from timonel.binding.words import conclusions

    return {
        "run": str(out),
        "form": result.form,
        "form_reason": result.form_reason,
        "wrap": result.wrap,
        "mass_median": result.mass,
        "baseline": records(result.baseline),
        "knockout": records(result.knockout),
        "conclusions": conclusions(result),
    }


def _announce(study: BindingStudy, engine: Engine) -> None:
    """The work of a study, and the time that it will take, measured on a ten-second trial."""
    requests = study.requests()
    load = engine.workload(requests)
    rate = engine.rate(requests, seconds=10)
    say(f"{len(study.pairs)} pairs in {study.form.name} form, stages {', '.join(study.stages)}.")
    say(describe(load, engine.batch_tokens))
    say(f"At {rate:,.0f} tokens a second (measured on a short trial) that takes about {duration(load.tokens / rate)}.")


def _smaller(pairs: int | None, limit: int | None) -> int | None:
    """--limit caps --pairs."""
    given = [number for number in (pairs, limit) if number is not None]
    return min(given) if given else None

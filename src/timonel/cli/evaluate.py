"""`timonel evaluate`: does a model treat people differently where that is right, and alike where it is not?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli import options
from timonel.cli.console import Meter, complain, duration, print_json, quiet_libraries, records, say, show
from timonel.errors import InputError

if TYPE_CHECKING:
    from timonel.engine import Engine
    from timonel.evaluate import Condition, Evaluation, Fluency, QuestionTask


def evaluate(
    context: typer.Context,
    model: options.Model,
    out: Annotated[Path, typer.Option(help="Run folder; an interrupted run in it goes on.", show_default=False)],
    tasks: Annotated[str, typer.Option(help="culture, n4:PATH, or both with a comma between.")] = "culture",
    plan: Annotated[Path | None, typer.Option(help="A plan's file, judged beside the model as it is.")] = None,
    entry: Annotated[str | None, typer.Option(help="Which plan of a set.", show_default=False)] = None,
    rivals: Annotated[bool, typer.Option(help="Also judge a prompt that asks to consider cultural context.")] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Questions a side, spread over the scenarios.", show_default="132")
    ] = None,
    full: Annotated[bool, typer.Option(help="Ask all questions.")] = False,
    wrap: Annotated[
        str | None, typer.Option(help="instruct or base.", show_default="instruct where there is a chat template")
    ] = None,
    lang: Annotated[str, typer.Option(help="Language of the questions (culture).")] = "en",
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
    batch_tokens: options.BatchTokens = None,
    json_: options.Json = False,
    dry_run: Annotated[bool, typer.Option(help="Print the work and the time it will take; do nothing.")] = False,
    config: options.Config = None,
) -> None:
    """Judge a model, and a plan beside it, on questions where a difference is right and on ones where it is not.

    DiffAware: how often the right one is named where a difference is right. CtxtAware: how often a difference that was
    made was called for. A plan's gain is never shown without what it costs, each with a 95 % interval by scenario.

    Example: timonel evaluate smollm2-135m --tasks culture --plan plan.json --out runs/judged
    """
    # What is cheap to refuse is refused before data are read and a model is fetched.
    if wrap not in (None, "instruct", "base"):
        raise InputError(f"--wrap is {wrap!r}, but it must be instruct or base; write one of these.")
    if full and limit is not None:
        raise InputError(f"--limit is {limit}, but --full asks all questions; give one of the two.")
    options.check_entry(entry, plan)
    from timonel.evaluate.sampling import DEFAULT_SIZE
    from timonel.evaluate.tasks import read_tasks

    asked = read_tasks(tasks, language=lang, limit=None if full else limit or DEFAULT_SIZE, seed=seed)
    for task in asked:
        if task.remark:
            complain(f"Note: {task.remark}.")
    from timonel.engine import Engine
    from timonel.models import load
    from timonel.models.catalog import kind_of
    from timonel.prompts import default_wrap

    quiet_libraries()
    loaded, tokenizer = load(model, dtype, device)
    engine = Engine(loaded, tokenizer, batch_tokens=batch_tokens, progress=Meter(quiet=json_))
    chosen: Any = wrap or kind_of(model) or default_wrap(tokenizer)
    conditions = _conditions(loaded, tokenizer, plan, entry, rivals)
    if dry_run:
        _announce(engine, tokenizer, asked, conditions, chosen)
        return
    found, fluencies = _run(engine, tokenizer, asked, conditions, chosen, out, model, options.arguments_of(context))
    conclusions = [sentence for one in found for sentence in one.conclusions]
    conclusions += [one.words(name) for name, one in fluencies.items()]
    if json_:
        metrics = {one.task: records(one.headline) for one in found}
        guard = [row for name, one in fluencies.items() for row in records(one.table(name))]
        print_json({"run": str(out), "wrap": chosen, "tasks": metrics, "fluency": guard, "conclusions": conclusions})
        return
    for one in found:
        show(_table(one, model))
    for sentence in conclusions:
        say(sentence)
    say(f"\nRun folder: {out} (tables/*.csv and *.parquet, run.json)")


def _conditions(loaded: Any, tokenizer: Any, plan: Path | None, entry: str | None, rivals: bool) -> list[Condition]:
    """What the model is judged under, as it is first."""
    from timonel.evaluate import BASELINE, Condition, prompt_rival
    from timonel.evaluate.tasks import check_spans
    from timonel.steer import Plan

    found = [BASELINE]
    if plan is not None:
        steering = Plan.load(plan, model=loaded, tokenizer=tokenizer, entry=entry)
        check_spans(steering)
        found.append(Condition("steered", steering))
    return [*found, prompt_rival()] if rivals else found


def _run(
    engine: Engine,
    tokenizer: Any,
    tasks: tuple[QuestionTask, ...],
    conditions: list[Condition],
    wrap: Any,
    out: Path,
    model: str,
    arguments: dict[str, Any],
) -> tuple[list[Evaluation], dict[str, Fluency]]:
    """Judges in a run folder, or goes on with what is there."""
    import pandas as pd

    from timonel.engine import open_run
    from timonel.evaluate.fluency import fluency
    from timonel.evaluate.run import evaluate as judge

    identity = {
        "fingerprint": engine.fingerprint,
        "data": ",".join(task.name for task in tasks),
        "data_sha256": ",".join(task.sha256 for task in tasks),
        "language": ",".join(task.language for task in tasks),
    }
    seed = int(arguments["seed"])
    with open_run(out, "evaluate", arguments, identity) as run:
        engine.store = run.store
        found = [judge(engine, tokenizer, task, conditions, wrap=wrap, seed=seed) for task in tasks]
        guards = {one.name: fluency(engine, tokenizer, one.plan, seed=seed) for one in conditions if len(one.plan)}
        for one in found:
            for name, table in one.tables.items():
                run.write_table(name, table)
        if guards:
            run.write_table("evaluate_fluency", pd.concat([one.table(name) for name, one in guards.items()]))
        said = [sentence for one in found for sentence in one.conclusions]
        said += [one.words(name) for name, one in guards.items()]
        run.note(model=model, wrap=wrap, conclusions=said)
    return found, guards


def _table(found: Evaluation, model: str) -> Any:
    """Levels of all conditions, and each one's paired difference to the baseline."""
    from timonel.cli.console import table

    rows = found.headline
    names = list(dict.fromkeys(rows["condition"]))
    headers = ["", *names, *(f"{name} - {names[0]}, paired" for name in names[1:])]
    by_place = {
        (row["subset"], row["metric"], row["misses"], row["condition"], row["against"]): row for row in records(rows)
    }
    kinds = dict.fromkeys(place[:3] for place in by_place)
    cells = []
    for subset, metric, misses in kinds:
        if metric == "accuracy_different" or (subset != "all" and metric not in ("diff_aware", "ctxt_aware")):
            continue  # the same as diff_aware, or for the files alone
        about = [f"misses {misses}"] * (misses != "any") + [subset] * (subset != "all")
        title = metric + (f" ({', '.join(about)})" if about else "")
        levels = [_interval(by_place[subset, metric, misses, name, ""], "") for name in names]
        moves = [_interval(by_place[subset, metric, misses, name, names[0]], "+") for name in names[1:]]
        cells.append([title, *levels, *moves])
    return table(f"{found.task} under {model}: percent, with 95 % intervals by scenario", headers, cells)


def _interval(row: dict[str, Any], sign: str) -> str:
    """In percent, or in percentage points."""
    value, low, high = (100 * float(row[name]) for name in ("value", "low", "high"))
    return "undefined" if value != value else f"{value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _announce(
    engine: Engine, tokenizer: Any, tasks: tuple[QuestionTask, ...], conditions: list[Condition], wrap: Any
) -> None:
    """The work, and the time that it will take, measured on a ten-second trial of the unsteered model."""
    from timonel.evaluate.run import rate, work

    for task in tasks:
        tokens = sum(work(engine, tokenizer, task, wrap, one.prefix) for one in conditions)
        speed = rate(engine, tokenizer, task, wrap, seconds=10)
        names = ", ".join(one.name for one in conditions)
        say(
            f"{task.name}: {len(task.questions):,} questions under {names}: {len(task.questions) * len(conditions):,} "
            f"answers of up to {task.how.tokens} tokens, {tokens:,} tokens fed.\n"
            f"At {speed:,.0f} tokens a second (measured on a short trial) that takes about {duration(tokens / speed)}."
        )

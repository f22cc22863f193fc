"""`timonel score`: log-probabilities of the given answers, for any prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from timonel.cli import options
from timonel.cli.console import Meter, print_json, quiet_libraries, records, remark, say, show, table
from timonel.cli.engine_plan import describe
from timonel.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from timonel.steer import Plan


def score(
    model: options.Model,
    prompts: Annotated[Path, typer.Argument(help="JSON lines: prompt, answers, chat.", show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Write the table here (.csv or .parquet).")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan's file: score under it too.")] = None,
    entry: Annotated[str | None, typer.Option(help="Which plan of a set.", show_default=False)] = None,
    explain: options.Explain = False,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
    batch_tokens: options.BatchTokens = None,
    ray: options.Ray = None,
    workers: options.Workers = None,
    limit: options.Limit = None,
    json_: options.Json = False,
    config: options.Config = None,
) -> None:
    """Score answers: log P(answer | prompt), summed over the answer's tokens.

    Each line of the file is an object: {"prompt": "The capital of Japan is", "answers": [" Tokyo", " Kyoto"],
    "chat": false}. Without answers, the letters a, b and c are scored, each in all its spellings. A plan that names
    spans finds them by marks in the prompt, such as [[item:a kimono]]; log_p_steered and change stand beside log_p.
    """
    options.check_entry(entry, plan)
    asked = read_prompts(prompts, limit)
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out is {out}, but the table is written as .csv or .parquet; end the name in one of these.")
    from timonel.engine import Engine
    from timonel.models import load
    from timonel.steer import Plan

    quiet_libraries()
    loaded, tokenizer = load(model, dtype, device)
    actors = options.ray_workers(model, dtype, device, ray, workers)
    engine = Engine(loaded, tokenizer, batch_tokens=batch_tokens, progress=Meter(quiet=json_), workers=actors)
    steering = None if plan is None else Plan.load(plan, model=loaded, tokenizer=tokenizer, entry=entry)
    found = _score_all(loaded, tokenizer, engine, asked, steering, explain=explain)
    if out is not None:
        try:
            found.to_csv(out, index=False) if out.suffix == ".csv" else found.to_parquet(out, index=False)
        except OSError as error:
            raise InputError(f"{out} cannot be written ({error.strerror or error}); choose another --out.") from error
    if json_:
        print_json(records(found))
        return
    numbers = [name for name in ("log_p", "log_p_steered", "change") if name in found]
    rows = [[str(one["prompt"]), one["answer"], *(f"{one[name]:.4f}" for name in numbers)] for one in records(found)]
    show(table(f"log P(answer | prompt) under {model}", ["prompt", "answer", *numbers], rows))
    if out is not None:
        say(f"Written to {out}")


def read_prompts(path: Path, limit: int | None) -> list[dict[str, Any]]:
    """Reads and checks the file of prompts.

    Raises:
        InputError: a file or a line that cannot be used; the message names the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise InputError(f"{path} cannot be read ({reason}); name a file of JSON lines.") from error
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty, but a JSON object a line was expected; give it some prompts.")
    found = []
    for number, line in lines[:limit]:
        try:
            one = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}, is not JSON ({error}); write one object a line.") from error
        answers = one.get("answers") if isinstance(one, dict) else None
        right = (
            isinstance(one, dict) and isinstance(one.get("prompt"), str) and isinstance(one.get("chat", False), bool)
        )
        listed = answers is None or (isinstance(answers, list) and answers and all(isinstance(a, str) for a in answers))
        if not right or not listed or set(one) - {"prompt", "answers", "chat"}:
            raise InputError(
                f"{path}, line {number}, is not a prompt; write an object with prompt (text), answers (a list of "
                "texts, optional) and chat (true or false, optional), and nothing else."
            )
        found.append(one)
    return found


def _score_all(
    model: Any, tokenizer: Any, engine: Any, asked: list[dict[str, Any]], steering: Plan | None, *, explain: bool
) -> pd.DataFrame:
    """Prompts with answers of their own and prompts scored by letters, in the file's order."""
    import pandas as pd

    from timonel.engine import score_requests, table_of
    from timonel.prompts import Prompt
    from timonel.steer import Plan

    made = [Prompt.parse(tokenizer, one["prompt"], chat=one.get("chat", False)) for one in asked]
    plans = {"log_p": Plan()} if steering is None else {"log_p": Plan(), "log_p_steered": steering}
    parts, requests = [], []
    for lettered in (False, True):
        numbers = [index for index, one in enumerate(asked) if (one.get("answers") is None) == lettered]
        if numbers:
            answers = None if lettered else [asked[index]["answers"] for index in numbers]
            rows, some = score_requests(tokenizer, [made[index] for index in numbers], plans, answers=answers)
            parts.append(rows.assign(prompt=[numbers[index] for index in rows["prompt"]]))
            requests += some
    if explain:
        remark(describe(engine.workload(requests), engine.batch_tokens))
    found = table_of(pd.concat(parts, ignore_index=True), engine.score(requests))
    wide = found.groupby(["prompt", "answer", "plan"], sort=False)["log_p"].first().unstack("plan", sort=False)
    wide = wide[list(plans)].reset_index().rename_axis(columns=None)
    if steering is not None:
        wide["change"] = wide["log_p_steered"] - wide["log_p"]
    return wide.sort_values("prompt", kind="stable", ignore_index=True)

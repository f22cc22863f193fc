"""`timonel demo`: a known truth first, then a real model, end to end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli import options
from timonel.cli.console import Meter, say, show

if TYPE_CHECKING:
    import pandas as pd


def demo(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="Catalog name, local folder, GGUF file or hub id.")] = "smollm2-135m",
    out: Annotated[Path, typer.Option(help="Run folder; an interrupted run in it goes on.")] = Path("runs/demo"),
    pairs: Annotated[int, typer.Option(help="Pairs of the real model's study.")] = 120,
    seed: options.Seed = 0,
    device: options.Device = "cpu",
    dtype: options.Dtype = "float32",
    batch_tokens: options.BatchTokens = None,
) -> None:
    """See the method find a planted truth in seconds, then measure a real model on the package's own data.

    Works offline once the model is fetched.
    """
    from timonel.cli.bind import report, run_study, set_up

    planted()
    say("2. A real model, whose truth nobody knows\n")
    source, engine, study = set_up(
        model, data="culture", lang="en", pairs=pairs, heads=None, form=None, wrap=None, rows="own",
        stages="score,knockout", seed=seed, device=device, dtype=dtype, batch_tokens=batch_tokens, quiet=False,
    )  # fmt: skip
    result = run_study(engine, study, source, out, model, {"data": "culture", **options.arguments_of(context)})
    report(result, model, source, out)
    say(
        f"Next: timonel bind {model} --data culture --heads L8H2,L9H5 --out runs/heads   (a few heads instead of all)\n"
        f"      timonel runs runs                                                        (what has been run)"
    )


def planted() -> None:
    """The study on a model that was compiled by hand: which head binds is known, so the method can be checked."""
    from timonel.binding import Cut, Form, knockout_table, score_pairs
    from timonel.binding.planted import planted_binding
    from timonel.cli.binding_tables import interval, p
    from timonel.cli.console import table
    from timonel.engine import Engine
    from timonel.models import format_head

    truth = planted_binding()
    say("1. A planted model: one head was built to bind, three others to look like it\n")
    engine = Engine(truth.model, truth.tokenizer, progress=Meter())
    form = Form(truth.tokenizer, "letters", "base")
    heads = {"planted": truth.head, **truth.decoys}
    cuts = [Cut(edge, (head,)) for head in heads.values() for edge in ("related", "other")]
    base, *cut = score_pairs(engine, form, truth.pairs, "S", (None, *cuts))
    found = knockout_table(base, dict(zip(cuts, cut, strict=True)), pmi=False)
    found = found[found["subset"] == "all"]
    rows = []
    for name, head in heads.items():
        mine = found[found["heads"] == format_head(*head)].set_index("edge")
        related, other = mine.loc["related"], mine.loc["other"]
        rows.append(
            [
                format_head(*head),
                "binds" if name == "planted" else f"decoy: {name.replace('_', ' ')}",
                interval(related.to_dict(), "reduction", percent=True),
                interval(other.to_dict(), "reduction", percent=True),
                p(float(mine["q"]["related"])),
            ]
        )
    show(
        table(
            f"Share of ΔS = {base.delta().mean():+.2f} ({len(truth.pairs)} pairs) that each head's edge carries",
            ["head", "built as", "related edge cut", "other edge cut (control)", "q"],
            rows,
        )
    )
    say(_verdict(found, truth.head) + "\n")


def _verdict(found: pd.DataFrame, head: tuple[int, int]) -> str:
    """Whether the study agrees with what was built; a share under 5 % does not count as carrying the effect."""
    from timonel.models import format_head

    carried = found[found["edge"].isin(["related", "other"]) & (found["reduction_low"] > 0.05)]
    named = [(row["heads"], row["edge"]) for row in carried.to_dict(orient="records")]
    if named == [(format_head(*head), "related")]:
        return "Only the planted head's edge carries the effect: the method finds what is there, and nothing else."
    return f"The study names {named or 'nothing'}, which is not what was planted: do not trust this installation."

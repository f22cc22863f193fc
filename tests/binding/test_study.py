from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from oracles.planted import EVERY_HEAD, Bench, score
from timonel.binding import (
    BindingResult,
    BindingStudy,
    study,
)
from timonel.binding.pair import CONDITIONS
from timonel.binding.planted import Planted, planted_binding
from timonel.binding.words import conclusions
from timonel.engine import Engine, Store
from timonel.errors import InputError
from timonel.stats import cluster_mean
from tiny import tiny, word_tokenizer


def run(
    planted: Planted, *, batch_tokens: int | None = None, store: Store | None = None, **options: Any
) -> BindingResult:
    engine = Engine(planted.model, planted.tokenizer, batch_tokens=batch_tokens, store=store)
    chosen = {"form": "letters", "wrap": "base", "heads": [planted.head], **options}
    return study(planted.model, planted.tokenizer, planted.pairs, engine=engine, **chosen)


@pytest.fixture(scope="module")
def result(bench: Bench) -> BindingResult:
    return run(bench.planted)


# On the planted model.


def test_the_tables_equal_the_oracle(bench: Bench, result: BindingResult) -> None:
    pairs, delta = result.pairs, bench.delta.double().numpy()
    assert list(pairs["pair"]) == [pair.pair for pair in bench.planted.pairs]
    for condition in CONDITIONS:
        assert pairs[f"s_{condition}"].to_numpy() == pytest.approx(bench.s[condition].numpy(), abs=2e-4)
        p, vocabulary = bench.logits[condition].double().softmax(-1), bench.planted.tokenizer.get_vocab()
        mass = p[:, [vocabulary[letter] for letter in "abcABC"]].sum(1)
        assert pairs[f"mass_{condition}"].to_numpy() == pytest.approx(mass.numpy(), abs=2e-4)
    assert result.mass == pytest.approx(float(np.median(pairs[["mass_match", "mass_mismatch"]])))
    items = [pair.item for pair in bench.planted.pairs]
    for subset in ("all", "clean", "avoid", "choose"):
        chosen = np.array([subset in ("all", "clean", pair.polarity) for pair in bench.planted.pairs])
        (row,) = result.baseline.query("quantity == 'delta_s' and subset == @subset").to_dict("records")
        assert (row["score"], row["n"], row["n_items"]) == ("raw", chosen.sum(), 8)
        assert row["value"] == pytest.approx(delta[chosen].mean(), abs=2e-4)
        expected = cluster_mean(delta[chosen], np.array(items)[chosen])
        assert (row["low"], row["high"], row["se"]) == pytest.approx(
            (expected.low, expected.high, expected.se), abs=1e-3
        )
        means = pd.Series(delta[chosen]).groupby(np.array(items)[chosen]).mean()
        assert row["p_items"] == pytest.approx(stats.ttest_1samp(means, 0).pvalue, rel=0.02)


def test_knowledge_equals_a_plain_loop(bench: Bench, result: BindingResult) -> None:
    planted = bench.planted
    for condition in CONDITIONS:
        for row, pair in list(enumerate(planted.pairs))[::9]:
            left, right = pair.options(condition)
            text = (
                f"Which one belongs with {pair.item}?\n(a) {left.text} (b) {right.text} (c) Neither of them\n\n"
                "Reply with one letter. \nI choose letter ("
            )
            ids = torch.tensor([planted.tokenizer(text).input_ids])
            with torch.no_grad():
                logits = planted.model(ids).logits[:, -1]
            assert result.pairs[f"k_{condition}"][row] == pytest.approx(float(score(planted, logits)), abs=2e-4)


def test_the_study_names_the_planted_head_alone(bench: Bench, result: BindingResult) -> None:
    effect, cut = conclusions(result)
    assert "the model binds" in effect
    assert "L1H2" in cut
    assert cut.endswith("so these edges carry part of the effect.")
    for head in bench.planted.decoys.values():
        _, cut = conclusions(run(bench.planted, heads=[head]))
        assert "carry part of the effect" not in cut


def test_all_heads_are_the_default(bench: Bench) -> None:
    found = run(bench.planted, heads=None)
    assert found.all_heads
    assert found.heads == tuple(EVERY_HEAD)
    assert set(found.knockout["heads"]) == {"20 heads"}
    assert "all 20 heads" in conclusions(found)[1]


def test_score_alone(bench: Bench) -> None:
    found = run(bench.planted, stages=["score"])
    assert found.knockout.empty
    assert set(found.tables) == {"pairs", "baseline"}
    assert len(conclusions(found)) == 1


def test_a_study_done_twice_is_the_same(bench: Bench, result: BindingResult) -> None:
    again = run(bench.planted)
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_exact=True)


def test_the_batch_size_plays_no_part(bench: Bench, result: BindingResult) -> None:
    other = run(bench.planted, batch_tokens=100)
    assert set(other.tables) == set(result.tables)
    for name, table in result.tables.items():
        tests = [column for column in ("p", "q", "p_items") if column in table]
        found, expected = other.tables[name].drop(columns=tests), table.drop(columns=tests)
        pd.testing.assert_frame_equal(found, expected, atol=1e-5, rtol=0)
        # A cut that does nothing leaves only rounding to be tested, so its p is rounding's.
        real = table["change"].abs() > 1e-5 if "change" in table else table.index >= 0
        pd.testing.assert_frame_equal(other.tables[name][tests][real], table[tests][real], atol=0.02, rtol=0)


def test_a_store_saves_the_work(bench: Bench, result: BindingResult, tmp_path: Path) -> None:
    store = Store(tmp_path / "scores.sqlite")
    run(bench.planted, store=store)
    done = store.forwards
    assert done > 0
    assert len(store) > 0
    again = run(bench.planted, store=store)
    assert store.forwards == done
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(again.tables[name], table, check_exact=True)


def test_requests_are_all_that_is_asked(bench: Bench) -> None:
    """What `--dry-run` counts is what is computed."""
    planted = bench.planted
    store = Store()
    engine = Engine(planted.model, planted.tokenizer, store=store)
    planned = BindingStudy.plan(planted.model, planted.tokenizer, engine, planted.pairs, heads=[planted.head])
    load = engine.workload(planned.requests())
    planned.run(engine)
    assert len(store) == load.distinct
    assert engine.workload(planned.requests()).missing == 0


def test_random_weights_show_nothing() -> None:
    found = run(planted_binding(items=8, random_weights=True))
    (effect,) = found.baseline.query("quantity == 'delta_s' and subset == 'all'").to_dict("records")
    assert effect["low"] < 0 < effect["high"]
    chosen = found.knockout.query("subset == 'all'")
    assert chosen[["reduction", "reduction_low", "reduction_high"]].isna().all(axis=None)
    assert (
        found.baseline.query("quantity == 'ratio' and subset == 'all'")[["value", "low", "high"]].isna().all(axis=None)
    )
    said = " ".join(conclusions(found))
    assert "not shown to bind" in said
    assert "carry part" not in said


# What is refused, before anything is computed.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "essay"}, "--form is 'essay'"),
        ({"wrap": "gift"}, "--wrap is 'gift'"),
        ({"rows": "all", "form": "cloze"}, "--rows is 'all'"),
        ({"rows": "writing"}, "--rows writing is for the cloze form"),
        ({"stages": ["knockout"]}, "leaves out score"),
        ({"stages": ["score", "guess"]}, "--stages is 'guess'"),
        ({"heads": [(5, 0)]}, "5"),
        ({"heads": [(0, 4)]}, "4"),
        ({"wrap": "instruct"}, "no chat template"),
    ],
)
def test_what_cannot_be_done_is_refused(bench: Bench, options: dict[str, Any], words: str) -> None:
    store = Store()
    with pytest.raises(InputError, match=words):
        run(bench.planted, store=store, **options)
    assert store.forwards == 0


def test_no_pairs(bench: Bench) -> None:
    with pytest.raises(InputError, match="no pairs"):
        run(replace(bench.planted, pairs=()))


def test_the_wrap_follows_the_template() -> None:
    model = tiny("llama")
    pairs = planted_binding(items=8).pairs[:1]
    for chat, wrap in ((True, "instruct"), (False, "base")):
        tokenizer = word_tokenizer(chat=chat)
        planned = BindingStudy.plan(model, tokenizer, Engine(model, tokenizer), pairs)
        assert (planned.form.wrap, planned.form.name) == (wrap, "cloze")
        asked = BindingStudy.plan(model, tokenizer, Engine(model, tokenizer), pairs, form="letters")
        assert (asked.form.name, asked.form_reason) == ("letters", "asked for")


def test_form_is_what_the_study_uses(bench: Bench, result: BindingResult) -> None:
    assert (result.form, result.wrap, result.headline, result.form_reason) == ("letters", "base", "raw", "asked for")
    cloze = run(replace(bench.planted, pairs=bench.planted.pairs[:6]), form="cloze", heads=[bench.planted.head])
    assert (cloze.form, cloze.headline) == ("cloze", "pmi")

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
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
    Contrast,
    Cut,
    Form,
    baseline_table,
    knockout_table,
    pairs_table,
    study,
)
from timonel.binding.pair import CONDITIONS
from timonel.binding.planted import Planted, planted_binding
from timonel.binding.words import conclusions
from timonel.engine import Engine, Store
from timonel.errors import InputError
from timonel.stats import cluster_mean, fieller
from tiny import tiny, word_tokenizer


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(planted_binding(items=8))


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
        pd.testing.assert_frame_equal(other.tables[name][tests], table[tests], atol=0.02, rtol=0)


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


# Tables of scores that are made up.


def contrast(bench: Bench, seed: int, shift: float, *, priors: bool) -> Contrast:
    draw = np.random.default_rng(seed)
    pairs = tuple(replace(pair, lexical=pair.pair % 2 == 0) for pair in bench.planted.pairs)
    match, mismatch, prior_match, prior_mismatch = draw.normal(-3, 0.4, (4, len(pairs), 3))
    match[:, 2] += shift
    return Contrast(pairs, match, mismatch, *((prior_match, prior_mismatch) if priors else ()))


def test_baseline_rows_by_hand(bench: Bench) -> None:
    s, k = contrast(bench, 0, -1.0, priors=True), contrast(bench, 1, -3.0, priors=True)
    table = baseline_table(s, k)
    items = np.array([pair.item for pair in s.pairs])
    assert len(table) == 2 * 4 * 4
    for row in table.to_dict(orient="records"):
        pmi = row["score"] == "pmi"
        subset = row["subset"]
        chosen = np.array([pair.clean if subset == "clean" else subset in ("all", pair.polarity) for pair in s.pairs])
        values = {"delta_s": s.delta(pmi=pmi), "delta_k": k.delta(pmi=pmi), "direction": s.direction(pmi=pmi)}
        if row["quantity"] == "ratio":
            expected: Any = fieller(values["delta_k"][chosen], values["delta_s"][chosen], items[chosen])
            assert expected.value == pytest.approx(values["delta_k"][chosen].mean() / values["delta_s"][chosen].mean())
            assert np.isnan([row["se"], row["p"], row["p_items"]]).all()
        else:
            value = values[row["quantity"]][chosen]
            expected = cluster_mean(value, items[chosen])
            assert row["p"] == expected.p
            assert row["p_items"] == pytest.approx(
                stats.ttest_1samp(pd.Series(value).groupby(items[chosen]).mean(), 0).pvalue
            )
        assert row["n"] == chosen.sum()
        assert [row["value"], row["low"], row["high"]] == pytest.approx([expected.value, expected.low, expected.high])


def test_no_ratio_where_the_interval_that_is_shown_covers_nought(bench: Bench) -> None:
    """With skewed effects the t interval, which Fieller's uses, may exclude 0 where the bootstrap's does not."""
    items = np.array([pair.item for pair in bench.planted.pairs])
    for seed in range(200):
        draw = np.random.default_rng(seed)
        effect = dict(zip(np.unique(items), 1.0 - draw.exponential(1.6, 8), strict=True))
        delta = np.array([effect[item] for item in items]) + draw.normal(0, 0.05, len(items))
        t_interval, shown = fieller(delta, delta, items), cluster_mean(delta, items)
        if t_interval.defined and not shown.excludes_zero:
            break
    else:
        raise AssertionError("no such case among the draws")
    match = np.zeros((len(items), 3))
    match[:, 2] = delta
    scored = Contrast(bench.planted.pairs, match, np.zeros_like(match))
    (ratio,) = baseline_table(scored, scored).query("quantity == 'ratio' and subset == 'all'").to_dict("records")
    assert np.isnan([ratio["value"], ratio["low"], ratio["high"]]).all()
    table = knockout_table(scored, {Cut("related", (bench.planted.head,)): scored}, pmi=False)
    (row,) = table.query("subset == 'all'").to_dict("records")
    assert np.isnan([row["reduction"], row["reduction_low"], row["reduction_high"]]).all()


def test_pmi_columns_are_there_where_priors_are(bench: Bench) -> None:
    with_priors, without = contrast(bench, 0, -1.0, priors=True), contrast(bench, 0, -1.0, priors=False)
    assert {"s_match_pmi", "k_mismatch_pmi"} <= set(pairs_table(with_priors, with_priors).columns)
    plain = pairs_table(without, without)
    assert not [name for name in plain.columns if "pmi" in name]
    assert set(baseline_table(without, without)["score"]) == {"raw"}
    assert list(plain["clean"]) == [pair.pair % 2 == 1 for pair in without.pairs]


# What is said claims no more than the intervals do.

INTERVALS = [(-2.0, -1.0), (-1.0, 1.0), (0.0, 1.0), (-1.0, 0.0), (1.0, 2.0), (-np.inf, np.inf)]


def told(effect: Any, cut: Any, control: Any, clean: Any = (-2.0, -1.0), **options: Any) -> str:
    def row(low: float, high: float, **names: Any) -> dict[str, Any]:
        middle = (low + high) / 2 if np.isfinite(low) else 0.3
        return {**names, "n": 40, "n_items": 20, "value": middle, "low": low, "high": high}

    def cut_row(edge: str, low: float, high: float) -> dict[str, Any]:
        middle = (low + high) / 2 if np.isfinite(low) else 0.3
        share = dict.fromkeys(("reduction", "reduction_low", "reduction_high"), options.get("share", np.nan))
        return {"edge": edge, "subset": "all", "change": middle, "change_low": low, "change_high": high, **share}

    baseline = [
        row(*effect, quantity="delta_s", score="raw", subset="all"),
        row(*clean, quantity="delta_s", score="raw", subset="clean"),
        *options.get("directions", ()),
    ]
    knockout = pd.DataFrame([cut_row("related", *cut), cut_row("related-other", *control)])
    return " ".join(
        conclusions(
            BindingResult(
                form="letters", form_reason="", wrap="base", heads=((1, 2),), all_heads=False,
                pairs=pd.DataFrame(), baseline=pd.DataFrame(baseline), knockout=knockout, mass=options.get("mass", 0.9),
            )
        )
    )  # fmt: skip


@pytest.mark.parametrize(("effect", "cut", "control"), list(product(INTERVALS, repeat=3)))
def test_no_claim_without_its_interval(effect: Any, cut: Any, control: Any) -> None:
    said = told(effect, cut, control)
    excluded = effect[0] > 0 or effect[1] < 0
    assert ("the model binds" in said) == (effect[1] < 0)
    assert ("the opposite of binding" in said) == (effect[0] > 0)
    assert ("not shown to bind" in said) == (not excluded)
    # Toward 0 is up for a negative effect and down for a positive one.
    nearer = [low > 0 if effect[1] < 0 else high < 0 for low, high in (cut, control)]
    assert ("carry part of the effect" in said) == (excluded and all(nearer))
    assert ("says nothing about binding" in said) == (not excluded)
    assert "reduction" not in said


def test_a_share_next_to_nothing_is_called_so() -> None:
    """T44: significant is not large."""
    said = told((-2.0, -1.0), (0.001, 0.002), (0.001, 0.002), share=0.01)
    assert "a reduction of 1%" in said
    assert "next to nothing" in said
    assert "carry part" not in said
    assert "carry part" in told((-2.0, -1.0), (0.1, 0.2), (0.1, 0.2), share=0.2)


def test_warnings() -> None:
    effect = (-2.0, -1.0)
    assert "Warning" not in told(effect, (1.0, 2.0), (1.0, 2.0))
    assert "median probability of 0.31" in told(effect, (1.0, 2.0), (1.0, 2.0), mass=0.31)
    assert "not established on the clean subset" in told(effect, (1.0, 2.0), (1.0, 2.0), clean=(-1.0, 0.1))
    wrong = {"quantity": "direction", "score": "raw", "subset": "avoid", "n": 9, "n_items": 9}
    assert "to avoid" in told(effect, effect, effect, directions=[{**wrong, "value": -0.2, "low": -0.3, "high": -0.1}])
    assert "Warning" not in told(
        effect, effect, effect, directions=[{**wrong, "value": -0.2, "low": -0.5, "high": 0.1}]
    )


def test_form_is_what_the_study_uses(bench: Bench, result: BindingResult) -> None:
    assert (result.form, result.wrap, result.headline, result.form_reason) == ("letters", "base", "raw", "asked for")
    cloze = run(replace(bench.planted, pairs=bench.planted.pairs[:6]), form="cloze", heads=[bench.planted.head])
    assert (cloze.form, cloze.headline) == ("cloze", "pmi")
    assert isinstance(Form(bench.planted.tokenizer, "cloze", "base"), Form)

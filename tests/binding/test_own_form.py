from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oracles.own_rows import own_pairs, pairs_of
from oracles.planted import Bench, naive, score
from timonel.binding import BindingResult, BindingStudy, Cut, score_pairs, study
from timonel.binding.own_form import OwnForm
from timonel.binding.pair import CONDITIONS, Pair
from timonel.binding.sources import read_pairs
from timonel.binding.words import conclusions
from timonel.engine import Engine, Store
from timonel.errors import InputError
from tiny import tiny, word_tokenizer

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


# Against the oracle, which knows nothing of files, marks, spans or requests.


def test_scores_and_cuts_equal_the_oracle(bench: Bench, engine: Engine, tmp_path: Path) -> None:
    pairs, head = own_pairs(bench, tmp_path), bench.planted.head
    cuts = [None, Cut("related", (head,)), Cut("other", (head,)), Cut("all", (head,), 0.5)]
    found = score_pairs(engine, OwnForm(bench.planted.tokenizer, pairs), pairs, "S", cuts)
    assert found[0].match.shape == (len(pairs), 2)
    assert not found[0].has_priors
    for cut, contrast in zip(cuts, found, strict=True):
        for value, condition in zip(contrast.s(), CONDITIONS, strict=True):
            batch = bench.batch[condition]
            expected = bench.s[condition]
            if cut is not None:
                both = batch.edges["related"] | batch.edges["other"]
                edge = both if cut.edge == "all" else batch.edges[cut.edge]
                expected = score(bench.planted, naive(bench.planted, batch, head, edge, cut.alpha)[0])
            assert value == pytest.approx(expected.numpy(), abs=2e-4)


@pytest.mark.parametrize("edge", ["other", "all"])
def test_a_control_may_be_another_place_that_is_read(bench: Bench, engine: Engine, tmp_path: Path, edge: Any) -> None:
    pairs = own_pairs(bench, tmp_path, "control_to")
    # A decoy reads the item in both conditions; at alpha 3 its other keys matter too.
    for head in (bench.planted.head, bench.planted.decoys["reader_both"]):
        (found,) = score_pairs(engine, OwnForm(bench.planted.tokenizer, pairs), pairs, "S", [Cut(edge, (head,), 3.0)])
        for value, condition in zip(found.s(), CONDITIONS, strict=True):
            batch = bench.batch[condition]
            who = bench.planted.tokenizer.get_vocab()["Who"]
            first = (batch.ids == who) & ((batch.ids == who).cumsum(1) == 1)
            cut = batch.rows["related"][:, :, None] & first[:, None, :]
            if edge == "all":
                cut = cut | batch.edges["related"]
            expected = score(bench.planted, naive(bench.planted, batch, head, cut, 3.0)[0])
            assert value == pytest.approx(expected.numpy(), abs=2e-4)


def test_direction_is_that_of_toward_against_away(bench: Bench, engine: Engine, tmp_path: Path) -> None:
    pairs = own_pairs(bench, tmp_path)
    (found,) = score_pairs(engine, OwnForm(bench.planted.tokenizer, pairs), pairs, "S")
    p = {c: 1 / (1 + bench.s[c].exp().numpy()) for c in CONDITIONS}
    assert found.direction() == pytest.approx(p["match"] - p["mismatch"], abs=1e-4)


def test_answers_of_several_tokens_equal_a_plain_loop() -> None:
    tokenizer, model = word_tokenizer(chat=True), tiny("llama")
    words = [word for word in sorted(tokenizer.get_vocab()) if word.isalpha()][:9]
    a, b, c, d, e, f, g, h, i = words
    sets = {"toward": [f" {d} {e}", f" {f}"], "away": [f" {g} {h} {i}", f" {d} {f}"]}
    pairs = pairs_of(match=f"{a} [[to:{b}]] [[from:{c}]]", mismatch=f"{a} [[to:{a}]] [[from:{c}]]", **sets)
    (found,) = score_pairs(Engine(model, tokenizer), OwnForm(tokenizer, pairs), pairs, "S")

    def total(text: str, answers: list[str]) -> float:
        start, sums = len(tokenizer(text).input_ids), []
        for answer in answers:
            ids = tokenizer(text + answer).input_ids
            with torch.no_grad():
                rows = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
            sums.append(torch.stack([rows[at - 1, ids[at]] for at in range(start, len(ids))]).sum().exp())
        return float(torch.stack(sums).sum().log())

    for values, middle in ((found.match, b), (found.mismatch, a)):
        text = f"{a} {middle} {c}"
        assert values[0] == pytest.approx([total(text, sets["toward"]), total(text, sets["away"])], abs=1e-4)


# The whole study.


def run(bench: Bench, pairs: tuple[Pair, ...], **options: Any) -> BindingResult:
    engine = Engine(bench.planted.model, bench.planted.tokenizer, store=options.pop("store", None))
    chosen = {"heads": [bench.planted.head], **options}
    return study(bench.planted.model, bench.planted.tokenizer, pairs, engine=engine, **chosen)


def test_the_study_is_that_of_the_planted_pairs(bench: Bench, tmp_path: Path) -> None:
    own = run(bench, own_pairs(bench, tmp_path))
    identities = run(bench, bench.planted.pairs, form="letters", wrap="base")
    columns = ["n", "n_items", "value", "low", "high"]
    mine, theirs = (
        one.baseline.query("quantity == 'delta_s' and subset == 'all'")[columns] for one in (own, identities)
    )
    assert mine.to_numpy() == pytest.approx(theirs.to_numpy(), abs=1e-3)
    theirs = identities.knockout.query("subset == 'all'").reset_index(drop=True)
    assert list(own.knockout["edge"]) == list(theirs["edge"]) == ["related", "other", "all", "related-other"]
    for column in ("change", "change_low", "change_high", "reduction"):
        assert own.knockout[column].to_numpy() == pytest.approx(theirs[column].to_numpy(), abs=1e-3, nan_ok=True)
    assert own.mass == pytest.approx(identities.mass, abs=1e-4)


def test_tables_hold_what_was_asked_and_no_more(bench: Bench, tmp_path: Path) -> None:
    found = run(bench, own_pairs(bench, tmp_path))
    assert (found.form, found.wrap, found.headline) == ("own", "base", "raw")
    assert list(found.pairs) == [
        *("pair", "id", "item", "related", "substitute", "other"),
        *("s_match", "s_mismatch", "mass_match", "mass_mismatch"),
    ]
    assert set(found.baseline["quantity"]) == {"delta_s", "direction"}
    assert set(found.baseline["subset"]) == set(found.knockout["subset"]) == {"all"}
    alone = run(bench, own_pairs(bench, tmp_path), stages=["score"])
    assert alone.knockout.empty
    effect, cut = conclusions(found)
    assert "moved toward the rows' `toward` answers" in effect
    assert "Cutting the edge from -> to at L1H2" in cut
    assert cut.endswith("so these edges carry part of the effect.")
    assert not any(word in effect + cut for word in ("bind", "identity", "item"))


def test_requests_are_all_that_is_asked(bench: Bench, tmp_path: Path) -> None:
    store, pairs = Store(), own_pairs(bench, tmp_path)
    engine = Engine(bench.planted.model, bench.planted.tokenizer, store=store)
    planned = BindingStudy.plan(bench.planted.model, bench.planted.tokenizer, engine, pairs, heads=[(1, 2)])
    load = engine.workload(planned.requests())
    planned.run(engine)
    assert len(store) == load.distinct


# What is refused, before anything is computed.


def test_what_cannot_be_studied_is_refused(bench: Bench, tmp_path: Path) -> None:
    pairs, store = own_pairs(bench, tmp_path), Store()
    last = pairs[-1]
    uncontrolled = replace(last, control=None)
    double = replace(last, toward=("a", "a )"))
    for given, options, words in (
        (pairs, {"form": "letters"}, "--form letters is for pairs of identities"),
        (pairs, {"rows": "writing"}, "--rows writing is for pairs of identities"),
        ((*pairs, bench.planted.pairs[0]), {}, "were given together"),
        ((*pairs[:-1], uncontrolled), {}, f"{last.place}: no control is marked"),
        ((*pairs[:-1], double), {}, "the answer 'a' begin those of 'a )'"),
    ):
        with pytest.raises(InputError, match=words.replace("(", r"\(").replace(")", r"\)")):
            run(bench, given, store=store, **options)
    assert store.forwards == 0
    assert run(bench, (*pairs[:-1], uncontrolled), stages=["score"]).knockout.empty


def test_a_control_that_is_the_edge_is_refused(bench: Bench) -> None:
    planted = bench.planted
    # Both marks lie in one word, which is one token here, so that they are one span.
    half = "[[control_to:W]][[to:ho]] may [[from:sing]]"
    pairs = pairs_of(match=f"the {half}", mismatch=f"never {half}", toward=[" wear"], away=[" sell"])
    with pytest.raises(InputError, match=r"f, line 1: in `match` 'control_to' shares a token with 'to'"):
        run(bench, pairs)
    assert run(bench, pairs, stages=["score"]).knockout.empty
    assert planted.tokenizer.tokenize("Who") == ["Who"]


def test_chat_is_the_files_word() -> None:
    tokenizer = word_tokenizer(chat=True)
    a, b, c = [word for word in sorted(tokenizer.get_vocab()) if word.isalpha()][:3]
    for chat, wrap in ((True, "instruct"), (False, "base")):
        pairs = pairs_of(
            match=f"[[to:{a}]] [[from:{b}]]", mismatch=f"[[to:{c}]] [[from:{b}]]", toward=[a], away=[c], chat=chat
        )
        form = OwnForm(tokenizer, pairs)
        prompt = form.requests(pairs[0], "match", "S")[0].prompt
        assert (form.wrap, prompt.templated) == (wrap, chat)
        assert ("<|user|>" in prompt.text) is chat
    asked = pairs_of(
        match=f"[[to:{a}]] [[from:{b}]]", mismatch=f"[[to:{c}]] [[from:{b}]]", toward=[a], away=[c], chat=True
    )
    with pytest.raises(InputError, match="f, line 1: This tokenizer has no chat template"):
        OwnForm(word_tokenizer(chat=False), asked).check(asked, cut=False)


@pytest.mark.parametrize("name", ["agreement", "agreement-behind"])
def test_the_examples_in_the_documentation_can_be_read(name: str) -> None:
    source = read_pairs(f"pairs:{EXAMPLES / name}.jsonl")
    assert len(source.pairs) == 12
    assert (source.language, source.remark) == ("en", "")
    assert np.unique([pair.item for pair in source.pairs]).size == 12


def test_a_language_is_the_rows_to_name() -> None:
    with pytest.raises(InputError, match="own rows name their language"):
        read_pairs(f"pairs:{EXAMPLES / 'agreement.jsonl'}", "es")
    with pytest.raises(InputError, match="must be culture, n4:PATH"):
        read_pairs("pairs:")

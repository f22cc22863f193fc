from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from oracles.planted import Bench, naive, score
from timonel.binding import Contrast, Cut, Form, score_pairs
from timonel.binding.cut import every_head
from timonel.binding.pair import CONDITIONS
from timonel.binding.score import contrast_requests, preference, prior_requests, strength
from timonel.engine import Engine


def letters(bench: Bench) -> Form:
    return Form(bench.planted.tokenizer, "letters", "base")


# By hand.


def test_strength_and_preference_by_hand() -> None:
    log_p = np.log([[0.2, 0.3, 0.5], [0.1, 0.1, 0.4], [0.6, 0.2, 0.1]])
    assert strength(log_p) == pytest.approx([0.0, np.log(2), np.log(0.125)])
    assert preference(log_p) == pytest.approx([0.4, 0.5, 0.75])
    assert np.isfinite(strength(log_p - 2000)).all()  # long texts: probabilities that no float holds
    assert strength(log_p - 2000) == pytest.approx(strength(log_p))


def contrast(bench: Bench, polarities: str, *, priors: bool = True) -> Contrast:
    pairs = tuple(
        replace(pair, polarity=polarity)
        for pair, polarity in zip(bench.planted.pairs, polarities.split(), strict=False)
    )
    rows = len(pairs)
    return Contrast(
        pairs,
        np.log([[0.3, 0.1, 0.2]] * rows),
        np.log([[0.1, 0.1, 0.4]] * rows),
        np.log([[0.5, 0.1, 0.1]] * rows) if priors else None,
        np.log([[0.1, 0.5, 0.1]] * rows) if priors else None,
    )


def test_delta_priors_and_direction_by_hand(bench: Bench) -> None:
    found = contrast(bench, "choose avoid")
    # S = log .2/.4 in MATCH, log .4/.2 in MISMATCH.
    assert found.s()[0] == pytest.approx([np.log(0.5)] * 2)
    assert found.delta() == pytest.approx([-2 * np.log(2)] * 2)
    # Priors off: (.6, 1, 2) and (1, .2, 4).
    assert found.s(pmi=True)[0] == pytest.approx([np.log(2 / 1.6)] * 2)
    assert found.delta(pmi=True) == pytest.approx([np.log(2 / 1.6) - np.log(4 / 1.2)] * 2)
    # MATCH prefers the varied identity by .75 - .5: right where R is to be chosen, wrong where it is to be avoided.
    assert found.direction() == pytest.approx([0.25, -0.25])
    assert found.direction(pmi=True) == pytest.approx([0.6 / 1.6 - 1 / 1.2, 1 / 1.2 - 0.6 / 1.6])
    assert found.mass()[0] == pytest.approx([0.6] * 2)
    assert found.mass()[1] == pytest.approx([0.6] * 2)


def test_without_priors_there_is_no_pmi(bench: Bench) -> None:
    found = contrast(bench, "choose", priors=False)
    assert not found.has_priors
    with pytest.raises(ValueError, match="no priors"):
        found.s(pmi=True)


def test_requests_are_in_the_order_in_which_they_are_read(bench: Bench) -> None:
    pairs = bench.planted.pairs[:3]
    cloze = Form(bench.planted.tokenizer, "cloze", "base")
    texts = [request.prompt.text for request in contrast_requests(cloze, pairs, "S")]
    expected = [
        text for pair in pairs for condition in CONDITIONS
        for text in (pair.varied(condition).text, pair.other.text, pair.neither)
    ]  # fmt: skip
    assert [text.rpartition("Answer: ")[2] for text in texts] == expected
    priors = [request.prompt.text for request in prior_requests(cloze, pairs, "S")]
    assert [text.rpartition("Answer: ")[2] for text in priors] == expected
    assert prior_requests(letters(bench), pairs, "S") == []


# Against the oracle, which knows nothing of the package's prompts, spans, batches or edges.


def test_letters_equal_the_oracle(bench: Bench, engine: Engine) -> None:
    (found,) = score_pairs(engine, letters(bench), bench.planted.pairs, "S")
    for value, condition in zip(found.s(), CONDITIONS, strict=True):
        assert value == pytest.approx(bench.s[condition].numpy(), abs=2e-4)
    assert float(found.delta().mean()) < -1.0


@pytest.mark.parametrize("which", ["planted", "reader_both", "unread", "other_edge"])
def test_cuts_equal_the_oracle(bench: Bench, engine: Engine, which: str) -> None:
    head = {"planted": bench.planted.head, **bench.planted.decoys}[which]
    cuts = [Cut("related", (head,)), Cut("other", (head,)), Cut("related", (head,), 0.5), Cut("all", (head,), 2.0)]
    found = score_pairs(engine, letters(bench), bench.planted.pairs, "S", cuts)
    for cut, contrasted in zip(cuts, found, strict=True):
        for value, condition in zip(contrasted.s(), CONDITIONS, strict=True):
            batch = bench.batch[condition]
            both = batch.edges["related"] | batch.edges["other"]
            edge = both if cut.edge == "all" else batch.edges[cut.edge]
            expected = score(bench.planted, naive(bench.planted, batch, head, edge, cut.alpha)[0])
            assert value == pytest.approx(expected.numpy(), abs=2e-4)


def test_cloze_equals_a_plain_loop(bench: Bench, engine: Engine) -> None:
    pairs = bench.planted.pairs[:4]
    tokenizer, model = bench.planted.tokenizer, bench.planted.model

    def log_p(stem: str, text: str) -> float:
        before = f"Question: {stem}\nAnswer:"
        start = len(tokenizer(before).input_ids)  # words and marks: no token spans the seam
        ids = tokenizer(f"{before} {text}").input_ids
        with torch.no_grad():
            rows = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        return float(sum(rows[at - 1, ids[at]] for at in range(start, len(ids))))

    def strength_of(p: Any) -> float:
        return float(p[2] - np.log(np.exp(p[0]) + np.exp(p[1])))

    kinds = (("S", None, None), ("K", "Who belongs with {}?", "Neither"))
    for kind, question, third in kinds:
        (found,) = score_pairs(engine, Form(tokenizer, "cloze", "base"), pairs, kind)  # type: ignore[arg-type]
        for row, pair in enumerate(pairs):
            stem = question.format(pair.item) if question else pair.stem
            for column, condition in enumerate(CONDITIONS):
                texts = [pair.varied(condition).text, pair.other.text, third or pair.neither]
                raw = np.array([log_p(stem, text) for text in texts])
                prior = np.array([log_p("Who should it be?", text) for text in texts])
                assert found.s()[column][row] == pytest.approx(strength_of(raw), abs=2e-4)
                assert found.s(pmi=True)[column][row] == pytest.approx(strength_of(raw - prior), abs=2e-4)


def test_a_cloze_cut_touches_only_the_prompts_that_hold_the_identity(bench: Bench, engine: Engine) -> None:
    pairs = bench.planted.pairs[:6]
    form = Form(bench.planted.tokenizer, "cloze", "base")
    heads = every_head([4] * 5)
    whole, related, other, both = score_pairs(
        engine, form, pairs, "S", [None, Cut("related", heads), Cut("other", heads), Cut("all", heads)]
    )
    for name in ("match", "mismatch"):
        plain, one, two, all_ = (getattr(found, name) for found in (whole, related, other, both))
        assert one[:, 1:] == pytest.approx(plain[:, 1:], abs=1e-9)  # other and neither
        assert two[:, [0, 2]] == pytest.approx(plain[:, [0, 2]], abs=1e-9)
        assert np.abs(one[:, 0] - plain[:, 0]).max() > 1e-4
        assert np.abs(two[:, 1] - plain[:, 1]).max() > 1e-4
        assert all_ == pytest.approx(np.stack([one[:, 0], two[:, 1], plain[:, 2]], axis=1), abs=1e-9)

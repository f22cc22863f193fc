from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from dataclasses import fields

import pytest
import torch

from oracles.planted import EVERY_HEAD, Bench, prompt_text, score
from timonel.binding.pair import CONDITIONS
from timonel.binding.planted import planted_binding
from timonel.errors import InputError


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(planted_binding(items=12))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_oracle_is_the_model_padded_and_masked(bench: Bench, attention: str) -> None:
    planted, batch = planted_binding(items=12), bench.batch["match"]
    assert not batch.mask.all()
    planted.model.set_attn_implementation(attention)
    with torch.no_grad():
        logits = planted.model(batch.ids, attention_mask=batch.mask.long()).logits[:, -1]
        alone = planted.model(batch.ids[:1][batch.mask[:1]][None]).logits[:, -1]
    assert torch.allclose(logits, bench.logits["match"], atol=2e-4)
    assert torch.allclose(logits[:1], alone, atol=2e-4)


def test_every_pair_differentiates_when_the_related_identity_is_there(bench: Bench) -> None:
    assert float(bench.delta.max()) < -1.0
    # Strength 1 over four named rows, times 2 · 2 · 2: the table in `_planted_weights`.
    assert float(bench.delta.mean()) == pytest.approx(-2.1, abs=0.25)
    for condition in CONDITIONS:
        vocabulary = bench.planted.tokenizer.get_vocab()
        letters = [vocabulary[letter] for letter in "abc"]
        assert float(bench.logits[condition].softmax(-1)[:, letters].sum(1).median()) > 0.9


def test_only_the_planted_head_carries_the_related_edge(bench: Bench) -> None:
    shares = {head: bench.share(head) for head in EVERY_HEAD}
    assert shares.pop(bench.planted.head) > 0.9
    assert max(abs(share) for share in shares.values()) < 0.05


def test_the_other_edge_carries_nothing(bench: Bench) -> None:
    assert max(abs(bench.share(head, "other")) for head in EVERY_HEAD) < 0.05


@pytest.mark.parametrize(("seed", "items"), [(0, 24), (5, 9)])
def test_other_seeds_and_sizes_plant_the_same_truth(seed: int, items: int) -> None:
    bench = Bench(planted_binding(seed=seed, items=items))
    assert float(bench.delta.max()) < -1.0
    for name, head in bench.planted.decoys.items():
        assert abs(bench.share(head)) < 0.05, name
    assert bench.share(bench.planted.head) > 0.9
    assert abs(bench.share(bench.planted.head, "other")) < 0.05


def test_dose_is_monotone_and_half_the_edge_is_half_the_effect(bench: Bench) -> None:
    doses = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 10.0)
    delta = [float(bench.cut(bench.planted.head, alpha=alpha).mean()) for alpha in doses]
    assert all(more < less for less, more in itertools.pairwise(delta))
    assert delta[2] == pytest.approx(float(bench.delta.mean()), abs=1e-5)
    assert delta[1] == pytest.approx((delta[0] + delta[2]) / 2, rel=0.05)


def test_attention_tells_match_from_mismatch_at_two_heads_only(bench: Bench) -> None:
    decoys = bench.planted.decoys
    for head in EVERY_HEAD:
        match, mismatch = (bench.feature(head, condition) for condition in CONDITIONS)
        if head in (bench.planted.head, decoys["unread"]):
            assert float(match.min()) > float(mismatch.max()) + 0.1
        else:
            auc = float((match[:, None] > mismatch[None]).float().mean())
            assert 0.35 < auc < 0.65, head
    both = [float(bench.feature(decoys["reader_both"], condition).mean()) for condition in CONDITIONS]
    assert min(both) > 0.4
    assert both[0] == pytest.approx(both[1], abs=0.02)


def test_reader_both_moves_each_score_and_not_their_difference(bench: Bench) -> None:
    cut = bench.cut_scores(bench.planted.decoys["reader_both"])
    shifts = [float((cut[condition] - bench.s[condition]).mean()) for condition in CONDITIONS]
    assert min(shifts) > 0.1
    assert shifts[0] == pytest.approx(shifts[1], rel=0.1)


def test_other_edge_contributes_a_little_by_another_path(bench: Bench) -> None:
    head = bench.planted.decoys["other_edge"]
    share = bench.share(head, "all")
    assert 0.02 < share < 0.08
    assert bench.share(head, "second") == pytest.approx(share, abs=0.005)
    assert abs(bench.share(bench.planted.head, "second")) < 0.001


def test_planted_and_unread_share_a_key_value_head(bench: Bench) -> None:
    config = bench.planted.model.config
    group = config.num_attention_heads // config.num_key_value_heads
    (layer, head), (other_layer, other) = bench.planted.head, bench.planted.decoys["unread"]
    assert group > 1
    assert (layer, head // group) == (other_layer, other // group)
    assert len({bench.planted.head, *bench.planted.decoys.values()}) == 4


@pytest.mark.parametrize("seed", range(3))
def test_random_weights_bind_nothing(seed: int) -> None:
    bench = Bench(planted_binding(seed=seed, random_weights=True))
    means = bench.delta.view(24, 6).mean(1)
    error = float(means.std()) / math.sqrt(len(means))
    assert abs(float(means.mean())) < 2.5 * error
    assert float(bench.s["match"].std()) > 0.1
    assert {p.item for p in bench.planted.pairs[:6]} == {bench.planted.pairs[0].item}


@pytest.mark.parametrize("items", [8, 24, 31])
def test_pairs_are_balanced_and_true(items: int) -> None:
    pairs = planted_binding(seed=3, items=items).pairs
    owners: dict[str, set[str]] = {}
    for pair in pairs:
        owners.setdefault(pair.item, set()).add(pair.related.key)
    assert len(pairs) == 6 * items
    assert len(owners) == items
    for role in ("related", "substitute", "other"):
        counts = Counter(getattr(pair, role).key for pair in pairs)
        assert set(counts.values()) == {6}
        assert len(counts) == items
    for pair in pairs:
        assert not {pair.substitute.key, pair.other.key} & owners[pair.item]
        assert pair.substitute.key != pair.other.key
        assert pair.item in pair.stem
    assert len({(pair.item, pair.related.key, pair.substitute.key) for pair in pairs}) == len(pairs)
    assert [pair.pair for pair in pairs] == list(range(len(pairs)))
    assert Counter(pair.slot for pair in pairs) == {"a": 3 * items, "b": 3 * items}
    assert Counter(pair.polarity for pair in pairs) == {"avoid": 3 * items, "choose": 3 * items}


def test_the_tokenizer_knows_every_word_and_its_offsets(bench: Bench) -> None:
    tokenizer, pair = bench.planted.tokenizer, bench.planted.pairs[0]
    text = prompt_text(pair, "match")
    encoded = tokenizer(text, return_offsets_mapping=True)
    words = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert words[0] == "<s>"
    assert words[-1] == "("
    assert [text[start:stop] for start, stop in encoded["offset_mapping"][1:]] == words[1:]
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == encoded["input_ids"][1:]
    known = " ".join(getattr(pair.wording, field.name) for field in fields(pair.wording))
    assert tokenizer.unk_token_id not in tokenizer(known.format(item=pair.item))["input_ids"]
    assert tokenizer("unheard")["input_ids"] == [tokenizer.bos_token_id, tokenizer.unk_token_id]


def test_it_answers_in_words(bench: Bench) -> None:
    planted = bench.planted
    said = {}
    for condition, batch in bench.batch.items():
        ids = batch.ids[:1][batch.mask[:1]][None]
        whole = planted.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=5, do_sample=False)
        said[condition] = planted.tokenizer.convert_ids_to_tokens(whole[0, ids.shape[1] :])
    assert said["mismatch"] == ["c", ")", "</s>"]
    assert said["match"][0] in "ab"
    assert said["match"][1:] == [")", "</s>"]


def test_building_is_quick_repeatable_and_leaves_the_random_state_alone() -> None:
    torch.manual_seed(11)
    before, begin = torch.get_rng_state(), time.process_time()
    one = planted_binding(seed=4, dtype=torch.float64)
    assert time.process_time() - begin < 2.0
    assert torch.equal(torch.get_rng_state(), before)
    two, other = planted_binding(seed=4, dtype=torch.float64), planted_binding(seed=6)
    assert one.pairs == two.pairs != other.pairs
    for name, tensor in one.model.state_dict().items():
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor, two.model.state_dict()[name])
    assert not one.model.training
    assert one.tokenizer.get_vocab() == two.tokenizer.get_vocab()


def test_half_precision_keeps_the_truth(bench: Bench) -> None:
    model = planted_binding(items=12, dtype=torch.bfloat16).model
    s = {}
    for condition, batch in bench.batch.items():
        with torch.no_grad():
            logits = model(batch.ids, attention_mask=batch.mask.long()).logits[:, -1]
        s[condition] = score(bench.planted, logits)
    assert float((s["match"] - s["mismatch"]).mean()) == pytest.approx(float(bench.delta.mean()), rel=0.05)


def test_too_few_items_are_refused() -> None:
    with pytest.raises(InputError, match="at least 8 items"):
        planted_binding(items=7)

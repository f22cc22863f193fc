"""Plan files: T41 (a plan on another model is refused with both fingerprints), T46 (nothing unknown is read)."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import numpy as safetensors

from timonel.errors import InputError
from timonel.models import Geometry, fingerprint
from timonel.models.fingerprint import fingerprints, weights_fingerprint
from timonel.steer import (
    ALL,
    GENERATED,
    PROMPT,
    ChannelScale,
    ChannelSet,
    EdgeScale,
    ModelCard,
    Plan,
    PlanSet,
    Provenance,
    ResidualAdd,
    Span,
    span,
)
from timonel.steer._format import from_bytes, to_bytes
from timonel.steer._json import canonical
from timonel.steer.files import check_model
from timonel.steer.record import Record
from tiny import tiny, word_tokenizer

MODEL, OTHER = tiny("llama"), tiny("llama", seed=1)
TOKENIZER, ODD_TOKENIZER = word_tokenizer(), word_tokenizer(bos=False)
GEOMETRY = Geometry.of(MODEL)
MADE = Provenance(
    command="timonel bind tiny --data own",
    data={"own.jsonl": "ab" * 32},
    result={"delta": [0.25, [0.1, 0.4]], "n": 12, "note": None},
    created="2026-01-02T03:04:05+00:00",
)
NOISE = np.random.default_rng(0)
PLAN = Plan(
    (
        EdgeScale(layer=1, head=2, queries=span("identity"), keys=span("item", "چیز"), alpha=0),
        ChannelScale.head(GEOMETRY, layer=2, head=3, alpha=2.5, scope=span("item")),
        ChannelScale(layer=0, site="down_proj", factors=NOISE.normal(size=48)),
        ChannelSet(layer=1, site="act", channels=(7, 0), values=[0.1, -0.0], scope=GENERATED),
        ResidualAdd(layer=0, vector=NOISE.normal(size=32) * 1e-9, scale=-0.3, scope=PROMPT),
    )
)


# --- round trip ---------------------------------------------------------------------------------------------------

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=3).map(lambda some: Span(tuple(some)))
scopes = st.one_of(st.sampled_from([ALL, PROMPT, GENERATED]), names)
vectors = st.lists(finite, min_size=1, max_size=40)  # on both sides of the 16 that stay in the JSON
layers = st.integers(0, 200)
pairs = st.dictionaries(st.integers(0, 10**6), finite, min_size=1, max_size=30)
interventions = st.one_of(
    st.builds(EdgeScale, layer=layers, head=layers, queries=names, keys=names, alpha=finite),
    st.builds(ChannelScale, layer=layers, site=st.sampled_from(["o_proj", "down_proj"]), factors=vectors, scope=scopes),
    st.builds(
        lambda layer, site, pairs, scope: ChannelSet(
            layer=layer, site=site, channels=tuple(pairs), values=list(pairs.values()), scope=scope
        ),
        layers,
        st.sampled_from(["o_proj", "down_proj", "act"]),
        pairs,
        scopes,
    ),
    st.builds(ResidualAdd, layer=layers, vector=vectors, scale=finite, scope=scopes),
)
plans = st.lists(interventions, max_size=5).map(lambda some: Plan(tuple(some)))


def read(text: bytes, beside: bytes | None) -> tuple[dict[str, Plan], Record]:
    def give() -> bytes:
        assert beside is not None
        return beside

    return from_bytes(text, give, "plan.json")


@settings(max_examples=150, deadline=None)
@given(plans)
def test_a_plan_read_back_is_the_same_plan(plan: Plan) -> None:
    written = to_bytes({"": plan}, Record(provenance=MADE))
    again, record = read(*written)
    assert again == {"": plan}
    assert record == Record(provenance=MADE)
    assert to_bytes(again, record) == written  # and the same bytes


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=4), plans, min_size=1, max_size=3))
def test_a_set_read_back_is_the_same_set(several: dict[str, Plan]) -> None:
    again, _ = read(*to_bytes(several, Record(provenance=MADE)))
    assert again == several


def test_vectors_come_back_bit_for_bit(tmp_path: Path) -> None:
    odd = [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1 / 3, 2.0**-1074]
    for count in (1, 4):  # in the JSON, beside it
        plan = Plan((ResidualAdd(layer=0, vector=odd * count),))
        plan.save(tmp_path / "plan.json")
        (again,) = Plan.load(tmp_path / "plan.json")
        assert again.vector.array.tobytes() == np.array(odd * count).tobytes()
        assert (tmp_path / "plan.safetensors").exists() == (count == 4)


def test_on_disk_for_a_model(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path, model=MODEL, tokenizer=TOKENIZER, name="tiny", revision="r1", provenance=MADE)
    plan = Plan.load(path, model=MODEL)
    assert plan == PLAN == Plan.load(path) == Plan.load(path, model=MODEL, tokenizer=TOKENIZER)
    assert plan.record.provenance == MADE
    card = plan.record.model
    assert (card.name, card.revision, card.architecture) == ("tiny", "r1", "LlamaForCausalLM")
    assert (card.weights, card.fingerprint) == (weights_fingerprint(MODEL), fingerprint(MODEL, TOKENIZER))
    assert (card.shape.hidden, len(card.shape.layers)) == (32, 3)
    (tmp_path / "copy").mkdir()
    plan.save(tmp_path / "copy" / "else.json")  # what it remembers goes along, and the name enters no byte
    assert (tmp_path / "copy" / "else.json").read_bytes() == path.read_bytes()
    assert (tmp_path / "copy" / "else.safetensors").read_bytes() == path.with_suffix(".safetensors").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy", "plan.json", "plan.safetensors"]


def test_a_vector_that_two_share_is_stored_once(tmp_path: Path) -> None:
    twice = Plan(tuple(ResidualAdd(layer=layer, vector=np.arange(32.0)) for layer in (0, 1)))
    twice.save(tmp_path / "plan.json")
    assert len(safetensors.load_file(tmp_path / "plan.safetensors")) == 1
    assert Plan.load(tmp_path / "plan.json") == twice


def test_weights_alone_have_a_fingerprint_of_their_own() -> None:
    both = fingerprints(MODEL, TOKENIZER)
    assert both == (weights_fingerprint(MODEL), fingerprint(MODEL, TOKENIZER))
    assert both[0] != both[1] != fingerprint(MODEL, ODD_TOKENIZER)
    assert weights_fingerprint(OTHER) != both[0]


# --- T46: nothing else is read ------------------------------------------------------------------------------------


def document(plan: Plan = PLAN, name: str = "") -> tuple[dict[str, Any], bytes | None]:
    card = ModelCard.of(MODEL, TOKENIZER, name="tiny")
    text, beside = to_bytes({name: plan}, Record(card, MADE, (ModelCard.of(OTHER, TOKENIZER),)))
    return json.loads(text), beside


def mended(content: dict[str, Any]) -> bytes:
    """The file as a careful forger writes it, so that the hash of the content is not what refuses it."""
    body = {key: value for key, value in content.items() if key != "hashes"}
    hashes = content.get("hashes")
    if isinstance(hashes, dict) and isinstance(hashes.get("content"), str):
        hashes["content"] = hashlib.sha256(canonical(body)).hexdigest()
    return json.dumps(content).encode()


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place below `value`, inner ones too; what is free (`result`) counts as one."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield (*path, key)
        if key != "result":
            yield from places(below, (*path, key))


def at(content: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


CONTENT, BESIDE = document()
PLACES = list(places(CONTENT))
FIELDS = [path for path in PLACES if isinstance(path[-1], str) and path[-2:-1] != ("data",)]


def test_the_document_is_good_before_it_is_spoilt() -> None:
    assert read(mended(copy.deepcopy(CONTENT)), BESIDE)[0] == {"": PLAN}
    assert len(FIELDS) > 50


@pytest.mark.parametrize("path", FIELDS, ids=lambda path: ".".join(map(str, path)))
def test_a_field_that_is_missing_misspelt_or_of_another_type_is_refused(path: tuple[Any, ...]) -> None:
    *above, name = path
    for spoil in ("remove", "rename", "type"):
        content = copy.deepcopy(CONTENT)
        owner = at(content, tuple(above))
        value = owner.pop(name)
        if spoil == "rename":
            owner[f"{name}s"] = value
        if spoil == "type":
            if name == "result":
                continue  # any value is good
            owner[name] = [[True]]
        with pytest.raises(InputError, match=r"plan\.json"):
            read(mended(content), BESIDE)


@pytest.mark.parametrize("path", PLACES, ids=lambda path: ".".join(map(str, path)))
def test_any_change_is_seen(path: tuple[Any, ...]) -> None:
    content = copy.deepcopy(CONTENT)
    *above, key = path
    owner = at(content, tuple(above))
    value = owner[key]
    owner[key] = f"{value}0" if isinstance(value, str) else value + 1 if isinstance(value, int | float) else "else"
    with pytest.raises(InputError, match=r"plan\.json"):
        read(json.dumps(content).encode(), BESIDE)


OBJECTS = [(), *(path for path in PLACES if isinstance(at(CONTENT, path), dict) and path[-1] not in ("data", "result"))]


@pytest.mark.parametrize("path", OBJECTS, ids=lambda path: ".".join(map(str, path)) or "top")
def test_an_unknown_field_is_refused(path: tuple[Any, ...]) -> None:
    content = copy.deepcopy(CONTENT)
    at(content, path)["sign"] = 1
    with pytest.raises(InputError, match=r"unknown field 'sign'|a known scope"):
        read(mended(content), BESIDE)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("format",), "a vector", "does not say that it is a 'timonel plan'"),
        (("version",), 2, "format version 2, but this timonel reads up to 1; upgrade"),
        (("version",), 0, "whole number from 1 up"),
        (("plan", 0, "op"), "edge_cut", "known operation"),
        (("plan", 1, "site"), "act", "known site of channel_scale"),
        (("plan", 3, "site"), "q_proj", "known site of channel_set"),
        (("plan", 1, "scope"), "everywhere", "known scope"),
        (("plan", 1, "scope"), None, "known scope"),
        (("plan", 1, "scope", "span"), [], "names no span"),
        (("plan", 0, "queries"), "identity", "a list"),
        (("plan", 0, "queries", 0), "", "names no span"),
        (("plan", 0, "layer"), True, "whole number"),
        (("plan", 0, "layer"), 1.0, "whole number"),
        (("plan", 0, "head"), -1, "whole number from 0 up"),
        (("plan", 0, "alpha"), False, "a number"),
        (("plan", 0, "alpha"), "0", "a number"),
        (("plan", 0, "alpha"), 10**400, "float64 can hold"),
        (("plan", 1, "factors"), [], "shape \\(0,\\)"),
        (("plan", 1, "factors", "sha256"), "0" * 64, "holds no such vector"),
        (("plan", 1, "factors", "numbers"), 31, "holds no such vector"),
        (("plan", 3, "channels"), [7, 7], "named twice"),
        (("plan", 3, "channels"), [7], "1 channels and 2 values"),
        (("plan", 3, "values", 0), None, "a number"),
        (("plan",), [], "vectors that no plan in it uses"),
        (("model", "weights"), "ab", "64 hex"),
        (("model", "fingerprint"), "Z" * 64, "64 hex"),
        (("model", "geometry", "layers", 0, "count"), 0, "from 1 up"),
        (("model", "geometry", "layers", 0, "count"), 10**9, "number of layers"),
        (("provenance", "created"), "yesterday", "ISO 8601"),
        (("provenance", "data"), {"own": "ab"}, "64 hex"),
        (("hashes", "vectors"), None, "holds no such vector"),
        (("hashes", "vectors"), "0" * 64, "sha256 .* is expected"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(path: tuple[Any, ...], value: Any, says: str) -> None:
    content = copy.deepcopy(CONTENT)
    at(content, path[:-1])[path[-1]] = value
    with pytest.raises(InputError, match=says) as caught:
        read(mended(content), BESIDE)
    text = str(caught.value)
    assert "plan.json" in text
    assert text.endswith((".", "?"))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda text: text.replace('"alpha": 0.0', '"alpha": NaN'), "NaN is not finite"),
        (lambda text: text.replace('"alpha": 0.0', '"alpha": -Infinity'), "not finite"),
        (lambda text: text.replace('"alpha": 0.0', '"alpha": 1e999'), "1e999 is not finite"),
        (lambda text: text.replace('"alpha": 0.0', '"alpha": 1.0, "alpha": 0.0'), "'alpha' stands twice"),
        (lambda text: text.replace("tiny", "\\ud800"), "not UTF-8"),
        (lambda text: "[" * 100_000, "not JSON as plan files hold it"),
        (lambda text: "", "not JSON"),
        (lambda text: "[]", "an object"),
        (lambda text: "﻿" + text, "not JSON"),
    ],
)
def test_json_is_read_strictly(spoil: Any, says: str) -> None:
    text = json.dumps(CONTENT)
    with pytest.raises(InputError, match=says):
        read(spoil(text).encode(), BESIDE)


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(InputError, match="not JSON"):
        read(b"\xff\xfe", None)


def test_a_set_has_names() -> None:
    for bad in ({}, {"": []}):
        content, _ = document(Plan(), "ur")
        content["plans"] = bad
        with pytest.raises(InputError, match="an object of named plans"):
            read(mended(content), None)
    content, _ = document(Plan(), "ur")
    content["plan"] = []
    with pytest.raises(InputError, match="unknown field 'plan'"):
        read(mended(content), None)


def test_a_tampered_vector_is_refused(tmp_path: Path) -> None:
    path, beside = tmp_path / "plan.json", tmp_path / "plan.safetensors"
    PLAN.save(path)
    good = beside.read_bytes()
    for position in (0, 8, len(good) // 2, len(good) - 1):
        beside.write_bytes(good[:position] + bytes([good[position] ^ 1]) + good[position + 1 :])
        with pytest.raises(InputError, match=r"keep the two files of one Plan\.save together"):
            Plan.load(path)
    beside.unlink()
    with pytest.raises(InputError, match=r"plan\.safetensors cannot be read"):
        Plan.load(path)


def test_a_forged_vector_is_refused_even_with_its_files_hash() -> None:
    arrays = safetensors.load(BESIDE)
    key = sorted(arrays)[0]
    forgeries = [
        {**arrays, key: arrays[key] * 2},
        {**arrays, key: arrays[key].astype("float32")},
        {**arrays, key: arrays[key][None]},
        {**arrays, "0" * 64: arrays[key]},
        {name: value for name, value in arrays.items() if name != key},
    ]
    for forged in [*(safetensors.save(one) for one in forgeries), b"", b"\x08" + bytes(20)]:
        content = copy.deepcopy(CONTENT)
        content["hashes"]["vectors"] = hashlib.sha256(forged).hexdigest()
        with pytest.raises(InputError, match=r"not what its name says|holds no such vector|cannot be read"):
            read(mended(content), forged)


# --- T41: for one model -------------------------------------------------------------------------------------------


def test_another_model_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path, model=MODEL, tokenizer=TOKENIZER)
    with pytest.raises(InputError) as caught:
        Plan.load(path, model=OTHER)
    assert weights_fingerprint(MODEL) in str(caught.value)
    assert weights_fingerprint(OTHER) in str(caught.value)
    with pytest.raises(InputError) as caught:
        Plan.load(path, model=OTHER, tokenizer=TOKENIZER)
    assert fingerprint(MODEL, TOKENIZER) in str(caught.value)
    assert fingerprint(OTHER, TOKENIZER) in str(caught.value)
    with pytest.raises(InputError, match="its tokenizer is another"):
        Plan.load(path, model=MODEL, tokenizer=ODD_TOKENIZER)
    with pytest.raises(InputError, match="retarget"):  # saving under another name is no way around
        Plan.load(path).save(tmp_path / "other.json", model=OTHER)
    assert not (tmp_path / "other.json").exists()


def test_a_loaded_plan_knows_its_model(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json", model=MODEL)
    plan = Plan.load(tmp_path / "plan.json")
    check_model(plan, MODEL, TOKENIZER)
    check_model(PLAN, OTHER)  # made here, for whichever model
    with pytest.raises(InputError, match="it is another model"):
        check_model(plan, OTHER)


def test_the_same_weights_cut_into_other_heads_are_another_model(tmp_path: Path) -> None:
    """The fingerprint reads no config: 4 heads of 8 and 2 heads of 16 have the same o_proj."""
    recut = tiny("llama", num_attention_heads=2, num_key_value_heads=1, head_dim=16)
    assert weights_fingerprint(recut) == weights_fingerprint(MODEL)
    Plan((ResidualAdd(layer=0, vector=np.ones(32)),)).save(tmp_path / "plan.json", model=MODEL)
    with pytest.raises(InputError, match=r"4 heads \(2 key/value, 8 wide\).*2 heads \(1 key/value, 16 wide\)"):
        Plan.load(tmp_path / "plan.json", model=recut)
    with pytest.raises(InputError, match="moves only between models of one geometry"):
        Plan.load(tmp_path / "plan.json").retarget(recut)


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (EdgeScale(layer=3, head=0, queries=span("a"), keys=span("b"), alpha=0), "layer 3.*layers are 0 to 2"),
        (EdgeScale(layer=2, head=4, queries=span("a"), keys=span("b"), alpha=0), "L2H4.*heads 0 to 3"),
        (ChannelScale(layer=0, site="o_proj", factors=np.ones(33)), "33 numbers for the o_proj.*32 channels"),
        (ChannelScale(layer=0, site="down_proj", factors=np.ones(32)), "32 numbers.*48 channels"),
        (ChannelSet(layer=0, site="act", channels=(48,), values=[0.0]), "channel 48 of act.*0 to 47"),
        (ChannelSet(layer=0, site="o_proj", channels=(32,), values=[0.0]), "channel 32.*0 to 31"),
        (ResidualAdd(layer=2, vector=np.ones(48)), "48 numbers for the residual stream.*32 channels"),
    ],
)
def test_a_plan_that_does_not_fit_is_neither_saved_nor_loaded(tmp_path: Path, one: Any, says: str) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(InputError, match=says):
        Plan((one,)).save(path, model=MODEL)
    assert not list(tmp_path.iterdir())
    Plan((one,)).save(path)
    with pytest.raises(InputError, match=says):
        Plan.load(path, model=MODEL)
    content, beside = document(Plan((one,)))  # a file that contradicts itself
    path.write_bytes(mended(content))
    if beside:
        path.with_suffix(".safetensors").write_bytes(beside)
    with pytest.raises(InputError, match=says):
        Plan.load(path)


def test_a_plan_that_names_no_model_loads_with_a_warning(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    with pytest.warns(UserWarning, match="names no model") as caught:
        assert Plan.load(tmp_path / "plan.json", model=MODEL) == PLAN
    assert caught[0].filename == __file__
    with pytest.raises(InputError, match="without a model"):
        PLAN.save(tmp_path / "plan.json", tokenizer=TOKENIZER)


def test_retarget(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path, model=MODEL, name="first", provenance=MADE)
    moved = Plan.load(path).retarget(OTHER, TOKENIZER, name="second")
    assert moved == PLAN
    moved.save(tmp_path / "moved.json")
    with warnings.catch_warnings(action="error"):
        plan = Plan.load(tmp_path / "moved.json", model=OTHER, tokenizer=TOKENIZER)
    assert plan == PLAN
    assert plan.record.model.name == "second"
    assert [(card.name, card.weights) for card in plan.record.origins] == [("first", weights_fingerprint(MODEL))]
    assert plan.record.provenance == MADE
    with pytest.raises(InputError, match="is for second"):
        Plan.load(tmp_path / "moved.json", model=MODEL)
    home = plan.retarget(MODEL, name="first")
    assert [card.name for card in home.record.origins] == ["first", "second"]
    assert home.retarget(MODEL, TOKENIZER).record.origins == home.record.origins  # not a move


@pytest.mark.parametrize("architecture", ["gemma2", "nemo"])
def test_retarget_refuses_another_geometry(tmp_path: Path, architecture: str) -> None:
    PLAN.save(tmp_path / "plan.json", model=MODEL)
    with pytest.raises(InputError, match="moves only between models of one geometry"):
        Plan.load(tmp_path / "plan.json").retarget(tiny(architecture))
    with pytest.raises(InputError, match="it is for another model"):  # and without a file there is the fit
        Plan((ResidualAdd(layer=0, vector=np.ones(31)),)).retarget(MODEL)


# --- sets ---------------------------------------------------------------------------------------------------------


def test_a_set_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plans.json"
    family = PlanSet({"ur": PLAN, "sw": Plan()})
    family.save(path, model=MODEL, tokenizer=TOKENIZER, provenance=MADE)
    again = PlanSet.load(path, model=MODEL)
    assert again == family
    assert again.names == ("sw", "ur")
    assert again.entry("ur") == PLAN == Plan.load(path, model=MODEL, entry="ur")
    assert again.entry("ur").record == again.record
    assert pickle.loads(pickle.dumps(again)) == again
    with pytest.raises(InputError, match="no plan 'hi'; name one of sw, ur"):
        again.entry("hi")
    with pytest.raises(InputError, match="none was named; name one of sw, ur"):
        Plan.load(path)
    with pytest.raises(InputError, match="another model"):
        PlanSet.load(path, model=OTHER)
    moved = again.retarget(OTHER)
    assert moved.entry("sw").record.origins == (again.record.model,)
    moved.save(path)
    assert PlanSet.load(path, model=OTHER) == family


def test_one_plan_is_no_set(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    with pytest.raises(InputError, match=r"read it with Plan\.load"):
        PlanSet.load(tmp_path / "plan.json")
    with pytest.raises(InputError, match="'ur' was asked for"):
        Plan.load(tmp_path / "plan.json", entry="ur")
    for bad in ({}, {"": PLAN}, {"ur": ()}, {1: PLAN}):
        with pytest.raises(InputError, match="A set of plans"):
            PlanSet(bad)


def test_a_set_is_for_one_model(tmp_path: Path) -> None:
    for name, model in (("a", MODEL), ("b", OTHER)):
        PLAN.save(tmp_path / f"{name}.json", model=model)
    mine, its = (Plan.load(tmp_path / f"{name}.json") for name in "ab")
    with pytest.raises(InputError, match="retarget them to one model first"):
        PlanSet({"ur": mine, "sw": its})
    mixed = PlanSet({"ur": mine, "sw": its.retarget(MODEL), "hi": Plan()})
    mixed.save(tmp_path / "set.json")  # no model given: the one that they remember
    assert PlanSet.load(tmp_path / "set.json", model=MODEL) == mixed
    assert mixed.record.origins == (its.record.model,)


# --- writing ------------------------------------------------------------------------------------------------------

SHORT = Plan((EdgeScale(layer=0, head=0, queries=span("a"), keys=span("b"), alpha=0.5),))
LONG = Plan((ResidualAdd(layer=0, vector=np.arange(32.0)),))


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("new", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("old", [None, SHORT, PLAN], ids=["none", "short", "long"])
def test_a_save_that_is_killed_half_way_leaves_nothing_that_loads_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: Plan | None, new: Plan, step: int
) -> None:
    path = tmp_path / "plan.json"
    if old is not None:
        old.save(path)
    real, done = Path.replace, []

    def replace(self: Path, target: Path) -> Path:
        done.append(target)
        if len(done) == step:
            raise KeyboardInterrupt
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        try:
            new.save(path)
        except KeyboardInterrupt:
            killed = True
        else:
            killed = False
    assert killed == (step == 1 or new is LONG)
    assert {one.name for one in tmp_path.iterdir()} <= {"plan.json", "plan.safetensors"}
    try:
        found = Plan.load(path)
    except InputError:
        assert old is None or done[:1] == [path.with_suffix(".safetensors")]
    else:
        assert found == (old if killed else new)
    new.save(path)  # and the next save mends it
    assert Plan.load(path) == new


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 2, 97):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError):
            Plan.load(path)


def test_a_plan_without_long_vectors_leaves_no_old_ones_beside_it(tmp_path: Path) -> None:
    LONG.save(tmp_path / "plan.json")
    SHORT.save(tmp_path / "plan.json")
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]


def test_weights_of_a_model_beside_the_plan_are_not_overwritten(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    for content in (safetensors.save({"w": np.ones(3)}), b"no such file"):
        weights.write_bytes(content)
        with pytest.raises(InputError, match=r"model\.safetensors holds no vectors of a plan and would be lost"):
            LONG.save(tmp_path / "model.json")
        SHORT.save(tmp_path / "model.json")
        assert Plan.load(tmp_path / "model.json") == SHORT
        assert weights.read_bytes() == content


def test_where_a_plan_cannot_be_written_or_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"save it as plan\.json"):
        PLAN.save("plan.safetensors")
    with pytest.raises(InputError, match="No such file or directory"):
        PLAN.save(tmp_path / "nowhere" / "plan.json")
    with pytest.raises(InputError, match="cannot be read"):
        Plan.load(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="cannot be read"):
        Plan.load(tmp_path)
    with pytest.raises(InputError, match="give plain texts"):
        Plan((EdgeScale(layer=0, head=0, queries=span("\ud800"), keys=span("b"), alpha=0),)).save(tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("result", [float("nan"), {"x": float("inf")}, object(), {1: 2, "1": 3}, {"x": {1, 2}}])
def test_a_result_that_is_no_json_is_refused(result: Any) -> None:
    with pytest.raises(InputError, match="cannot be written as JSON"):
        Provenance(result=result)


def test_provenance_is_checked_and_has_defaults() -> None:
    made = Provenance(result=(1, 2))
    assert made.result == [1, 2]
    assert made.tool.startswith("timonel ")
    with pytest.raises(InputError, match="64 hex"):
        Provenance(data={"own": "AB" * 32})
    with pytest.raises(InputError, match="ISO 8601"):
        Provenance(created="soon")


def test_one_intervention_stands_on_one_line() -> None:
    text, _ = to_bytes({"sw": SHORT, "ur": Plan()}, Record(provenance=MADE))
    line = b'{"op": "edge_scale", "layer": 0, "head": 0, "queries": ["a"], "keys": ["b"], "alpha": 0.5}'
    assert b'    "sw": [\n      ' + line + b'\n    ],\n    "ur": []\n  },' in text


def test_a_plan_from_a_file_is_not_attached_to_another_model(tmp_path: Path) -> None:
    """T41: also where it was loaded without naming a model."""
    from timonel.steer import attach

    mine, other = tiny("llama"), tiny("llama", seed=1)
    plan = Plan((ChannelScale.head(Geometry.of(mine), layer=0, head=1, alpha=2.0),))
    plan.save(tmp_path / "plan.json", model=mine)
    loaded = Plan.load(tmp_path / "plan.json")
    with attach(mine, loaded):
        pass
    with pytest.raises(InputError), attach(other, loaded):
        pass

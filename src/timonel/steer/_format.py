"""The bytes of a plan file and of the vectors beside it; no disk, no model. `docs/plan-format.md` tells it to people.

    content = sha256( canonical JSON of all fields but `hashes` )
    vectors = sha256( the safetensors file ), null where there is none

A long vector is stored under the sha256 of its float64 numbers, so each is held once and `content` covers them all.
The same plans and record give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from itertools import groupby
from typing import Any

from safetensors import SafetensorError
from safetensors import numpy as safetensors

from timonel.errors import InputError
from timonel.steer._encode import decode_plan, encode_plan
from timonel.steer._json import AGAIN, Node, canonical, parse, pretty
from timonel.steer.plan import Plan
from timonel.steer.record import HASH, ModelCard, Provenance, Record
from timonel.steer.shape import LayerShape, Shape
from timonel.steer.vector import Vector

FORMAT, VERSION = "timonel plan", 1
MARK = {"timonel": "plan vectors"}
"""The metadata of a safetensors file that is ours; one entry, since the order of several is not kept."""

_LAYER = ("heads", "kv_heads", "head_dim", "neurons")


def to_bytes(plans: Mapping[str, Plan], record: Record) -> tuple[bytes, bytes | None]:
    """The JSON, and the safetensors where there are long vectors. A single plan has the name ''.

    Raises:
        InputError: a text cannot be written in UTF-8.
    """
    long: dict[str, Vector] = {}
    written = {name: encode_plan(plan, long) for name, plan in sorted(plans.items())}
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "model": _card(record.model),
        "origins": [_card(card) for card in record.origins],
        "provenance": asdict(record.provenance or Provenance()),
    }
    content |= {"plan": written[""]} if set(written) == {""} else {"plans": written}
    vectors = None
    if long:
        vectors = safetensors.save({key: vector.array for key, vector in sorted(long.items())}, metadata=MARK)
    try:
        hashes = {"content": _sha256(canonical(content)), "vectors": vectors and _sha256(vectors)}
    except ValueError as error:
        raise InputError(f"The plan cannot be written as a file ({error}); give plain texts for its names.") from None
    return pretty({**content, "hashes": hashes}).encode(), vectors


def from_bytes(data: bytes, vectors: Callable[[], bytes], file: str) -> tuple[dict[str, Plan], Record]:
    """Reads what `to_bytes` wrote.

    Args:
        data: the JSON.
        vectors: gives the safetensors; called only where the JSON asks for it.
        file: the file's name, for errors.

    Raises:
        InputError: anything is not as `to_bytes` writes it; says what and where.
    """
    try:
        top = Node(parse(data.decode()), file)
    except ValueError as error:
        raise InputError(f"{file} is not JSON as plan files hold it ({error}); give a file of Plan.save.") from None
    _check_version(top)
    kind = "plans" if "plans" in top.object() else "plan"
    have = top.fields("format", "version", "model", "origins", "provenance", kind, "hashes")
    hashes = have["hashes"].fields("content", "vectors")
    long = _read_vectors(hashes["vectors"], vectors)
    if kind == "plan":
        plans = {"": decode_plan(have["plan"], long)}
    else:
        plans = {name: decode_plan(node, long) for name, node in have["plans"].object().items()}
        if not plans or "" in plans:
            raise have["plans"].wrong("an object of named plans")
    record = Record(
        None if have["model"].value is None else _read_card(have["model"]),
        _read_provenance(have["provenance"]),
        tuple(_read_card(origin) for origin in have["origins"].items()),
    )
    _check_content(top, hashes["content"])
    used: dict[str, Vector] = {}
    for plan in plans.values():
        encode_plan(plan, used)
    if used.keys() != long.keys():
        raise InputError(f"The safetensors file of {file} holds vectors that no plan in it uses; {AGAIN}.")
    return plans, record


def _check_version(top: Node) -> None:
    have = top.object()
    if "format" not in have or have["format"].value != FORMAT:
        raise InputError(f"{top.file} does not say that it is a {FORMAT!r}; give a file of Plan.save.")
    if "version" not in have:
        raise InputError(f"{top.file} lacks the field 'version', but it must be stated; {AGAIN}.")
    if (version := have["version"].whole(1)) > VERSION:
        raise InputError(
            f"{top.file} has format version {version}, but this timonel reads up to {VERSION}; upgrade timonel."
        )


def _check_content(top: Node, claimed: Node) -> None:
    try:
        found = _sha256(canonical({name: value for name, value in top.value.items() if name != "hashes"}))
    except ValueError as error:  # half a surrogate pair
        raise InputError(f"{top.file} holds text that is not UTF-8 ({error}); {AGAIN}.") from None
    if found != claimed.text():
        raise InputError(
            f"{top.file} was changed after it was saved: its content has sha256 {found}, not {claimed.value}; restore "
            f"it, or {AGAIN}."
        )


def _read_vectors(claimed: Node, vectors: Callable[[], bytes]) -> dict[str, Vector]:
    if claimed.text_or_null() is None:
        return {}
    data = vectors()
    if (found := _sha256(data)) != claimed.value:
        raise InputError(
            f"The safetensors file of {claimed.file} has sha256 {found}, but {claimed.value} is expected; keep the two "
            f"files of one Plan.save together, or {AGAIN}."
        )
    try:
        arrays = safetensors.load(data)
    except SafetensorError as error:
        raise InputError(f"The safetensors file of {claimed.file} cannot be read ({error}); {AGAIN}.") from None
    long = {}
    for name, array in arrays.items():
        if array.dtype != "float64" or array.ndim != 1 or (vector := Vector(array)).digest != name:
            raise InputError(f"The vector {name[:12]} of {claimed.file} is not what its name says; {AGAIN}.")
        long[name] = vector
    return long


def _card(card: ModelCard | None) -> dict[str, Any] | None:
    if card is None:
        return None
    runs = [{"count": len(list(run)), **asdict(layer)} for layer, run in groupby(card.shape.layers)]
    plain = {name: getattr(card, name) for name in ("name", "revision", "architecture", "weights", "fingerprint")}
    return {**plain, "geometry": {"hidden": card.shape.hidden, "layers": runs}}


def _read_card(node: Node) -> ModelCard:
    have = node.fields("name", "revision", "architecture", "weights", "fingerprint", "geometry")
    for name in ("weights", "fingerprint"):
        value = have[name].text() if name == "weights" else have[name].text_or_null()
        if value is not None and not HASH.fullmatch(value):
            raise have[name].wrong("a sha256 of 64 hex digits")
    geometry = have["geometry"].fields("hidden", "layers")
    layers: list[LayerShape] = []
    for run in geometry["layers"].items():
        sizes = run.fields("count", *_LAYER)
        if (count := sizes["count"].whole(1)) > 100_000:
            raise sizes["count"].wrong("a number of layers")
        layers += [LayerShape(**{name: sizes[name].whole(1) for name in _LAYER})] * count
    return ModelCard(
        have["name"].text(),
        have["revision"].text_or_null(),
        have["architecture"].text(),
        have["weights"].text(),
        have["fingerprint"].text_or_null(),
        Shape(geometry["hidden"].whole(1), tuple(layers)),
    )


def _read_provenance(node: Node) -> Provenance:
    have = node.fields("command", "data", "result", "created", "tool")
    try:
        return Provenance(
            command=have["command"].text_or_null(),
            data={name: digest.text() for name, digest in have["data"].object().items()},
            result=have["result"].value,
            created=have["created"].text(),
            tool=have["tool"].text(),
        )
    except InputError as error:
        raise error if str(error).startswith(node.file) else InputError(f"{node.where}: {error}") from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

"""Interventions as plain JSON values and back; long vectors go into a table beside them, by the hash of their numbers.

Every field of an operation is written and every one is demanded, defaults too: what a plan does is never left to the
version that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import index
from typing import Any, cast

from timonel.errors import InputError
from timonel.steer._json import AGAIN, Node
from timonel.steer.interventions import ChannelScale, ChannelSet, EdgeScale, Intervention, ResidualAdd, Site
from timonel.steer.plan import Plan
from timonel.steer.scope import Region, Scope, Span
from timonel.steer.vector import Vector

INLINE = 16
"""Vectors of more numbers than this go into the table."""

_SITES = {"channel_scale": ("o_proj", "down_proj"), "channel_set": ("o_proj", "down_proj", "act")}


def encode_plan(plan: Plan, long: dict[str, Vector]) -> list[dict[str, Any]]:
    """Writes a plan's interventions in their order; adds its long vectors to `long`."""
    return [_encode(one, long) for one in plan]


def decode_plan(node: Node, long: Mapping[str, Vector]) -> Plan:
    """Reads what `encode_plan` wrote.

    Raises:
        InputError: something in it is unknown, missing or of another type; says where.
    """
    return Plan(tuple(_decode(one, long) for one in node.items()))


def _encode(one: Intervention, long: dict[str, Vector]) -> dict[str, Any]:
    layer = index(one.layer)
    match one:
        case EdgeScale():
            spans = {"queries": list(one.queries.names), "keys": list(one.keys.names)}
            return {"op": "edge_scale", "layer": layer, "head": index(one.head), **spans, "alpha": float(one.alpha)}
        case ChannelScale():
            what: dict[str, Any] = {"op": "channel_scale", "layer": layer, "site": one.site}
            what |= {"factors": _vector(one.factors, long)}
        case ChannelSet():
            what = {"op": "channel_set", "layer": layer, "site": one.site, "channels": list(one.channels)}
            what |= {"values": _vector(one.values, long)}
        case ResidualAdd():
            what = {"op": "residual_add", "layer": layer, "vector": _vector(one.vector, long)}
            what |= {"scale": float(one.scale)}
    return {**what, "scope": _scope(one.scope)}


def _vector(vector: Vector, long: dict[str, Vector]) -> Any:
    if len(vector) <= INLINE:
        return vector.array.tolist()
    long[vector.digest] = vector
    return {"sha256": vector.digest, "numbers": len(vector)}


def _scope(scope: Scope) -> Any:
    return scope.value if isinstance(scope, Region) else {"span": list(scope.names)}


def _decode(node: Node, long: Mapping[str, Vector]) -> Intervention:
    have = node.object()
    if "op" not in have:
        raise InputError(f"{node.where} lacks the field 'op', but every operation is named; {AGAIN}.")
    read = _READERS[have["op"].one_of(_READERS, "operation")]
    try:
        return read(node, long)
    except InputError as error:  # the value's own checks do not know where it stands
        raise error if str(error).startswith(node.file) else InputError(f"{node.where}: {error}") from None


def _edge(node: Node, _: Mapping[str, Vector]) -> EdgeScale:
    have = node.fields("op", "layer", "head", "queries", "keys", "alpha")
    return EdgeScale(
        layer=have["layer"].whole(),
        head=have["head"].whole(),
        queries=_read_span(have["queries"]),
        keys=_read_span(have["keys"]),
        alpha=have["alpha"].number(),
    )


def _channel_scale(node: Node, long: Mapping[str, Vector]) -> ChannelScale:
    have = node.fields("op", "layer", "site", "factors", "scope")
    return ChannelScale(
        layer=have["layer"].whole(),
        site=_read_site(have["site"], "channel_scale"),
        factors=_read_vector(have["factors"], long),
        scope=_read_scope(have["scope"]),
    )


def _channel_set(node: Node, long: Mapping[str, Vector]) -> ChannelSet:
    have = node.fields("op", "layer", "site", "channels", "values", "scope")
    return ChannelSet(
        layer=have["layer"].whole(),
        site=_read_site(have["site"], "channel_set"),
        channels=tuple(channel.whole() for channel in have["channels"].items()),
        values=_read_vector(have["values"], long),
        scope=_read_scope(have["scope"]),
    )


def _residual_add(node: Node, long: Mapping[str, Vector]) -> ResidualAdd:
    have = node.fields("op", "layer", "vector", "scale", "scope")
    return ResidualAdd(
        layer=have["layer"].whole(),
        vector=_read_vector(have["vector"], long),
        scale=have["scale"].number(),
        scope=_read_scope(have["scope"]),
    )


_READERS: dict[str, Callable[[Node, Mapping[str, Vector]], Intervention]] = {
    "edge_scale": _edge,
    "channel_scale": _channel_scale,
    "channel_set": _channel_set,
    "residual_add": _residual_add,
}


def _read_site(node: Node, op: str) -> Site:
    return cast("Site", node.one_of(_SITES[op], f"site of {op}"))


def _read_span(node: Node) -> Span:
    return Span(tuple(name.text() for name in node.items()))


def _read_scope(node: Node) -> Scope:
    if isinstance(node.value, dict):
        return _read_span(node.fields("span")["span"])
    return Region(node.one_of((region.value for region in Region), "scope"))


def _read_vector(node: Node, long: Mapping[str, Vector]) -> Vector:
    if isinstance(node.value, list):
        return Vector([number.number() for number in node.items()])
    have = node.fields("sha256", "numbers")
    digest, numbers = have["sha256"].text(), have["numbers"].whole()
    vector = long.get(digest)
    if vector is None or len(vector) != numbers:
        raise InputError(
            f"{node.where} names the vector {digest[:12]} of {numbers} numbers, but the safetensors file beside it "
            f"holds no such vector; keep the two files together, or {AGAIN}."
        )
    return vector

"""The arithmetic of an edge on bare tensors: every kind of mask, prefill and decode, padded and not, every dtype."""

from __future__ import annotations

import pytest
import torch

from timonel.steer._edges import edge_rows
from timonel.steer._place import Place
from timonel.steer._tables import EdgeTable

B, HEADS, KV, D, WIDTH = 2, 4, 2, 8, 12
PADS = (0, 3)
ALPHA = 0.25


def table(queries: list[int], keys: list[int], heads: list[int]) -> EdgeTable:
    """The same edge on both prompts, at heads of one key/value head."""
    kv = heads[0] // (HEADS // KV)
    cells = [(head, query) for head in heads for query in queries]
    return EdgeTable(
        prompt=torch.arange(B),
        kv_head=torch.full((B,), kv),
        alpha=torch.full((B,), ALPHA, dtype=torch.float64),
        head=torch.tensor([[head for head, _ in cells]] * B),
        queries=torch.tensor([[query for _, query in cells]] * B),
        keys=torch.tensor([keys] * B),
        last_query=max(queries),
        layer=0,
    )


def place(past: int, queries: int, offset: int, pads: tuple[int, ...]) -> Place:
    return Place(past, queries, torch.tensor(pads), max(pads), 1, torch.full((B,), WIDTH), {0: offset})


def naive(q, k, v, visible, columns, head, cap):  # type: ignore[no-untyped-def]
    """One row of one head in float64; q: [d], k, v: [k, d], visible: [k]."""
    scores = (k.double() @ q.double()) * D**-0.5
    if cap:
        scores = cap * torch.tanh(scores / cap)

    def mix(open_):  # type: ignore[no-untyped-def]
        weight = torch.where(open_, torch.exp(scores - scores.max()), 0.0)
        return (weight / weight.sum().clamp(min=1e-300)) @ v.double()

    barred = visible.clone()
    barred[columns] = False
    cut = mix(barred)
    return cut + ALPHA * (mix(visible) - cut)


@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("pads", [(0, 0), PADS])
@pytest.mark.parametrize("kind", ["none", "bool", "float"])
@pytest.mark.parametrize("past", [0, 7, 11])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_every_mask_in_every_pass(
    dtype: torch.dtype, past: int, kind: str, pads: tuple[int, ...], cap: float | None
) -> None:
    """T19, T22, T23, T29: computed in at least float32, whatever the model's dtype."""
    if kind == "none" and (any(pads) or 0 < past < WIDTH - 1):
        kind = "bool"  # transformers leaves the mask out for an unpadded prefill and for a single row
    random = torch.Generator().manual_seed(past)
    shape = {"q": (B, HEADS, WIDTH - past, D), "k": (B, KV, WIDTH, D), "v": (B, KV, WIDTH, D)}
    q, k, v = (3 * torch.randn(s, generator=random, dtype=torch.float64).to(dtype) for s in shape.values())
    columns = torch.arange(WIDTH)
    visible = (columns[None, :] <= torch.arange(past, WIDTH)[:, None])[None] & (columns >= torch.tensor(pads)[:, None])[
        :, None
    ]
    mask = None
    if kind == "bool":
        mask = visible[:, None]
    elif kind == "float":
        mask = torch.zeros(visible[:, None].shape, dtype=dtype).masked_fill(~visible[:, None], torch.finfo(dtype).min)
    queries, keys, heads = [6, 8], [1, 2], [2, 3]
    rows = edge_rows(table(queries, keys, heads), place(past, WIDTH - past, 0, pads), q, k, v, mask, D**-0.5, cap)
    wanted = {
        (b, p + pads[b] - past, h) for b in range(B) for p in queries for h in heads if past <= p + pads[b] < WIDTH
    }
    if rows is None:
        assert not wanted
        return
    found = list(zip(rows.batch.tolist(), rows.query.tolist(), rows.head.tolist(), strict=True))
    assert set(found) == wanted
    assert len(found) == len(wanted)
    assert rows.output.dtype == torch.promote_types(dtype, torch.float32)
    for (b, at, h), output in zip(found, rows.output, strict=True):
        cut = [key + pads[b] for key in keys]
        expected = naive(q[b, h, at], k[b, h // 2], v[b, h // 2], visible[b, at], cut, h, cap)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        torch.testing.assert_close(output.double(), expected, atol=tolerance, rtol=0)


def test_a_sliding_cache_has_its_own_first_column() -> None:
    """Column j of the keys is position kv_offset + j, and a key that has slid away cannot be cut."""
    random = torch.Generator().manual_seed(1)
    q = torch.randn(B, HEADS, 1, D, generator=random, dtype=torch.float64)
    k, v = (torch.randn(B, KV, 5, D, generator=random, dtype=torch.float64) for _ in range(2))
    visible = torch.ones(B, 1, 1, 5, dtype=torch.bool)
    near = edge_rows(table([11], [9], [0]), place(11, 1, 7, (0, 0)), q, k, v, visible, D**-0.5, None)
    gone = edge_rows(table([11], [2], [0]), place(11, 1, 7, (0, 0)), q, k, v, visible, D**-0.5, None)
    assert near is not None
    assert gone is not None
    whole = torch.ones(5, dtype=torch.bool)
    for b in range(B):
        torch.testing.assert_close(near.output[b], naive(q[b, 0, 0], k[b, 0], v[b, 0], whole, [2], 0, None))
        torch.testing.assert_close(gone.output[b], torch.softmax(k[b, 0] @ q[b, 0, 0] * D**-0.5, 0) @ v[b, 0])


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(2)
    q = torch.randn(B, HEADS, WIDTH, D, generator=random)
    k, v = (torch.randn(B, KV, WIDTH, D, generator=random) for _ in range(2))
    arguments = (table([6, 8], [1], [0, 1]), place(0, WIDTH, 0, (0, 0)), q, k, v, None, D**-0.5, None)
    whole = edge_rows(*arguments)
    monkeypatch.setattr("timonel.steer._edges._SLICE_ELEMENTS", 1)
    sliced = edge_rows(*arguments)
    assert whole is not None
    assert sliced is not None
    assert torch.equal(whole.output, sliced.output)

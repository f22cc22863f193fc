"""One batch through the model: prefixes once, their cache expanded over the tails, only the rows that are read.

    columns of row r:  [left pad | prefix | tail | right pad],   position p of its prompt at column p + left pad

so an edge finds its rows and keys by the same rule as in any left-padded batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from timonel.engine.layout import Batch
from timonel.engine.request import Work
from timonel.errors import UnsupportedModel
from timonel.models.geometry import Geometry
from timonel.steer.attach import attach_bound

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.inference_mode()
def run_batch(model: PreTrainedModel, geometry: Geometry, batch: Batch, work: Sequence[Work]) -> list[list[float]]:
    """Scores one batch.

    Returns:
        For each member of the batch, in order, the log-probability of each of its answers: float64 numbers of
        scores computed in at least float32.

    Raises:
        UnsupportedModel: an edge did not act on all rows that it names.
    """
    device = model.get_input_embeddings().weight.device
    members = [work[member] for member in batch.members]
    prefix_of_row = [group.prefix for group in batch.groups for _ in group.members]
    cache, prefix_mask = _prefixes(model, geometry, batch, work, device)
    if cache is not None:
        rows = torch.tensor([index for index, group in enumerate(batch.groups) for _ in group.members], device=device)
        cache.batch_select_indices(rows)
        prefix_mask = prefix_mask[rows]

    tails = [one.ids[prefix:] for one, prefix in zip(members, prefix_of_row, strict=True)]
    ids, mask = _pad(tails, device, left=False)
    start = torch.tensor(prefix_of_row, device=device)[:, None]
    wanted = [
        (row, reading.position - prefix_of_row[row], reading.tokens)
        for row, one in enumerate(members)
        for answer in one.answers
        for reading in answer
    ]
    at = torch.tensor([(row, column) for row, column, _ in wanted], device=device)
    pads = [len(prefix_mask[0]) - prefix for prefix in prefix_of_row]
    with (
        # Scores are kept as this dtype's; a caller's autocast would make other numbers under the same key.
        torch.autocast(device.type, enabled=False),
        attach_bound(model, [one.bound for one in members], geometry, track=False, pads=pads) as attached,
    ):
        with only_rows(model.get_submodule(geometry.head), at[:, 0], at[:, 1]):
            logits = model(
                input_ids=ids,
                attention_mask=torch.cat([prefix_mask, mask], dim=1),
                position_ids=start + torch.arange(ids.shape[1], device=device),
                cache=cache,
                use_cache=cache is not None,
            ).logits[:, 0]
        if attached.fired != attached.expected:
            raise UnsupportedModel(
                f"The plans of a batch name {attached.expected} rows of heads, but {attached.fired} were rewritten; "
                "this model's attention does not pass where it should, so its scores would be wrong."
            )
    values = iter(_log_probabilities(logits, [tokens for _, _, tokens in wanted]))
    return [[sum(next(values) for _ in answer) for answer in one.answers] for one in members]


def _prefixes(
    model: PreTrainedModel, geometry: Geometry, batch: Batch, work: Sequence[Work], device: torch.device
) -> tuple[Any, Tensor]:
    """Runs the groups' prefixes, left-padded, and returns their cache and mask; no cache where there is no prefix."""
    prefixes = [work[group.members[0]].ids[: group.prefix] for group in batch.groups]
    if not prefixes[0]:
        return None, torch.zeros(len(batch.members), 0, dtype=torch.long, device=device)
    ids, mask = _pad(prefixes, device, left=True)
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    decoder = model.get_submodule(geometry.decoder)
    return decoder(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True).cache, mask


def _pad(rows: Sequence[tuple[int, ...]], device: torch.device, *, left: bool) -> tuple[Tensor, Tensor]:
    """Token ids and their mask; what stands under the padding is token 0 and is attended to by nothing that is read."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[index, place] = torch.tensor(row)
        mask[index, place] = 1
    return ids.to(device), mask.to(device)


@contextmanager
def only_rows(head: nn.Module, row: Tensor, column: Tensor) -> Iterator[None]:
    """Lets the output embedding see only some rows of the hidden states, so that no other logits are computed.

    Inside, the model's own forward returns logits [n, 1, v] for the n wanted (row, column) cells; whatever it does to
    logits afterwards (a final soft cap, a scale) it does to these.
    """

    def pick(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0][row, column][:, None], *args[1:])

    handle = head.register_forward_pre_hook(pick)
    try:
        yield
    finally:
        handle.remove()


def _log_probabilities(logits: Tensor, tokens: Sequence[tuple[int, ...]]) -> list[float]:
    """Log of the summed probability of each row's tokens, in at least float32. logits: [n, v]."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    total = torch.logsumexp(wide, dim=-1)
    width = max(map(len, tokens))
    index = torch.tensor([[*one, *[one[0]] * (width - len(one))] for one in tokens], device=logits.device)
    filler = torch.tensor([[False] * len(one) + [True] * (width - len(one)) for one in tokens], device=logits.device)
    chosen = wide.gather(1, index).masked_fill(filler, -torch.inf)
    result: list[float] = (torch.logsumexp(chosen, dim=-1) - total).double().tolist()
    return result

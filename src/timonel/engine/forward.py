"""One unit through the model: its trunks once, then each pass, and the log-probabilities that are read from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from timonel.engine.batches import acting
from timonel.engine.kept import Resume, State
from timonel.engine.request import Work
from timonel.engine.stack import run_rows, run_trunks
from timonel.engine.unit import Pass, Row, Unit
from timonel.models.geometry import Geometry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Rows of logits that are held at once: a quarter of a GiB in float32.
_LOGITS = 1 << 26

Numbered = Sequence[Work] | Mapping[int, Work]
"""Work by its number."""

Scores = dict[int, tuple[float, ...]]
"""Work, by its number, and the log-probability of each of its answers."""


class _Reads:
    """Cells of a pass whose next-token probabilities are asked for; each cell's logits are computed once."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], int] = {}
        self.asked: list[tuple[int, int, int, tuple[int, ...]]] = []  # work, answer, cell, tokens

    def add(self, member: int, work: Work, row: int, columns: Sequence[int], first: int, last: int) -> None:
        """Asks for a piece of work's readings at its rows `first` to before `last`; `columns` begin at `first`."""
        for answer, (position, tokens) in work.readings(first, last):
            cell = self.cells.setdefault((row, columns[position - first]), len(self.cells))
            self.asked.append((member, answer, cell, tokens))

    def sums(self, model: PreTrainedModel, geometry: Geometry, hidden: Tensor) -> dict[tuple[int, int], float]:
        """(work, answer) -> the sum of its log-probabilities that stand in this pass. hidden: [cells, c]."""
        found: dict[tuple[int, int], float] = {}
        for (member, answer, _, _), value in zip(self.asked, self._values(model, geometry, hidden), strict=True):
            found[member, answer] = found.get((member, answer), 0.0) + value
        return found

    def _values(self, model: PreTrainedModel, geometry: Geometry, hidden: Tensor) -> list[float]:
        """The log-probability that each asked reading stands for."""
        head = model.get_submodule(geometry.head)
        by_cell: list[list[int]] = [[] for _ in self.cells]
        for number, (_, _, cell, _) in enumerate(self.asked):
            by_cell[cell].append(number)
        values = [0.0] * len(self.asked)
        step = max(1, _LOGITS // geometry.vocab)
        for start in range(0, len(hidden), step):
            part = hidden[start : start + step]
            logits = head(part)
            if geometry.final_softcap is not None:
                logits = torch.tanh(logits / geometry.final_softcap) * geometry.final_softcap
            numbers = [number for cell in range(start, start + len(part)) for number in by_cell[cell]]
            asked = [(self.asked[number][2] - start, self.asked[number][3]) for number in numbers]
            for number, value in zip(numbers, _log_probabilities(logits, asked), strict=True):
                values[number] = value
        return values


def _log_probabilities(logits: Tensor, asked: Sequence[tuple[int, tuple[int, ...]]]) -> list[float]:
    """Log of the summed probability of some tokens of some rows, in at least float32. logits: [n, v]."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    width = max(len(tokens) for _, tokens in asked)
    index = torch.tensor([[*tokens, *[tokens[0]] * (width - len(tokens))] for _, tokens in asked], device=wide.device)
    filler = torch.tensor([[at >= len(tokens) for at in range(width)] for _, tokens in asked], device=wide.device)
    rows = torch.tensor([row for row, _ in asked], device=wide.device)
    chosen = wide[rows[:, None], index].masked_fill(filler, -torch.inf)
    result: list[float] = (
        (torch.logsumexp(chosen, dim=-1) - torch.logsumexp(wide, dim=-1)[rows]).cpu().double().tolist()
    )
    return result


def run_unit(model: PreTrainedModel, geometry: Geometry, unit: Unit, work: Numbered) -> Iterator[Scores]:
    """Scores a unit, a forward pass at a step.

    Args:
        model: never changed.
        geometry: of the model.
        unit: what to run.
        work: the list that the unit's numbers point into.

    Yields:
        After each forward pass, what is known in full: float64 numbers of scores computed in at least float32.

    Raises:
        UnsupportedModel: an edge did not act on all rows that it names.
    """
    run = _UnitRun(model, geometry, unit, work)
    if unit.trunks:
        yield run.trunks()
    for one in unit.passes:
        yield run.rows(one)


class _UnitRun:
    """A unit under way: what its trunks left, and the readings that they answered already."""

    def __init__(self, model: PreTrainedModel, geometry: Geometry, unit: Unit, work: Numbered) -> None:
        self.model, self.geometry, self.unit, self.work = model, geometry, unit, work
        self.state: State | None = None
        self.early: dict[tuple[int, int], float] = {}

    def trunks(self) -> Scores:
        """Runs the trunks; the unsteered work is then known."""
        reads = _Reads()
        for row, trunk in enumerate(self.unit.trunks):
            for member in trunk.members:
                one = self.work[member]
                reads.add(member, one, row, trunk.tree.path(one.ids[: one.first_row]), 0, one.first_row)
        layers = sorted({one.layer for one in self.unit.passes})
        trees = [trunk.tree for trunk in self.unit.trunks]
        with torch.inference_mode(), acting(self.model, self.geometry, (), ()):
            hidden, self.state = run_trunks(self.model, self.geometry, trees, list(reads.cells), layers)
            self.early = reads.sums(self.model, self.geometry, hidden)
        members = {member for trunk in self.unit.trunks for member in trunk.members}
        return self._scores((member for member in members if not self.work[member].is_steered), {})

    def rows(self, one: Pass) -> Scores:
        """Runs a pass; all its work is then known."""
        reads = _Reads()
        for number, row in enumerate(one.rows):
            for member in row.members:
                piece = self.work[member]
                reads.add(member, piece, number, row.tree.path(piece.ids[row.start :]), row.start, len(piece.ids))
        starts = [row.start for row in one.rows]
        bounds = [row.bound for row in one.rows]
        pads = [max(starts) - start for start in starts]
        trees = [row.tree for row in one.rows]
        last = self.geometry.n_layers - 1
        trim = not any(change.what.layer == last for bound in bounds for change in bound.changes)
        with torch.inference_mode(), acting(self.model, self.geometry, bounds, pads):
            resume = self._resume(one)
            hidden = run_rows(self.model, self.geometry, trees, starts, list(reads.cells), resume, trim=trim)
            late = reads.sums(self.model, self.geometry, hidden)
        return self._scores(one.members, late)

    def _resume(self, one: Pass) -> Resume | None:
        if self.state is None:
            return None
        columns = [self._columns(row, resumed=one.layer > 0) for row in one.rows]
        before, own = [some for some, _ in columns], [some for _, some in columns]
        return Resume(self.state, one.layer, before, own, _touched(one))

    def _columns(self, row: Row, *, resumed: bool) -> tuple[list[int], list[int]]:
        """Where the trunk pass holds the tokens before a row, and the row's own."""
        if row.trunk is None or self.state is None:
            return [], []
        tree, offset = self.unit.trunks[row.trunk].tree, row.trunk * self.state.width
        before = tree.path(self.work[row.members[0]].ids[: row.start])
        own: dict[int, int] = {}
        for member in row.members if resumed else ():
            ids = self.work[member].ids
            own.update(zip(row.tree.path(ids[row.start :]), tree.path(ids)[row.start :], strict=True))
        return [offset + at for at in before], [offset + own[at] for at in range(len(own))]

    def _scores(self, members: Iterable[int], late: dict[tuple[int, int], float]) -> Scores:
        """The sums of what the trunks answered and of what a later pass did."""
        return {
            member: tuple(
                self.early.get((member, answer), 0.0) + late.get((member, answer), 0.0)
                for answer in range(len(self.work[member].answers))
            )
            for member in members
        }


def _touched(one: Pass) -> int | None:
    """Columns at the front of a pass that hold every row that edges rewrite in its first layer, if edges are all."""
    if any(change.what.layer == one.layer for row in one.rows for change in row.bound.changes):
        return None
    return max(1, *(row.bound.last_row(one.layer) - row.start + 1 for row in one.rows))

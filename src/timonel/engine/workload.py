"""What a list of requests costs, and what each of the engine's reuses saves: the plan that `--explain` prints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from timonel.engine.request import Request, Work
from timonel.engine.unit import Shape, Unit, remaining


@dataclass(frozen=True, slots=True)
class Workload:
    """Costs in tokens through all layers; each line takes one more reuse into account.

    Attributes:
        requests: as asked for; `distinct` after equal ones are merged; `missing` not in the store yet.
        plain_tokens: fed by a loop that runs each request whole.
        distinct_tokens: fed if each distinct piece ran once, up to the last row that is read.
        shared_tokens: fed if every token that plans leave as it is ran once for all that share it.
        resumed_tokens: the same, and each plan resumed at its first layer.
        tokens: fed by the engine for what is missing, padding included.
        passes: forward passes for what is missing, in `units`.
        resume_at: layer -> how many rows resume there.
    """

    requests: int
    distinct: int
    missing: int
    plain_tokens: int
    distinct_tokens: int
    shared_tokens: int
    resumed_tokens: float
    tokens: int
    passes: int
    units: int
    resume_at: dict[int, int]

    @classmethod
    def of(
        cls,
        requests: Sequence[Request],
        work: Sequence[Work],
        units: Sequence[Unit],
        missing: Collection[int],
        shape: Shape,
    ) -> Workload:
        """Counts a layout."""
        trunks = sum(len(trunk.tree) for unit in units for trunk in unit.trunks)
        rows = [row for unit in units for one in unit.passes for row in one.rows]
        todo = remaining(units, missing)
        resume_at: dict[int, int] = {}
        for row in rows:
            resume_at[row.layer] = resume_at.get(row.layer, 0) + 1
        skipped = sum(len(row.tree) * row.layer for row in rows) / shape.layers
        return cls(
            requests=len(requests),
            distinct=len(work),
            missing=len(missing),
            plain_tokens=sum(len(request.prompt) for request in requests),
            distinct_tokens=sum(len(one.ids) for one in work),
            shared_tokens=trunks + sum(len(row.tree) for row in rows),
            resumed_tokens=trunks + sum(len(row.tree) for row in rows) - skipped,
            tokens=round(sum(unit.cost(shape.layers) for unit in todo) / shape.layers),
            passes=sum(len(unit.costs(shape.layers)) for unit in todo),
            units=len(todo),
            resume_at=dict(sorted(resume_at.items())),
        )

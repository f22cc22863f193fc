"""The nouns of a layout: a unit of work, its trunks, its passes, their rows; and what they cost."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from timonel.engine.batches import digest
from timonel.engine.request import Work
from timonel.engine.tree import Tree
from timonel.models.geometry import Geometry
from timonel.steer.bound import Bound


@dataclass(frozen=True, slots=True)
class Shape:
    """What the costs of a model depend on.

    Attributes:
        layers: decoder layers.
        attention: cost of attending to one more token, as a share of a token's cost in a layer.
        overhead: tokens that could run in the time that one more pass takes to start. Padding, and resuming a row
            above its pass's layer, are waste; a pass ends where its waste exceeds this.
    """

    layers: int
    attention: float
    overhead: int = 32

    @classmethod
    def of(cls, geometry: Geometry, *, overhead: int = 32) -> Shape:
        """Counts the multiplications of a middle layer."""
        layer = geometry.layers[geometry.n_layers // 2]
        projections = 2 * geometry.hidden * layer.head_dim * (layer.heads + layer.kv_heads)
        return cls(
            geometry.n_layers,
            2 * layer.heads * layer.head_dim / (projections + 3 * geometry.hidden * layer.neurons),
            overhead,
        )


@dataclass(frozen=True, eq=False)
class Row:
    """Tokens that run under one plan, packed.

    Attributes:
        tree: the tokens from position `start` on.
        start: how many tokens come from the trunk.
        trunk: which of the unit's trunks; None where nothing comes from one.
        bound: the plan.
        layer: where it resumes at the earliest; 0 computes it from the tokens.
        members: the work that is read from it, as indices into the list.
    """

    tree: Tree
    start: int
    trunk: int | None
    bound: Bound
    layer: int
    members: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Pass:
    """Rows that run in one go, all from the same layer on."""

    rows: tuple[Row, ...]
    layer: int

    @property
    def tokens(self) -> int:
        """Tokens that it feeds, padding included."""
        return len(self.rows) * max(len(row.tree) for row in self.rows)

    @property
    def members(self) -> tuple[int, ...]:
        """All its work."""
        return tuple(member for row in self.rows for member in row.members)


@dataclass(frozen=True, eq=False)
class Trunk:
    """Unsteered tokens, packed; `members` is all work that starts from it, or is read from it."""

    tree: Tree
    members: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Unit:
    """Trunks that run in one go, and the passes that start from them."""

    trunks: tuple[Trunk, ...]
    passes: tuple[Pass, ...]

    @property
    def trunk_tokens(self) -> int:
        """Tokens that its first pass feeds, padding included."""
        return len(self.trunks) * max((len(trunk.tree) for trunk in self.trunks), default=0)

    @cached_property
    def members(self) -> frozenset[int]:
        """All its work."""
        every = (*(trunk.members for trunk in self.trunks), *(one.members for one in self.passes))
        return frozenset(member for some in every for member in some)

    def costs(self, layers: int) -> tuple[int, ...]:
        """Token-layers of each of its forward passes, padding included."""
        trunk = (self.trunk_tokens * layers,) if self.trunks else ()
        return (*trunk, *(one.tokens * (layers - one.layer) for one in self.passes))

    def cost(self, layers: int) -> int:
        """Token-layers of the whole."""
        return sum(self.costs(layers))

    def only(self, wanted: Collection[int]) -> Unit:
        """The unit without the passes in which nothing is wanted; the trunks are what the others start from."""
        return Unit(self.trunks, tuple(one for one in self.passes if any(m in wanted for m in one.members)))

    def mates(self, work: Sequence[Work]) -> Iterator[tuple[int, str]]:
        """For each piece of work a hash of all that shares its passes: what a half-precision score depends on."""
        trunks = digest([[[trunk.tree.tokens, trunk.tree.depths] for trunk in self.trunks]])
        read = {member for trunk in self.trunks for member in trunk.members if not work[member].is_steered}
        yield from ((member, trunks) for member in sorted(read))
        for one in self.passes:
            rows = [[row.tree.tokens, row.tree.depths, row.start, row.trunk, row.bound.signature()] for row in one.rows]
            mates = digest([trunks, one.layer, rows])
            yield from ((member, mates) for member in one.members)


def remaining(units: Sequence[Unit], missing: Collection[int]) -> list[Unit]:
    """The units, and of these the passes, in which something is missing."""
    return [unit.only(missing) for unit in units if not unit.members.isdisjoint(missing)]

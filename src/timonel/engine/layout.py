"""How work is laid out in batches: shared prefixes first, then tails of like length.

Two exact reuses live here. Requests that begin alike are gathered into a group, whose common prefix is run once;
and a request is never fed further than the last row that is read from it. The layout depends on the list of work
alone, never on what a store holds already, so that a resumed run computes each batch as the first run would have.

Cost is counted in tokens: a group of prefix length p with tails t_i costs p + sum t_i.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from timonel.engine.request import Work


@dataclass(frozen=True, slots=True)
class Group:
    """Work that shares its first `prefix` tokens; `members` are indices into the list of work."""

    prefix: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups that run in one go: all prefixes in one forward pass, all tails in a second one."""

    groups: tuple[Group, ...]

    @property
    def members(self) -> tuple[int, ...]:
        """Indices of all its work, in the order of the tails."""
        return tuple(member for group in self.groups for member in group.members)

    def tokens(self, work: Sequence[Work]) -> int:
        """Tokens that it feeds, padding included."""
        prefix = max(group.prefix for group in self.groups) * len(self.groups)
        tails = [len(work[member].ids) - group.prefix for group in self.groups for member in group.members]
        return prefix + max(tails) * len(tails)

    def layout_hash(self, work: Sequence[Work]) -> str:
        """What a half-precision score depends on beside its own content: its batch mates."""
        listed = [[group.prefix, [work[member].key("") for member in group.members]] for group in self.groups]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


def lay_out(work: Sequence[Work], *, batch_tokens: int, max_readings: int, even: bool = False) -> tuple[Batch, ...]:
    """Groups the work and packs the groups.

    Args:
        work: distinct pieces of work.
        batch_tokens: how many tokens a batch may feed, padding included; one group's first member always fits.
        max_readings: how many rows of logits a batch may ask for.
        even: only equally long prefixes, and equally long tails, meet in a batch, so that nothing is padded.

    Returns:
        Batches that hold each piece exactly once.
    """
    groups = list(_split(_gather(work), work, batch_tokens, max_readings, even))
    # Groups without a prefix run apart: a row of nothing but padding has no place in the others' first pass.
    ordered = sorted(groups, key=lambda g: (g.prefix > 0, _longest_tail(g, work), g.prefix, g.members))
    return tuple(_pack(ordered, work, batch_tokens, max_readings, even))


def _gather(work: Sequence[Work]) -> Iterator[Group]:
    """Walks the work in the order of its ids and lets a piece join a group as long as that saves tokens."""
    order = sorted(range(len(work)), key=lambda i: (work[i].ids, -work[i].limit, i))
    members: list[int] = []
    prefix = length = 0
    for index in order:
        new = work[index]
        if members:
            joined = min(prefix if len(members) > 1 else work[members[0]].limit, new.limit)
            joined = min(joined, _common(work[members[0]].ids, new.ids))
            alone = prefix + (length - prefix * len(members)) + len(new.ids)
            together = joined + (length + len(new.ids) - joined * (len(members) + 1))
            if joined > 0 and together < alone:
                members.append(index)
                prefix, length = joined, length + len(new.ids)
                continue
            yield Group(prefix, tuple(members))
        members, prefix, length = [index], 0, len(new.ids)
    if members:
        yield Group(prefix, tuple(members))


def _split(
    groups: Iterator[Group], work: Sequence[Work], batch_tokens: int, max_readings: int, even: bool
) -> Iterator[Group]:
    """Breaks up groups that are too large for one batch; each part runs the prefix again."""
    for group in groups:
        part: list[int] = []
        longest = readings = 0
        for member in sorted(group.members, key=lambda i: (len(work[i].ids), i)):
            longest, before = len(work[member].ids) - group.prefix, longest  # members come by length
            readings += work[member].n_readings
            full = group.prefix + longest * (len(part) + 1) > batch_tokens or readings > max_readings
            if part and (full or (even and longest != before)):
                yield Group(group.prefix, tuple(part))
                part, readings = [], work[member].n_readings
            part.append(member)
        yield Group(group.prefix, tuple(part))


def _pack(
    groups: Sequence[Group], work: Sequence[Work], batch_tokens: int, max_readings: int, even: bool
) -> Iterator[Batch]:
    batch: list[Group] = []
    for group in groups:
        wider = Batch((*batch, group))
        full = wider.tokens(work) > batch_tokens or sum(work[i].n_readings for i in wider.members) > max_readings
        if batch and (full or _apart(batch[0], group, work, even)):
            yield Batch(tuple(batch))
            batch = []
        batch.append(group)
    if batch:
        yield Batch(tuple(batch))


def _apart(first: Group, group: Group, work: Sequence[Work], even: bool) -> bool:
    """Whether two groups may not meet in a batch."""
    if even:
        return first.prefix != group.prefix or _longest_tail(first, work) != _longest_tail(group, work)
    return (first.prefix > 0) != (group.prefix > 0)


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """Length of the longest common prefix."""
    differ = (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b)
    return next(differ, min(len(first), len(second)))


def _longest_tail(group: Group, work: Sequence[Work]) -> int:
    return max(len(work[member].ids) for member in group.members) - group.prefix

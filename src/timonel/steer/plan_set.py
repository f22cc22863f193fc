"""A named family of plans in one file: one for each language, say. Each is a whole plan; none adds to another."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from timonel.errors import InputError
from timonel.steer.plan import Plan
from timonel.steer.record import ModelCard, Provenance, Record

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class PlanSet:
    """Some plans by name, all for one model.

    Attributes:
        plans: name -> plan; sorted.
        record: what the file said about them; not part of what they do.

    Example:
        >>> PlanSet({"ur": Plan(), "sw": Plan()}).names
        ('sw', 'ur')
    """

    plans: Mapping[str, Plan]
    record: Record | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.plans:
            raise InputError("A set of plans is empty, but it holds one at least; give {name: plan}.")
        for name, plan in self.plans.items():
            if not isinstance(name, str) or not name or not isinstance(plan, Plan):
                raise InputError(
                    f"A set of plans holds {type(plan).__name__} under the name {name!r}, but it maps names to plans; "
                    'give {"ur": plan}.'
                )
        object.__setattr__(self, "plans", MappingProxyType(dict(sorted(self.plans.items()))))
        if self.record is None:
            object.__setattr__(self, "record", _common(self.plans))

    def __reduce__(self) -> tuple[Any, ...]:
        return PlanSet, (dict(self.plans), self.record)  # a mapping proxy cannot be pickled

    def __iter__(self) -> Iterator[str]:
        return iter(self.plans)

    def __len__(self) -> int:
        return len(self.plans)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the plans, sorted."""
        return tuple(self.plans)

    def entry(self, name: str) -> Plan:
        """One of the plans.

        Raises:
            InputError: there is none of this name; lists those that there are.
        """
        return pick(self.plans, name, "The set")

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str | None = None,
        revision: str | None = None,
        provenance: Provenance | None = None,
    ) -> None:
        """Writes all plans to one file; as `Plan.save`."""
        from timonel.steer.files import save_plans

        about = {"model": model, "tokenizer": tokenizer, "name": name, "revision": revision}
        save_plans(path, self.plans, self.record, provenance=provenance, **about)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        model: PreTrainedModel | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> PlanSet:
        """Reads the plans of one file; as `Plan.load`."""
        from timonel.steer.files import load_plans

        plans, record = load_plans(path, model=model, tokenizer=tokenizer)
        if "" in plans:
            raise InputError(f"{os.fspath(path)} holds one plan without a name, not a set; read it with Plan.load.")
        return cls(plans, record)

    def retarget(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        name: str | None = None,
        revision: str | None = None,
    ) -> PlanSet:
        """The same plans for another model of the same geometry; as `Plan.retarget`."""
        from timonel.steer.files import retarget_plans

        record = retarget_plans(self.plans, self.record, model, tokenizer, name=name, revision=revision)
        return PlanSet({key: Plan(plan.interventions, record) for key, plan in self.plans.items()}, record)


def pick(plans: Mapping[str, Plan], name: str | None, what: str) -> Plan:
    """The plan of this name; None where there is but one, without a name."""
    if (name or "") in plans:
        return plans[name or ""]
    names = ", ".join(plans)
    if name is None:
        raise InputError(f"{what} holds {len(plans)} plans by name, but none was named; name one of {names}.")
    if "" in plans:
        raise InputError(f"{what} holds one plan without a name, but {name!r} was asked for; name none.")
    raise InputError(f"{what} has no plan {name!r}; name one of {names}.")


def _common(plans: Mapping[str, Plan]) -> Record | None:
    """What plans that were loaded for one model remember together."""
    records = [plan.record for plan in plans.values() if plan.record is not None]
    cards = [record.model for record in records if record.model is not None]
    for card in cards:
        if not card.same(cards[0]):
            mine, its = cards[0].prints(card)
            raise InputError(
                f"A set of plans is for one model, but these are for {cards[0].name} with fingerprint {mine} and "
                f"{card.name} with fingerprint {its}; retarget them to one model first."
            )
    if not records:
        return None
    if len(records) == len(plans) and all(record == records[0] for record in records):
        return records[0]
    origins: dict[ModelCard, None] = dict.fromkeys(card for record in records for card in record.origins)
    return Record(cards[0] if cards else None, None, tuple(origins))

"""What a plan file says about its plan: the model that it is for, where it came from, and how it was made.

    the same model  <=>  the same fingerprint, and the same geometry

The fingerprint with the tokenizer is compared where both sides have one, that of the weights otherwise. The geometry
is compared too, since a config can cut one and the same `o_proj` into other heads.

Does not show: that the plan works; `result` is what its maker found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timonel._version import __version__
from timonel.errors import InputError
from timonel.models.fingerprint import fingerprints, weights_fingerprint
from timonel.models.geometry import Geometry
from timonel.steer._json import canonical, parse
from timonel.steer.shape import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Which model a plan is for.

    Attributes:
        name: what people call it; for people only.
        revision: of the hub, if known; for people only.
        architecture: the class of the model; for people only.
        weights: `weights_fingerprint`.
        fingerprint: `fingerprint`, with the tokenizer; None where none was given.
        shape: its sizes.
    """

    name: str
    revision: str | None
    architecture: str
    weights: str
    fingerprint: str | None
    shape: Shape

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        name: str | None = None,
        revision: str | None = None,
    ) -> ModelCard:
        """Describes a model; its name and revision are its config's unless they are given."""
        geometry = Geometry.of(model)
        if tokenizer is None:
            weights, whole = weights_fingerprint(model), None
        else:
            weights, whole = fingerprints(model, tokenizer)
        config: Any = model.config
        known = str(getattr(config, "_name_or_path", "") or geometry.architecture)
        if Path(known).is_absolute():
            known = Path(known).name  # where it lay on one machine says nothing on another
        revision = revision or getattr(config, "_commit_hash", None)
        return cls(name or known, revision, geometry.architecture, weights, whole, Shape.of(geometry))

    def prints(self, other: ModelCard) -> tuple[str, str]:
        """The finest fingerprints that both have."""
        if self.fingerprint and other.fingerprint:
            return self.fingerprint, other.fingerprint
        return self.weights, other.weights

    def same(self, other: ModelCard) -> bool:
        """Whether both are one model."""
        mine, its = self.prints(other)
        return mine == its and self.shape == other.shape

    def check(self, here: ModelCard, what: str) -> None:
        """Refuses a model that is not this one; `what` is the plan's name in the error."""
        mine, its = self.prints(here)
        todo = "load that model, or move the plan on purpose with Plan.load(path).retarget(model)"
        if mine != its:
            why = "its tokenizer is another" if self.weights == here.weights else "it is another model"
            raise InputError(
                f"{what} is for {self.name} with fingerprint {mine}, but this {here.name} has fingerprint {its}, so "
                f"{why}; {todo}."
            )
        if self.shape != here.shape:
            raise InputError(f"{what} is for {self.shape}, but {here.name} has {here.shape}; {todo}.")


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a plan was made.

    Attributes:
        command: what its maker ran, or did.
        data: name -> sha256 of each data set that it was made from.
        result: what was found with it; any JSON value.
        created: when, in ISO 8601; today (UTC) by default.
        tool: what wrote it.
    """

    command: str | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    result: Any = None
    created: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())
    tool: str = f"timonel {__version__}"

    def __post_init__(self) -> None:
        for name, digest in self.data.items():
            if not isinstance(name, str) or not isinstance(digest, str) or not HASH.fullmatch(digest):
                raise InputError(f"The data {name!r} has hash {digest!r}, but a sha256 is needed; give 64 hex digits.")
        try:
            datetime.fromisoformat(self.created)
        except (TypeError, ValueError):
            raise InputError(f"The plan was created at {self.created!r}, but ISO 8601 is needed; give it so.") from None
        try:
            result = parse(canonical(self.result).decode())
        except ValueError as error:
            raise InputError(
                f"The result cannot be written as JSON ({error}); give finite numbers, texts, lists and dicts."
            ) from None
        object.__setattr__(self, "data", dict(sorted(self.data.items())))
        object.__setattr__(self, "result", result)


@dataclass(frozen=True, slots=True)
class Record:
    """What a plan remembers of its file; never part of what the plan does.

    Attributes:
        model: which model it is for; None where its maker named none.
        provenance: how it was made.
        origins: the models that it was for before it was retargeted, the first one first.
    """

    model: ModelCard | None = None
    provenance: Provenance | None = None
    origins: tuple[ModelCard, ...] = ()

    def retarget(self, here: ModelCard) -> Record:
        """The same for another model of the same geometry; the one it was for joins the origins."""
        before = self.model
        if before is None or before.same(here):
            return replace(self, model=here)
        if before.shape != here.shape:
            raise InputError(
                f"The plan is for {before.name}, {before.shape}, but {here.name} has {here.shape}; a plan moves only "
                "between models of one geometry, so make a new one for this model."
            )
        return replace(self, model=here, origins=(*self.origins, before))

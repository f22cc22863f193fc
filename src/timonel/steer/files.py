"""Plan files on disk: saved whole or not at all, and loaded only for the model that they are for.

    plan.json            operations, model, provenance, hashes
    plan.safetensors     vectors of more than 16 numbers, float64; only where there are any

The safetensors file is put in place first and the JSON last. Whoever is killed in between leaves two files whose
hashes disagree, which loading refuses: never half of an old plan and half of a new one.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from timonel.errors import InputError
from timonel.models.geometry import Geometry
from timonel.steer._format import MARK, from_bytes, to_bytes
from timonel.steer.plan import Plan
from timonel.steer.record import ModelCard, Provenance, Record
from timonel.steer.shape import Shape

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def save_plans(
    path: str | os.PathLike[str],
    plans: Mapping[str, Plan],
    record: Record | None,
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    name: str | None = None,
    revision: str | None = None,
    provenance: Provenance | None = None,
) -> None:
    """Writes plans to one file; a single plan has the name ''. See `Plan.save`."""
    target = Path(path)
    if target.suffix != ".json":
        raise InputError(f"A plan file is a .json, but {target} is not; save it as {target.with_suffix('.json')}.")
    settled = _settle(plans, record, model, tokenizer, name, revision)
    if provenance is not None:
        settled = replace(settled, provenance=provenance)
    text, vectors = to_bytes(plans, settled)
    beside = target.with_suffix(".safetensors")
    ours = _is_ours(beside)
    if vectors is not None and ours is False:
        raise InputError(f"{beside} holds no vectors of a plan and would be lost; save the plan under another name.")
    try:
        if vectors is not None:
            _replace(beside, vectors)
        _replace(target, text)
        if vectors is None and ours:
            beside.unlink()  # of the plan that stood here before
    except OSError as error:
        raise InputError(
            f"The plan cannot be written to {target} ({error.strerror or error}); give a path in a folder that you may "
            "write."
        ) from error


def load_plans(
    path: str | os.PathLike[str],
    *,
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> tuple[dict[str, Plan], Record]:
    """Reads the plans of one file; a single plan has the name ''. See `Plan.load`."""
    source = Path(path)
    what = os.fspath(path)
    plans, record = from_bytes(_read(source), lambda: _read(source.with_suffix(".safetensors")), what)
    if record.model is not None:
        _check_fit(plans, record.model.shape)
    if model is not None:
        _check_model(plans, record, model, tokenizer, what)
    return {key: Plan(plan.interventions, record) for key, plan in plans.items()}, record


def retarget_plans(
    plans: Mapping[str, Plan],
    record: Record | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    name: str | None,
    revision: str | None,
) -> Record:
    """The record of these plans for another model of the same geometry. See `Plan.retarget`."""
    here = ModelCard.of(model, tokenizer, name=name, revision=revision)
    moved = (record or Record()).retarget(here)
    _check_fit(plans, here.shape)
    return moved


def check_model(
    plan: Plan, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, *, what: str = "The plan"
) -> None:
    """Refuses a model that is not the one a plan was loaded for; a plan that remembers none is for any that it fits.

    Raises:
        InputError: another model, with both fingerprints.
    """
    if plan.record is not None and plan.record.model is not None:
        plan.record.model.check(ModelCard.of(model, tokenizer), what)


def _check_model(
    plans: Mapping[str, Plan],
    record: Record,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    what: str,
) -> None:
    if record.model is not None:
        record.model.check(ModelCard.of(model, tokenizer), what)
        return
    _check_fit(plans, Shape.of(Geometry.of(model)))
    warnings.warn(
        f"{what} names no model; it fits this one, but nothing shows that it was made for it: save it with model=.",
        stacklevel=4,
    )


def _settle(
    plans: Mapping[str, Plan],
    record: Record | None,
    model: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase | None,
    name: str | None,
    revision: str | None,
) -> Record:
    """The record to be written, and the check that the plans are for its model."""
    record = record or Record()
    before = record.model
    if model is None:
        if tokenizer is not None or name is not None or revision is not None:
            raise InputError("A tokenizer, a name or a revision was given without a model; give model= as well.")
    else:
        here = ModelCard.of(model, tokenizer, name=name, revision=revision)
        if before is not None:
            before.check(here, "The plan")
            here = replace(
                here,
                name=name or before.name,
                revision=revision or before.revision,
                fingerprint=here.fingerprint or before.fingerprint,
            )
        record = replace(record, model=here)
    if record.model is not None:
        _check_fit(plans, record.model.shape)
    return record


def _check_fit(plans: Mapping[str, Plan], shape: Shape) -> None:
    for plan in plans.values():
        for one in plan:
            shape.check(one)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror or error}); give a plan file, with its .safetensors beside it."
        ) from error


def _replace(path: Path, data: bytes) -> None:
    half = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        with half.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def _is_ours(path: Path) -> bool | None:
    """Whether a safetensors file holds vectors of a plan; None where there is no file."""
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            return bool(file.metadata() == MARK)
    except (OSError, SafetensorError):
        return False

"""Interventions, plans, and the one context manager that puts them into a model."""

from timonel.steer.attach import Attachment, attach
from timonel.steer.bound import Bound, Cells, Change
from timonel.steer.interventions import ChannelScale, ChannelSet, EdgeScale, ResidualAdd
from timonel.steer.plan import Plan
from timonel.steer.plan_set import PlanSet
from timonel.steer.record import ModelCard, Provenance, Record
from timonel.steer.scope import ALL, GENERATED, PROMPT, Region, Scope, Span, span

__all__ = [
    "ALL",
    "GENERATED",
    "PROMPT",
    "Attachment",
    "Bound",
    "Cells",
    "Change",
    "ChannelScale",
    "ChannelSet",
    "EdgeScale",
    "ModelCard",
    "Plan",
    "PlanSet",
    "Provenance",
    "Record",
    "Region",
    "ResidualAdd",
    "Scope",
    "Span",
    "attach",
    "span",
]

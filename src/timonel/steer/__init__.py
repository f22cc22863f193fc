"""Interventions, plans, and the one context manager that puts them into a model."""

from timonel.steer.attach import Attachment, attach
from timonel.steer.interventions import EdgeScale
from timonel.steer.plan import Cells, Plan, resolve
from timonel.steer.scope import Span, span

__all__ = ["Attachment", "Cells", "EdgeScale", "Plan", "Span", "attach", "resolve", "span"]

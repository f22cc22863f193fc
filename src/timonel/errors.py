"""Errors that a person is meant to read: what was wrong, what was expected, what to do next.

The command line turns every `TimonelError` into one sentence on standard error and exit code 2;
anything else is a fault of ours and keeps its traceback.
"""

from __future__ import annotations


class TimonelError(Exception):
    """The root of all errors that this package raises on purpose."""


class InputError(TimonelError, ValueError):
    """Something that was handed in cannot be used; the message says what to hand in instead."""


class UnsupportedModel(TimonelError, ValueError):
    """A model, or a way of running it, that cannot be handled exactly; refused by name, with the reason."""


class StoreError(TimonelError, OSError):
    """A run folder or its store is damaged, foreign, or cannot be written; it was left untouched."""

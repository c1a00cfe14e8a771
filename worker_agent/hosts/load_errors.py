"""Errors of loads that hang, or crash the engine host."""

from __future__ import annotations

from synergai.errors import EngineUnusable, Unavailable


class LoadHung(EngineUnusable):
    """The engine was not loaded within the time limit."""


class LoadCrashed(Unavailable):
    """The engine host crashed while it loaded the engine."""


class LoadSuspected(Unavailable):
    """The engine host crashed while it loaded a variant and computed runs; either was the cause."""

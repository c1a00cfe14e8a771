"""Visibility of engines to callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.entry.access.roles import Role
from synergai.versions import is_stage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gateway.entry.access.caller import Caller
    from synergai.domain import EngineName

READERS: Final = (Role.INFER, Role.SUBMIT, Role.OBSERVE)
"""Roles that may read an engine's metadata, which clients of these roles need."""


def is_visible(caller: Caller, engine: str) -> bool:
    """Return whether a caller may see an engine."""
    return caller.may(*READERS, engine=engine)


def visible_engines(caller: Caller, engines: Iterable[EngineName]) -> list[EngineName]:
    """Return the engines that a caller may see, without stages, which are parts."""
    return [each for each in engines if not is_stage(each) and is_visible(caller, each)]

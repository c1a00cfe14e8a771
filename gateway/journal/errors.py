"""Failures of the journal."""

from __future__ import annotations

from synergai.errors import InternalError, Overloaded


class JournalBroken(InternalError):
    """The journal cannot be written; the gateway must not acknowledge anything."""


class JournalDamaged(JournalBroken):
    """The journal lacks something that was acknowledged, or its content is corrupt."""

    def __init__(self, path: object, fault: str) -> None:
        super().__init__(
            f"the journal {path} is damaged: {fault}. Nothing was changed. Run 'synergai journal "
            "check' for details, and 'synergai journal restore FILE' with a backup; "
            "docs/guide/operate.md has the other ways out"
        )
        self.fault = fault


class StoreFull(Overloaded):
    """The disk is full, so that nothing can be recorded; it may have room again later."""

    def __init__(self, directory: object = "the gateway's state directory") -> None:
        super().__init__(
            f"the disk of {directory} is full, so nothing can be recorded; free space there, then "
            "retry"
        )

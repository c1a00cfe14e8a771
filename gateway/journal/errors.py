"""Failures of the journal."""

from __future__ import annotations

from typing import Final

import apsw

from gateway.journal.record_log import NO_SPACE, is_out_of_space
from synergai.errors import Overloaded, Unavailable

_FAILED_SYNCS: Final = frozenset((apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC))


class JournalBroken(Unavailable):
    """The journal cannot be written: the gateway must not acknowledge anything, and stops.

    Clients try again, at the next leader or once the gateway is back.
    """


class JournalDamaged(JournalBroken):
    """The journal lacks something that was acknowledged, or its content is corrupt."""

    def __init__(self, path: object, fault: str) -> None:
        super().__init__(
            f"the journal {path} is damaged: {fault}. Nothing was changed. Run 'synergai gateway "
            "check' for details, and 'synergai gateway restore FOLDER' with a backup; "
            "docs/guide/journal.md has the other ways out"
        )
        self.fault = fault


class Deposed(JournalBroken):
    """Another gateway leads the database."""

    def __init__(self, leader: object) -> None:
        super().__init__(
            f"another gateway, {leader}, has taken over the journal; this one stops, and nothing "
            "more of it was recorded"
        )


class RuleViolated(Exception):
    """A rule of the schema refused a change."""


class StoreFull(Overloaded):
    """The disk is full, so that nothing can be recorded; it may have room again later."""

    def __init__(self, directory: object = "the gateway's journal") -> None:
        super().__init__(
            f"the disk of {directory} is full, so nothing can be recorded; free space there, then "
            "retry"
        )


def is_disk_full(error: Exception, connection: apsw.Connection | None = None) -> bool:
    """Return whether an operation failed for lack of space, and can be repeated later.

    A failed sync never can, for any cause: the kernel may have dropped unwritten data.
    """
    if isinstance(error, OSError):
        return is_out_of_space(error)
    if isinstance(error, apsw.FullError):
        return True
    return (
        isinstance(error, (apsw.IOError, apsw.CantOpenError))
        and getattr(error, "extendedresult", None) not in _FAILED_SYNCS
        and connection is not None
        and connection.system_errno in NO_SPACE
    )

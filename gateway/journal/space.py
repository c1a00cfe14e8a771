"""Lack of disk space, told from other failures of the journal."""

from __future__ import annotations

from typing import Final

import apsw

from gateway.records.log import NO_SPACE, is_out_of_space

_FAILED_SYNCS: Final = frozenset((apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC))


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

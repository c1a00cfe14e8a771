"""Connections to SQLite databases, with a checksum on every page.

SQLite's `cksumvfs <https://sqlite.org/cksumvfs.html>`_ stores the checksum in the last eight bytes
of each page, and verifies it at every read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import apsw

from synergai.errors import InternalError

_CHECKSUM_VFS: Final = "cksmvfs"
_CHECKSUM_BYTES: Final = 8
_MAX_FAULTS: Final = 5


def connect(path: Path, *, create: bool = False) -> apsw.Connection:
    """Open a database; closing the connection leaves the write-ahead log as it is.

    A log that is damaged can thus be looked at without losing the rest of it.

    Args:
        path: the database.
        create: whether to create it if it does not exist.

    Raises:
        apsw.Error: it cannot be opened.
        InternalError: SQLite's checksums are not installed.
    """
    _load_checksums()
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(str(path), flags=flags, vfs=_CHECKSUM_VFS)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def has_checksums(connection: apsw.Connection) -> bool:
    """Return whether the pages have checksums."""
    return connection.reserve_bytes() == _CHECKSUM_BYTES


def add_checksums(connection: apsw.Connection) -> None:
    """Add checksums to the pages of a database that lacks them; atomic.

    Raises:
        apsw.Error: it cannot be written.
    """
    if not has_checksums(connection):
        connection.reserve_bytes(reserve=_CHECKSUM_BYTES)
        connection.execute("VACUUM")


def find_faults(connection: apsw.Connection, *, thorough: bool = False) -> list[str]:
    """Read all pages and check them; return what is wrong, for people.

    Args:
        connection: the database.
        thorough: whether to compare indexes with their tables as well, which takes longer, and
            is needed only without checksums.
    """
    try:
        check = "integrity_check" if thorough else "quick_check"
        found = [row[0] for row in connection.execute(f"PRAGMA {check}({_MAX_FAULTS})")]
        if thorough and connection.execute("PRAGMA foreign_key_check").fetchone():
            found.append("a row refers to a job that does not exist")
    except apsw.Error as error:
        return [describe(error)]
    return [fault for fault in found if fault != "ok"]


def describe(error: Exception) -> str:
    """Return what an error of SQLite says about the database."""
    if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_DATA:
        return "the checksum of a page is wrong"
    return str(error)


def _load_checksums() -> None:
    """Register the VFS with checksums, which other databases of the process do not use."""
    names = apsw.vfs_names()
    if _CHECKSUM_VFS in names:
        return
    # `apsw.sqlite_extra` would find it as well, but by modules that cost half a megabyte.
    extension = Path(apsw.__file__).with_name("sqlite_extra_binaries") / "cksumvfs"
    connection = apsw.Connection(":memory:")
    try:
        connection.enable_load_extension(True)
        connection.load_extension(str(extension))
    except apsw.Error as error:
        raise InternalError(
            "this installation of apsw lacks the extension cksumvfs; install a wheel of apsw "
            "3.51.3 or newer from PyPI"
        ) from error
    finally:
        connection.close()
    apsw.set_default_vfs(names[0])

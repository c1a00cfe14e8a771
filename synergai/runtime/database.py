"""Connections to SQLite databases, with a checksum on every page.

SQLite's `cksumvfs <https://sqlite.org/cksumvfs.html>`_ stores the checksum in the last eight bytes
of each page, and verifies it at every read. Every database of ours has checksums from
its first page on. Programs that write without `cksumvfs` would leave wrong ones behind.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import apsw

from synergai.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHECKSUM_VFS: Final = "cksmvfs"
_CHECKSUM_BYTES: Final = 8
_MAX_FAULTS: Final = 5
_DAMAGED_READS: Final = frozenset(
    (
        apsw.SQLITE_IOERR_CORRUPTFS,
        apsw.SQLITE_IOERR_DATA,
        apsw.SQLITE_IOERR_READ,
        apsw.SQLITE_IOERR_SHORT_READ,
    )
)
_loading: Final = threading.Lock()


def connect(path: Path, *, create: bool = False) -> apsw.Connection:
    """Open a database; closing the connection leaves the write-ahead log as it is.

    A log that is damaged can thus be looked at without losing the rest of it.
    """
    _load_checksums()
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    connection = apsw.Connection(str(path), flags=flags, vfs=_CHECKSUM_VFS)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def expect_checksums(connection: apsw.Connection) -> None:
    """Let a database that is still empty have checksums from its first page on."""
    connection.reserve_bytes(reserve=_CHECKSUM_BYTES)


@contextmanager
def transaction(connection: apsw.Connection, *, writes: bool) -> Iterator[None]:
    """Run a block in a transaction.

    One that writes waits for other writers before it begins. If it read first, it could not wait
    later: SQLite lets its first write fail at once while another process writes.
    """
    connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def find_damage(connection: apsw.Connection, *, thorough: bool = False) -> str:
    """Read all pages and check them; return what is wrong, empty if nothing is."""
    if connection.reserve_bytes() != _CHECKSUM_BYTES:
        return "its pages have lost their checksums"
    return "; ".join(find_faults(connection, thorough=thorough))


def find_faults(connection: apsw.Connection, *, thorough: bool = False) -> list[str]:
    """Read all pages and check them; return what is wrong, for people."""
    try:
        check = "integrity_check" if thorough else "quick_check"
        found = [row[0] for row in connection.execute(f"PRAGMA {check}({_MAX_FAULTS})")]
        if thorough and connection.execute("PRAGMA foreign_key_check").fetchone():
            found.append("a row refers to a job that does not exist")
    except (apsw.BusyError, apsw.LockedError):
        raise
    except apsw.Error as error:
        return [describe(error)]
    return [fault for fault in found if fault != "ok"]


def is_damage(error: apsw.Error) -> bool:
    """Return whether an error means that the content of a file cannot be trusted."""
    return isinstance(error, apsw.CorruptError) or (
        getattr(error, "extendedresult", None) in _DAMAGED_READS
    )


def describe(error: Exception) -> str:
    """Return what an error of SQLite says about the database."""
    if getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_DATA:
        return "the checksum of a page is wrong"
    return str(error)


def _load_checksums() -> None:
    """Register the VFS with checksums, which other databases of the process do not use."""
    # Registered twice at the same time, it would call itself.
    with _loading:
        names = apsw.vfs_names()
        if _CHECKSUM_VFS not in names:
            _load_extension()
            apsw.set_default_vfs(names[0])


def _load_extension() -> None:
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

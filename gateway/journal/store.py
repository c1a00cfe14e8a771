"""What a journal requires of the database that it is kept in, and the failures of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import apsw

from gateway.journal.record_log import NO_SPACE, is_out_of_space
from synergai.errors import Overloaded, Unavailable

Row: TypeAlias = tuple[Any, ...]
"""Row of a table whose columns have the types of the schema."""
_FAILED_SYNCS: Final = frozenset((apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC))


class Rows(Protocol):
    """Result of a statement."""

    def __iter__(self) -> Iterator[Row]:
        """Return the rows that were not fetched yet."""

    def fetchone(self) -> Row | None:
        """Return the next row; None if there is no further one."""

    def fetchall(self) -> list[Row]:
        """Return the rows that were not fetched yet."""


class Connection(Protocol):
    """Connection to a database, for operations in its open transaction."""

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> Rows:
        """Execute a statement with a question mark for each parameter."""

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> object:
        """Execute a statement once for each row of parameters."""


Operation: TypeAlias = Callable[[Connection], object]
"""Reads or changes the database. One that raises a `SynergaiError` has changed nothing."""


class Store(Protocol):
    """Database of a journal; one thread at a time uses it.

    Attributes:
        epoch: number of this opening of the database; each is greater than those before.
        cluster: id of the gateways that may lead the database; empty if it is of one gateway.
        place: where its disk is, for the log.
    """

    epoch: int
    cluster: str
    place: str

    def execute(self, operations: Sequence[Operation]) -> list[object]:
        """Execute operations in one transaction, in order.

        Returns the result of each, or the `SynergaiError` that it raised. Changes are durable then.
        """

    def roll_back(self) -> None:
        """End a transaction that failed."""

    def is_full(self, error: Exception) -> bool:
        """Return whether a transaction failed for lack of space, and can be repeated later."""

    def has_room(self) -> bool:
        """Return whether the database can be written again after a lack of space."""

    def close(self) -> None:
        """Close the database."""


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

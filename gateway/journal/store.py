"""What a journal requires of the database that it is kept in."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Row: TypeAlias = tuple[Any, ...]
"""Row of a table whose columns have the types of the schema."""


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

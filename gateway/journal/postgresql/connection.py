"""Connection for the operations of the journal, which saves round trips to the server."""

from __future__ import annotations

import re
from collections import deque
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any

from gateway.journal.errors import RuleViolated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gateway.journal.postgresql.session import DatabaseSession
    from gateway.journal.store import Row


class FetchedRows(deque["Row"]):
    """Rows of a statement; fetching removes them."""

    def fetchone(self) -> Row | None:
        """Return the next row; None if there is no further one."""
        return self.popleft() if self else None

    def fetchall(self) -> list[Row]:
        """Return the rows that were not fetched yet."""
        rows = list(self)
        self.clear()
        return rows


class PipelinedConnection:
    """Sends changes later, those of one statement together. The first one calls `begin` before.

    Which operation a refused change belongs to is not known then. With savepoints, changes are
    sent at once, and a refused one raises `RuleViolated` in its operation.
    """

    def __init__(self, session: DatabaseSession, begin: Callable[[], None]) -> None:
        self._session = session
        self._begin = begin
        self._statement = ""
        self._waiting: list[Sequence[Any]] = []
        self._savepoints = False

    def execute(self, statement: str, parameters: Sequence[Any] = (), /) -> FetchedRows:
        """Execute a statement with a question mark for each parameter."""
        if statement.startswith("SELECT"):
            self.flush()
            return FetchedRows(self._session.fetch(translated(statement), parameters))
        self.executemany(statement, [parameters])
        return FetchedRows()

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> None:
        """Execute a statement once for each row of parameters."""
        if statement != self._statement:
            self.flush()
            self._statement = statement
        self._waiting += ([storable(value) for value in row] for row in rows)
        if self._savepoints:
            self._flush_or_refuse()

    def flush(self) -> None:
        """Send the changes that wait."""
        rows, self._waiting = self._waiting, []
        if not rows:
            return
        if not self._session.in_transaction:
            self._begin()
        statement = translated(self._statement)
        if len(rows) == 1:
            self._session.fetch(statement, rows[0])
        else:
            self._session.fetch_each(statement, rows)

    def begin_savepoints(self) -> None:
        """Begin a transaction in which each change has a savepoint."""
        self._savepoints = True
        self._begin()

    def end(self) -> None:
        """Forget changes that wait, and use no savepoints further."""
        self._waiting = []
        self._savepoints = False

    def _flush_or_refuse(self) -> None:
        self._session.script("SAVEPOINT change")
        try:
            self.flush()
        except Exception as error:
            if not is_refusal(error):
                raise
            self._session.script("ROLLBACK TO change")
            raise RuleViolated(str(error)) from error


def is_refusal(error: Exception) -> bool:
    """Return whether a constraint or a trigger of the schema refused a change."""
    return str(getattr(error, "sqlstate", "")).startswith("23")


def storable(value: Any) -> Any:
    """Return a value as PostgreSQL can have it: its text has no NUL."""
    match value:
        case str():
            return value.replace("\0", "\N{REPLACEMENT CHARACTER}")
        case list():
            return [storable(each) for each in value]
    return value


@cache
def translated(statement: str) -> str:
    """Return a statement of the operations in PostgreSQL's notation."""
    numbers = count(1)
    numbered = re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
    return numbered.replace("json_each(", "json_array_elements(")

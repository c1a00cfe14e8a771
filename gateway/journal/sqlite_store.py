"""Journal in a SQLite database of the state directory."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import apsw

from gateway.journal import schema
from gateway.journal.errors import is_disk_full
from gateway.journal.opening import open_journal
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gateway.journal.store import Operation
    from synergai.runtime.clock import Clock


class SqliteStore:
    """Database in a locked state directory; it is created if there is none."""

    cluster = ""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._clock = clock
        self.place = str(directory)
        with ExitStack() as stack:
            opened = open_journal(directory, clock, stack)
            self.connection, self._marker, self.epoch, self._commits = opened
            self._resources = stack.pop_all()

    def execute(self, operations: Sequence[Operation]) -> list[object]:
        """Execute operations in one transaction; see `Store`."""
        outcomes: list[object] = []
        self.connection.execute("BEGIN IMMEDIATE")
        unchanged = self.connection.total_changes()
        for operation in operations:
            try:
                outcomes.append(operation(self.connection))
            except SynergaiError as error:  # raised before any change
                outcomes.append(error)
        changed = self.connection.total_changes() != unchanged
        if changed:
            schema.count_commit(self.connection, self._commits + 1, self._clock.read())
        self.connection.execute("COMMIT")
        if changed:
            self._commits += 1
            self._marker.advance(self._commits)
        return outcomes

    def roll_back(self) -> None:
        """End a transaction that failed."""
        with suppress(apsw.Error):
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")

    def is_full(self, error: Exception) -> bool:
        """Return whether a transaction failed for lack of space, and can be repeated later."""
        return is_disk_full(error, self.connection)

    def has_room(self) -> bool:
        """Return true: the reserve, on the same disk, is what shows a lack."""
        return True

    def close(self) -> None:
        """Close the database."""
        self._resources.close()

"""A SQLite database that checks its pages when it is opened, and notices changes by others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from synergai.runtime import database

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import apsw

    from synergai.errors import SynergaiError


class DatabaseFile(ABC):
    """Base of the classes for a database; a context manager that closes it."""

    _connection: apsw.Connection
    _data_version: int

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; idempotent."""
        self._connection.close()

    def check(self, *, thorough: bool = False) -> None:
        """Read the whole file and check it.

        Args:
            thorough: whether to compare indexes with their tables as well, which takes longer.

        Raises:
            SynergaiError: the file is damaged, or cannot be read.
        """
        with self._translated():
            if fault := database.find_damage(self._connection, thorough=thorough):
                raise self._damaged(fault)

    def changed_by_others(self) -> bool:
        """Return whether another process has changed the database since it was last read.

        Raises:
            SynergaiError: the file cannot be read.
        """
        with self._translated():
            return bool(self._connection.pragma("data_version") != self._data_version)

    @abstractmethod
    def _translated(self) -> AbstractContextManager[None]:
        """Raise errors of SQLite as those of this database."""

    @abstractmethod
    def _damaged(self, fault: str) -> SynergaiError:
        """Return the error for a damaged file."""

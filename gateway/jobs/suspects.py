"""Inputs of a job at which engine hosts died."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_CRASHES: Final = 16
"""Crashes of engine hosts without a response in between after which a job fails."""


class Suspects:
    """The queries that run alone next, since an engine host died at or near them.

    `fail` is called after too many crashes.
    """

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._queries: set[int] = set()
        self._crashes = 0

    def __contains__(self, query: int) -> bool:
        return query in self._queries

    def retries_alone(self, query: int) -> bool:
        """Return whether a query at which an engine host died runs alone next; only once."""
        self._crashes += 1
        if self._crashes > MOST_CRASHES:
            self._fail(f"engine hosts died {self._crashes} times in a row at its inputs")
        if query in self._queries:
            return False
        self._queries.add(query)
        return True

    def answered(self) -> None:
        """Note that an engine host answered."""
        self._crashes = 0

    def forget(self, query: int) -> None:
        """Forget a query that is done."""
        self._queries.discard(query)

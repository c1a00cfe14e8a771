"""Deletion of uploads that no job used, and of the data of jobs that ended long ago."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NoReturn

from gateway.journal.records.store import DataKey
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gateway.journal.job_record import UploadUse
    from gateway.journal.journal import Journal
    from gateway.journal.records.store import DataStore, Stored

_INTERVAL_S: Final = 60.0

_log = logging.getLogger(__name__)


UPLOADS_KEPT_S: Final = 86_400.0
"""Time after its last change for which an unused upload is kept."""


class Retention:
    """Deletes data whose retention time is over.

    Args:
        uploads_kept_s: time after its last change for which an unused upload is kept.
        results_kept_s: time after a job's end for which its inputs and results are kept.
        budget_bytes: size of all data above which the data of ended jobs is deleted earlier,
            the oldest first; None for none.
    """

    def __init__(
        self,
        store: DataStore,
        journal: Journal,
        now: Callable[[], float],
        *,
        uploads_kept_s: float,
        results_kept_s: float,
        budget_bytes: int | None = None,
    ) -> None:
        self._store = store
        self._journal = journal
        self._now = now
        self._uploads_kept_s = uploads_kept_s
        self._results_kept_s = results_kept_s
        self._budget_bytes = budget_bytes

    async def run(self) -> NoReturn:
        """Delete expired data periodically, until cancelled."""
        while True:
            try:
                await self.sweep()
            except (SynergaiError, OSError) as error:
                _log.warning("cannot delete old data, trying again in a minute: %s", error)
            await asyncio.sleep(_INTERVAL_S)

    async def sweep(self) -> None:
        """Delete data that has expired, unless it is in use."""
        uses = await self._journal.jobs_over_uploads()
        # There may be very many of them.
        unused, expired = await asyncio.to_thread(self._find_due, uses, self._store.stored())
        for key in unused:
            await self._delete(key, "no job used it")
        for key in expired:
            await self._delete(key, "its job ended long ago")
        for use in uses:
            over_budget = self._budget_bytes is not None and self._store.bytes > self._budget_bytes
            if use.finished_at is None or not over_budget:
                break
            for key in _keys(use):
                await self._delete(key, "the budget is used up")

    def _find_due(
        self, uses: Sequence[UploadUse], stored: Mapping[DataKey, Stored]
    ) -> tuple[list[DataKey], list[DataKey]]:
        """Return the uploads that no job used in time, and the data of jobs that ended long ago."""
        now = self._now()
        used = {key for use in uses for key in _keys(use)}
        # A job that is being accepted holds its files open.
        unused = [
            key
            for key, each in stored.items()
            if key not in used and now - each.used_at > self._uploads_kept_s
        ]
        expired = [
            key
            for use in uses
            if use.finished_at is not None and now - use.finished_at > self._results_kept_s
            for key in _keys(use)
            if key in stored
        ]
        return unused, expired

    async def _delete(self, key: DataKey, reason: str) -> None:
        if key in self._store and await self._store.delete(key):
            _log.info("deleted %s %s: %s", key.kind, key.name, reason)


def _keys(use: UploadUse) -> Iterator[DataKey]:
    yield DataKey(use.tenant, "uploads", use.upload_id)
    yield DataKey(use.tenant, "results", use.job_id)

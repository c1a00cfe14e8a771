"""The configuration dictionary in service: in memory for the scheduler, and in its file."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from synergai.errors import SynergaiError
from synergai.profiles.store import DictionaryStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from synergai.profiles.dictionary import ProfileEntry

_log = logging.getLogger(__name__)


class ProfileService:
    """What is known of the engines' speed.

    Attributes:
        dictionary: shared with the core, which adds to it what it learns or is told.

    Raises:
        InvalidInput: the file is not a dictionary of this version.
        Unavailable: another process kept it locked.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._store = DictionaryStore(path)
        self._one_at_a_time = asyncio.Lock()
        self._storing: set[asyncio.Task[None]] = set()
        self.dictionary = self._store.load()

    async def store(self, entries: Sequence[ProfileEntry]) -> None:
        """Write entries to the file: all of them or none.

        Raises:
            InvalidInput: the file cannot be written.
            Unavailable: another process kept it locked.
        """
        async with self._one_at_a_time:
            await asyncio.to_thread(self._store.put_all, entries)

    def learned(self, entry: ProfileEntry) -> None:
        """Write what the core has learned, beside its work, with the date that the core has not."""
        _log.info(
            "learned: %s on %s with %s does %s queries per second",
            entry.engine,
            entry.worker_class,
            entry.configuration,
            f"{entry.qps:,.1f}",
        )
        dated = replace(entry, measured_at=datetime.now(UTC).isoformat(timespec="seconds"))
        task = asyncio.create_task(self._store_quietly(dated))
        self._storing.add(task)
        task.add_done_callback(self._storing.discard)

    async def close(self) -> None:
        """Finish writing, and close the file."""
        await asyncio.gather(*self._storing)
        self._store.close()

    async def _store_quietly(self, entry: ProfileEntry) -> None:
        try:
            await self.store([entry])
        except SynergaiError as error:
            _log.warning("what was learned is kept in memory only: %s", error)

"""State of the leader that the next one continues with, in the database that they share."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gateway.journal.documents import StateDocuments
from gateway.journal.errors import JournalBroken, StoreFull
from synergai.errors import SynergaiError

if TYPE_CHECKING:
    from pathlib import Path
    from typing import NoReturn

    from gateway.journal.journal import Journal

_LOOK_S: Final = 0.5

_log = logging.getLogger(__name__)


class SharedState:
    """Keeps the documents of the leader's state directory in its journal."""

    def __init__(self, journal: Journal, directory: Path, dictionary: Path) -> None:
        self._journal = journal
        self._documents = StateDocuments(directory, dictionary)
        self._saved: dict[str, str] = {}
        self._one_at_a_time = asyncio.Lock()

    async def restore(self) -> None:
        """Replace the documents by those of the last leader; the first leader keeps its own."""
        self._saved = await self._journal.documents()
        if self._saved:
            await asyncio.to_thread(self._documents.write, self._saved)
        with suppress(StoreFull):  # `follow` tries again
            await self.save()

    async def save(self) -> None:
        """Record what has changed in the directory; durable then."""
        async with self._one_at_a_time:
            current = await asyncio.to_thread(self._documents.read)
            changed = dict(current.items() - self._saved.items())
            removed = self._saved.keys() - current.keys()
            if changed or removed:
                await self._journal.change_documents(changed, removed)
            self._saved = current

    async def follow(self) -> NoReturn:
        """Record changes by commands, and what is learned, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.save()
            except (JournalBroken, StoreFull):  # which the journal reports
                pass
            except (SynergaiError, OSError) as error:
                _log.warning("cannot share the state directory with the next leader: %s", error)

    async def close(self) -> None:
        """Wait for a change in progress, and close the dictionary."""
        async with self._one_at_a_time:
            self._documents.close()

"""What a gateway keeps: its journal, the data of jobs, and the store of engines."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.hub.store.files import open_files
from gateway.hub.store.store import EngineStore
from gateway.journal.files import StateInUse
from gateway.journal.journal import Journal
from gateway.journal.records.store import DIRECTORY, DataStore
from gateway.journal.shared_state import SharedState

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.parts.foundation import Foundation

_RETRY_S: Final = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StorageParts:
    """What a gateway keeps."""

    journal: Journal
    data: DataStore
    store: EngineStore
    shared: SharedState | None

    async def save_state(self) -> None:
        """Let the next leader have what has changed in the state directory, if there can be one."""
        if self.shared is not None:
            await self.shared.save()


async def open_storage(base: Foundation) -> StorageParts:
    """Open what a gateway keeps; if it shares the journal with others, wait until it leads."""
    config, stack, metrics = base.config, base.stack, base.metrics
    journal = await _open_journal(base)
    stack.push_async_callback(journal.close)
    metrics.add_gauge(
        "journal_writable",
        "Whether the journal's disk has room for new jobs.",
        lambda: journal.accepting,
    )
    shared = await _open_shared_state(base, journal) if journal.cluster else None
    store = EngineStore(
        open_files(config.store, config.state),
        config.state / "uploads",
        location=config.store or str(config.state / "store"),
        remembered=config.state / "store-id",
        budget_bytes=config.store_budget,
    )
    stack.push_async_callback(store.close)
    base.tasks.start(store.run())  # loads its versions in the background
    metrics.add_gauge("store_bytes", "Size of the store of engines.", lambda: store.used_bytes)
    metrics.add_gauge(
        "store_available", "Whether the store of engines can be used.", lambda: not store.fault
    )
    epoch = journal.epoch if journal.cluster else 0
    data = DataStore(config.state / DIRECTORY, base.clock.unix_now, epoch)
    await data.load()
    stack.push_async_callback(data.close)
    metrics.add_gauge(
        "stored_upload_bytes", "Bytes of uploads on disk.", lambda: data.bytes_in("uploads")
    )
    metrics.add_gauge(
        "stored_result_bytes",
        "Bytes of results of jobs over uploads on disk.",
        lambda: data.bytes_in("results"),
    )
    return StorageParts(journal, data, store, shared)


async def _open_journal(base: Foundation) -> Journal:
    config, store = base.config, None
    if config.journal:
        # Imported on demand: it costs memory.
        from gateway.journal.postgresql.leadership import keep_leading, lead
        from gateway.standby import standing_by

        store = await lead(config, base.clock, partial(standing_by, config))
    open_journal = partial(
        Journal, config.state, kept_jobs=config.kept_jobs, clock=base.clock, store=store
    )
    journal = await _when_free(open_journal, config.state_wait_s)
    if config.journal:
        base.tasks.start(keep_leading(journal))
    return journal


async def _when_free(open_journal: Callable[[], Journal], wait_s: float) -> Journal:
    """Open the journal once no other gateway uses the state directory.

    In a restart, a service manager may start a gateway before the former one has ended.
    """
    deadline = time.monotonic() + wait_s
    waits = False
    while True:
        try:
            return open_journal()
        except StateInUse as error:
            if time.monotonic() >= deadline:
                raise
            if not waits:
                _log.warning("%s; waiting up to %g s for its end", error, wait_s)
            waits = True
        await asyncio.sleep(_RETRY_S)


async def _open_shared_state(base: Foundation, journal: Journal) -> SharedState:
    """Continue with the state of the last leader."""
    shared = SharedState(journal, base.config.state, base.dictionary)
    base.stack.push_async_callback(shared.close)
    await shared.restore()
    base.tasks.start(shared.follow())
    return shared

"""Ejection of workers that were proved to answer falsely."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.audit.entry import Entry

if TYPE_CHECKING:
    from gateway.audit.log import AuditLog
    from gateway.fleet.distrust import Distrust
    from gateway.hub.hub import Hub
    from synergai.domain import WorkerId

_log = logging.getLogger(__name__)


class Ejection:
    """Ejects whole workers: nothing says that a false answer is the fault of one engine.

    Args:
        distrust: the record of ejected workers.
        hub: takes them out of service.
        audit: the audit log; None without one.
    """

    def __init__(self, distrust: Distrust, hub: Hub, audit: AuditLog | None) -> None:
        self._distrust = distrust
        self._hub = hub
        self._audit = audit
        self._writes: set[asyncio.Task[None]] = set()

    def distrust(self, worker_id: WorkerId, reason: str) -> None:
        """Revoke a worker's assignments, and give it no others until it is readmitted."""
        if self._distrust.reason(worker_id):
            return
        self._distrust.add(worker_id, reason)
        _log.warning(
            "worker %s is ejected: %s; once it is repaired, readmit it with 'synergai gateway "
            "workers readmit %s'",
            worker_id,
            reason,
            worker_id,
        )
        self._hub.distrust(worker_id)
        self._record("eject", worker_id, reason)
        write = asyncio.create_task(self._distrust.write())
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)

    def readmitted(self, worker_ids: set[WorkerId]) -> None:
        """Let workers serve again that a command has readmitted."""
        for worker_id in sorted(worker_ids):
            _log.info("worker %s is readmitted", worker_id)
            self._record("readmit", worker_id, "")
        self._hub.review()

    async def close(self) -> None:
        """Wait until the record is written."""
        if self._writes:
            await asyncio.wait(self._writes)

    def _record(self, call: str, worker_id: WorkerId, reason: str) -> None:
        if self._audit is not None:
            entry = Entry(caller="gateway", peer="", call=call, object=worker_id, reason=reason)
            self._audit.record(entry)

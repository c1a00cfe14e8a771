"""Pausing of submitted jobs while their store cannot be written.

A paused job is withdrawn from the scheduling core, so that its workers are free for requests and
no query runs whose result would be lost. It continues with what the store has recorded.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from gateway.jobs.submitted_job import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.jobs.submitted_job import SubmittedJob
    from gateway.journal.journal import Journal
    from synergai.domain import JobId

_BATCH: Final = 64
"""Jobs paused or resumed at a time, between which the event loop does other work."""
_RESUME_INTERVAL_S: Final = 0.02
_WAITING: Final = frozenset({Phase.PAUSED, Phase.UNRECORDED})


class Pauses:
    """The paused jobs."""

    def __init__(
        self, store: Journal, dispatcher: Dispatcher, jobs: Mapping[JobId, SubmittedJob]
    ) -> None:
        self._store = store
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._paused: dict[JobId, SubmittedJob] = {}

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._paused

    def __len__(self) -> int:
        return len(self._paused)

    def follow(self, job: SubmittedJob) -> None:
        """Take the phase of a job into account, which has changed."""
        if job.phase in _WAITING:
            self._paused[job.tracker.id] = job
        else:
            self._paused.pop(job.tracker.id, None)

    async def follow_store(self) -> NoReturn:
        """Pause and resume all jobs as the store's room changes, until cancelled."""
        while True:
            if not self._store.writable:
                await self._pause_all()
                await self._store.wait_space_changed()
            elif self._paused:
                await asyncio.sleep(_RESUME_INTERVAL_S)
                # Afterwards, no pending write of an earlier assignment can change the jobs.
                self._store.after_pending(self._resume_some)
            else:
                await self._store.wait_space_changed()

    async def _pause_all(self) -> None:
        for number, job in enumerate(list(self._jobs.values()), 1):
            job.pause()
            if number % _BATCH == 0:
                await asyncio.sleep(0)

    def _resume_some(self) -> None:
        """Resume the next jobs that no worker still reports on."""
        if not self._store.writable:
            return
        in_flight = self._dispatcher.jobs_in_flight()
        for job_id in list(
            islice((each for each in self._paused if each not in in_flight), _BATCH)
        ):
            self._paused[job_id].resume()

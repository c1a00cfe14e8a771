"""Jobs whose inputs or results could not be opened when the gateway started.

Such a job is not lost: the files may be readable again later, as those of a disk with errors or
after a shortage of file descriptors.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from gateway.jobs.submitted_job import Phase
from gateway.journal.errors import StoreFull
from gateway.journal.records.log import DamagedLog
from synergai.domain import Fault, JobState
from synergai.errors import UploadNotFound
from synergai.runtime.backoff import Backoff
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.jobs.input_feed import JobData
    from gateway.jobs.own_inputs import OwnInputs
    from gateway.jobs.submitted_job import SubmittedJob
    from synergai.runtime.clock import Clock

DAMAGED: Final = (UploadNotFound, DamagedLog)
"""Permanent faults of files; the job fails."""
UNREADABLE: Final = (OSError, StoreFull)
"""Temporary faults of files; the job waits."""
DAMAGE: Final = "its inputs or results were damaged or are missing"
RETRY: Final = Backoff(initial_s=1.0, max_s=60.0)
"""Pauses between attempts."""

_log = logging.getLogger(__name__)


class Reopening:
    """Tries again to open the files of jobs, to run them."""

    def __init__(
        self,
        own_inputs: OwnInputs,
        on_opened: Callable[[SubmittedJob, JobData], object],
        clock: Clock,
    ) -> None:
        self._own_inputs = own_inputs
        self._on_opened = on_opened
        self._clock = clock
        self._jobs: list[SubmittedJob] = []
        self._tasks = TaskBag()

    def add(self, job: SubmittedJob) -> None:
        """Try again to open the files of a job, until they are open or it has ended."""
        self._jobs.append(job)
        if not self._tasks:
            self._tasks.start(self._run())

    async def close(self) -> None:
        """Stop trying; the jobs stay in the journal."""
        await self._tasks.close()

    async def _run(self) -> None:
        delays = RETRY.delays()
        while self._jobs:
            await asyncio.sleep(next(delays))
            for job in list(self._jobs):
                if job.phase is not Phase.OPENING or await self._try(job):
                    self._jobs.remove(job)

    async def _try(self, job: SubmittedJob) -> bool:
        """Open a job, which is tried again after an unexpected error as well."""
        try:
            return await self._open(job)
        except Exception:  # noqa: BLE001 - a bug at one job must not end the attempts for others
            _log.exception("job %s cannot be opened", job.tracker.id)
            return False

    async def _open(self, job: SubmittedJob) -> bool:
        """Run a job if its files can be opened; return whether nothing is left to do."""
        try:
            data = await self._own_inputs.restore(job.tracker.record)
        except DAMAGED as error:
            _log.error("job %s cannot continue: %s", job.tracker.id, error)
            job.on_ended(JobState.FAILED, DAMAGE, Fault.UNSPECIFIED, self._clock.now())
            return True
        except UNREADABLE as error:
            _log.warning("job %s still waits for its files: %s", job.tracker.id, error)
            return False
        if job.phase is not Phase.OPENING:  # it was cancelled in the meantime
            await self._own_inputs.close(data)
            return True
        _log.info("job %s continues: its files are open", job.tracker.id)
        self._on_opened(job, data)
        return True

"""A gateway over data of jobs in a directory."""

import asyncio
import errno
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.calls.servicers.jobs import JobResults
from gateway.entry.access.caller import UNRESTRICTED
from gateway.fleet.worker import ConnectedWorker, RunAssignment, SendInputs
from gateway.jobs import own_inputs
from gateway.journal.data_store import DataKey, DataStore, OpenLog
from gateway.journal.journal import Journal
from synergai.core.scheduling.events import Assignment
from synergai.domain import EngineName
from synergai.jobs import JobSpec, JobStatus
from synergai.oip import inference_pb2 as oip
from synergai.runtime.clock import Backoff
from synergai.v1 import hub_pb2, jobs_pb2
from tests.unit.gateway.conftest import GatewayHarness

SPEC = JobSpec(engine=EngineName("echo"), queries=0, upload_id="up")
RESPONSE = oip.ModelInferResponse(model_name="echo").SerializeToString()


class OwnDataHarness(GatewayHarness):
    """A gateway without its servers that runs jobs over uploads."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.results = JobResults(self.jobs, self.store, self.journal.confirm)

    async def upload(
        self,
        count: int,
        *,
        first: int = 0,
        upload_id: str = "up",
        size: int = 0,
        tenant: str = "",
        parameter: str = "any",
    ) -> list[int]:
        async def messages() -> AsyncIterator[bytes]:
            yield jobs_pb2.UploadRequest(upload_id=upload_id).SerializeToString()
            for index in range(first, first + count):
                request = oip.ModelInferRequest(id="i" * size)
                request.parameters[parameter].int64_param = index
                one = jobs_pb2.Input(name=f"n{index}", request=request.SerializeToString())
                yield jobs_pb2.UploadRequest(first=index, inputs=[one]).SerializeToString()

        receipts = self.uploads.upload(tenant, messages(), lambda: None)
        return [receipt.stored async for receipt in receipts]

    async def run_job(
        self, count: int, spec: JobSpec = SPEC, size: int = 0, parameter: str = "any"
    ) -> tuple[ConnectedWorker, JobStatus, Assignment, list[SendInputs]]:
        """Run a job over an upload on a new worker; return what that gets first."""
        worker = self.add_worker()
        await self.upload(count, size=size, parameter=parameter)
        status = await self.jobs.submit(UNRESTRICTED, spec)
        [assignment], inputs = await self.next_orders(worker)
        return worker, status, assignment, inputs

    async def flush_journal(self) -> None:
        """Wait for all journal operations, and for the end of a job that follows them."""
        for _ in range(3):
            await super().flush_journal()

    async def read(self, job_id: str, cursor: int = 0) -> list[jobs_pb2.JobResult]:
        return [
            jobs_pb2.JobResult.FromString(data)
            async for batch in self.results.read(UNRESTRICTED, job_id, cursor, follow=False)
            for data in batch.results
        ]

    async def next_orders(
        self, worker: ConnectedWorker
    ) -> tuple[list[Assignment], list[SendInputs]]:
        """Return the assignments and inputs that are sent next, once there are inputs."""
        assignments: list[Assignment] = []
        async with asyncio.timeout(30):
            while True:
                orders = self.orders(worker)
                assignments += [o.assignment for o in orders if isinstance(o, RunAssignment)]
                if inputs := [o for o in orders if isinstance(o, SendInputs)]:
                    return assignments, inputs
                await asyncio.sleep(0)

    def report(
        self,
        worker: ConnectedWorker,
        assignment: Assignment,
        done: int,
        failed: Sequence[int] = (),
        responses: int | None = None,
        outcome: hub_pb2.Outcome.ValueType | None = None,
        fault: hub_pb2.Fault.ValueType = hub_pb2.FAULT_UNSPECIFIED,
    ) -> None:
        """Report the progress of an assignment, or its end."""
        progress = hub_pb2.Progress(
            assignment_id=assignment.id,
            done=done,
            failures=[hub_pb2.InputFailure(query=query, detail="bad") for query in failed],
        )
        count = done if responses is None else responses
        answers = [b"" if query in failed else RESPONSE for query in range(done - count, done)]
        if outcome is None:
            self.intake.apply_progress(worker, progress, answers)
        else:
            ended = hub_pb2.Ended(progress=progress, outcome=outcome, fault=fault)
            self.intake.apply_ended(worker, ended, answers)


@asynccontextmanager
async def own_data(directory: Path) -> AsyncIterator[OwnDataHarness]:
    """Open a gateway's state; leaving the context is a crash as far as the data is concerned."""
    journal = Journal(directory)
    harness = OwnDataHarness(journal, directory / "data")
    await harness.store.load()
    try:
        yield harness
    finally:
        harness.dispatcher.close()
        for job in list(harness.jobs._unfinished.values()):
            if job.feed is not None:
                await job.feed.close()
        await harness.jobs.close()
        await journal.close()
        await harness.store.close()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[OwnDataHarness]:
    async with own_data(tmp_path) as harness:
        yield harness


class UnreadableStore:
    """Makes logs fail to open while it is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: OSError | None = None
        self.tried = asyncio.Event()
        open_log = DataStore.open

        async def open_or_fail(store: DataStore, key: DataKey, *, create: bool = False) -> OpenLog:
            if self.error is not None:
                self.tried.set()
                raise self.error
            return await open_log(store, key, create=create)

        monkeypatch.setattr(DataStore, "open", open_or_fail)
        monkeypatch.setattr(own_inputs, "RETRY", Backoff(0.0, 0.0))


@pytest.fixture
async def waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[OwnDataHarness, str, UnreadableStore]]:
    """Yield a gateway with a job whose files could not be opened at its start."""
    async with own_data(tmp_path) as harness:
        harness.add_worker()
        await harness.upload(2)
        status = await harness.jobs.submit(UNRESTRICTED, SPEC)
    disk = UnreadableStore(monkeypatch)
    disk.error = OSError(errno.EIO, "Input/output error")
    async with own_data(tmp_path) as harness:
        assert await harness.jobs.restore() == 1
        yield harness, status.id, disk

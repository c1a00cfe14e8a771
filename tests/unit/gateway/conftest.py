"""A dispatcher with the real scheduling core and journal, and workers without an agent."""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

import pytest

from gateway.calls.requests.inference import Inference, Request
from gateway.calls.requests.parameters import InferenceCall, RequestId
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.job_routes import JobRoutes
from gateway.dispatch.report_intake import ReportIntake
from gateway.entry.access.caller import UNRESTRICTED, Caller
from gateway.entry.admission import Admission
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.variants import FleetVariants
from gateway.fleet.versions import Versions
from gateway.fleet.worker import ConnectedWorker, Order, RunAssignment
from gateway.jobs.own_inputs import OwnInputs
from gateway.jobs.submitted import SubmittedJobs
from gateway.jobs.uploads import InputUploads
from gateway.journal.data_store import DataStore
from gateway.journal.journal import Journal
from gateway.monitoring.metrics import Metrics
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.events import Assignment
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.domain import Configuration, Engine, EngineName, TensorSpec, WorkerClass, WorkerId
from synergai.jobs import JobSpec, JobStatus
from synergai.oip import inference_pb2 as oip
from synergai.profiles.dictionary import ConfigurationDictionary
from synergai.runtime.clock import Clock
from synergai.runtime.send_queue import SendQueue
from synergai.v1 import hub_pb2
from synergai.wire.request_codec import RequestHeader, parse_header
from synergai.wire.rpc import RawRequest
from tests.cores import new_entry
from tests.engines import new_engine
from tests.message_fields import ProgressCounts, RequestFields

ECHO = EngineName("echo")


ENGINE = new_engine(ECHO, (TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))


def make_worker(worker_id: str = "w1") -> ConnectedWorker:
    return ConnectedWorker(
        id=WorkerId(worker_id),
        worker_class=WorkerClass("test"),
        agent_version="",
        cores=1,
        memory_bytes=0,
        configurations=(Configuration(1),),
        orders=SendQueue(100),
        last_seen_at=0.0,
        engines={ECHO: ENGINE},
    )


def raw_request(message: oip.ModelInferRequest) -> RawRequest[RequestHeader]:
    data = message.SerializeToString()
    return RawRequest(data, parse_header(data))


async def load_nothing(engine: EngineName, on: Collection[str]) -> None:
    """Load an engine; no worker takes notice."""


class FakeClock(Clock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.time = 1000.0

    def now(self) -> float:
        return self.time


@dataclass
class GatewayHarness:
    """A gateway without its servers, and with data of jobs in a directory if one is given."""

    journal: Journal
    directory: Path = Path("no data")
    clock: Clock = field(default_factory=Clock)
    metrics: Metrics = field(default_factory=Metrics)
    catalogue: Catalogue = field(default_factory=Catalogue)

    def __post_init__(self) -> None:
        self.admission = Admission(4, 1000, self.clock)
        profile = new_entry(ECHO, "test", 100.0)
        self.dictionary = ConfigurationDictionary([profile])
        core = SchedulerCore(
            SchedulingSettings(policy="synergai"), self.dictionary, self.journal.epoch
        )
        self.dispatcher = Dispatcher(
            core,
            self.journal,
            self.clock,
            on_learned=lambda _: None,
            unloaded=self.catalogue.unloaded,
        )
        self.intake = ReportIntake(self.dispatcher, self.clock, self.metrics)
        variants = FleetVariants(self.dictionary, self.dispatcher.workers.values)
        self.versions = Versions(self.catalogue, check_floor=variants.check_floor)
        self.inference = Inference(
            self.dispatcher,
            self.versions,
            variants,
            self.admission,
            self.metrics,
            self.clock,
            1,
        )
        self.store = DataStore(self.directory)
        self.uploads = InputUploads(self.store, self.journal, self.admission, memory_bytes=1 << 29)
        self.own = OwnInputs(self.store, self.uploads, self.journal)
        self.routes = JobRoutes(
            self.dispatcher.workers, core.profiles, self.versions.routes, load_nothing
        )
        self.jobs = SubmittedJobs(
            self.dispatcher,
            self.versions,
            self.journal,
            self.admission,
            self.metrics,
            self.clock,
            own_inputs=self.own,
            routes=self.routes,
        )

    def add_worker(self, worker_id: str = "w1") -> ConnectedWorker:
        worker = make_worker(worker_id)
        self.catalogue.update(worker.id, worker.engines[ECHO])
        self.dispatcher.add_worker(worker)
        return worker

    def begin_request(
        self,
        budget_s: float | None = None,
        caller: Caller = UNRESTRICTED,
        **fields: Unpack[RequestFields],
    ) -> Request:
        """Begin a request with one value."""
        usual: RequestFields = {"model_name": ECHO, "raw_input_contents": [b"\0" * 4]}
        message = oip.ModelInferRequest(**(usual | fields))
        message.inputs.add(name="x", datatype="FP32", shape=[1])
        return self.begin(raw_request(message), budget_s, caller)

    def begin(
        self,
        raw: RawRequest[RequestHeader],
        budget_s: float | None = None,
        caller: Caller = UNRESTRICTED,
        tenant: str = "",
    ) -> Request:
        request_id = RequestId(self.inference.new_id())
        return self.inference.begin_request(
            InferenceCall(caller, raw, budget_s, tenant, request_id)
        )

    def orders(self, worker: ConnectedWorker) -> list[Order]:
        orders, worker.orders._items = worker.orders._items, []
        return orders

    def assignments(self, worker: ConnectedWorker) -> list[Assignment]:
        return [
            order.assignment for order in self.orders(worker) if isinstance(order, RunAssignment)
        ]

    def started(self, worker: ConnectedWorker) -> tuple[Request, Assignment]:
        """Begin a request that a worker runs at once."""
        request = self.begin_request()
        [assignment] = self.assignments(worker)
        return request, assignment

    async def submitted(self, worker: ConnectedWorker) -> tuple[JobStatus, Assignment]:
        """Submit a job of 10 queries that a worker runs at once."""
        status = await self.jobs.submit(UNRESTRICTED, JobSpec(engine=ECHO, queries=10))
        [assignment] = self.assignments(worker)
        return status, assignment

    def complete(
        self,
        worker: ConnectedWorker,
        assignment: Assignment,
        responses: Sequence[bytes] = (),
        *,
        outcome: hub_pb2.Outcome.ValueType = hub_pb2.OUTCOME_COMPLETED,
        fault: hub_pb2.Fault.ValueType = hub_pb2.FAULT_UNSPECIFIED,
        detail: str = "",
        **progress: Unpack[ProgressCounts],
    ) -> None:
        """Report the end of an assignment."""
        report = hub_pb2.Progress(assignment_id=assignment.id, **progress)
        ended = hub_pb2.Ended(progress=report, outcome=outcome, fault=fault, detail=detail)
        self.intake.apply_ended(worker, ended, responses)

    def stop(
        self, worker: ConnectedWorker, assignment: Assignment, **progress: Unpack[ProgressCounts]
    ) -> None:
        self.complete(worker, assignment, outcome=hub_pb2.OUTCOME_STOPPED, **progress)

    def fail(
        self,
        worker: ConnectedWorker,
        assignment: Assignment,
        fault: hub_pb2.Fault.ValueType,
        detail: str,
    ) -> None:
        failed = hub_pb2.OUTCOME_FAILED
        self.complete(worker, assignment, outcome=failed, fault=fault, detail=detail)

    def progress(
        self, worker: ConnectedWorker, assignment: Assignment, **progress: Unpack[ProgressCounts]
    ) -> None:
        report = hub_pb2.Progress(assignment_id=assignment.id, **progress)
        self.intake.apply_progress(worker, report)

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric; 0 if it has no such series."""
        self.metrics.snapshot()
        return self.metrics.registry.get_sample_value(f"synergai_{name}", labels) or 0.0

    async def flush_journal(self) -> None:
        """Wait until all journal operations and their callbacks are done."""
        await self.journal.engines()


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[GatewayHarness]:
    journal = Journal(tmp_path)
    harness = GatewayHarness(journal)
    yield harness
    harness.dispatcher.close()
    await journal.close()


@pytest.fixture
def engine() -> Engine:
    return ENGINE

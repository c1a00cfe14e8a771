"""A fake gateway that serves the public protocols on loopback."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    asynccontextmanager,
    redirect_stderr,
    redirect_stdout,
)
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from synergai import errors
from synergai.cli.main import main
from synergai.oip import inference_pb2 as oip
from synergai.oip import repository_pb2
from synergai.v1 import common_pb2, fleet_pb2, jobs_pb2
from synergai.wire import rpc
from synergai.wire.job_inputs import chain_digest
from synergai.wire.server_call import ServerCall
from tests.grpc_servers import new_server
from tests.inference_messages import build_response, read_inputs

WaitForExit: TypeAlias = Callable[[asyncio.subprocess.Process], Awaitable["CommandResult"]]

ENGINES = ("identity", "wide", "broken", "stuck")
INFEASIBLE_QOS = 0.125
"""A QoS that every job misses."""


class FakeGateway:
    """Serves ``identity`` (y is x), ``wide`` (y is x a thousand times), ``broken`` (fails) and
    ``stuck`` (never answers).

    Attributes:
        unavailable: number of upcoming calls and queries to fail as UNAVAILABLE.
        describes_late: the same of the calls for metadata.
        backwards: queries are answered in batches of this size, the last one first.
        requests: all inference requests received.
        infer_within: seconds that unary inference calls wait at most; None for no limit.
        unloaded: names of the unloaded engines.
        submissions: idempotency keys of all submissions.
        stalled: number of calls and queries that currently never return.
        uploads: inputs by upload.
        version: version of the engines that metadata name.
        datatype: datatype of the input of ``identity``.
        metadata_within: seconds that the calls for metadata wait at most; None for no limit.
        refused_from: position of the first input that the next uploads fail at, if any.
    """

    def __init__(self, grpc_server: str = "native") -> None:
        self.unavailable = self.describes_late = 0
        self.backwards = 1
        self._held: list[asyncio.Event] = []
        self.requests: list[oip.ModelInferRequest] = []
        self.version = "1"
        self.datatype = "FP32"
        self.metadata_within: list[float | None] = []
        self.infer_within: list[float | None] = []
        self.unloaded: set[str] = set()
        self.submissions: list[str] = []
        self.jobs: dict[str, jobs_pb2.Job] = {}
        self.uploads: dict[str, list[jobs_pb2.Input]] = {}
        self.refused_from: int | None = None
        self.stalled = 0
        self.server = new_server(grpc_server)
        self._handlers = [
            grpc.method_handlers_generic_handler(
                "inference.GRPCInferenceService",
                {
                    "ServerReady": rpc.unary(self._server_ready, oip.ServerReadyRequest),
                    "ModelReady": rpc.unary(self._model_ready, oip.ModelReadyRequest),
                    "ModelMetadata": rpc.unary(self._metadata, oip.ModelMetadataRequest),
                    "ModelInfer": rpc.unary(self._infer_unary, oip.ModelInferRequest),
                    "RepositoryModelLoad": rpc.unary(
                        self._load, repository_pb2.RepositoryModelLoadRequest
                    ),
                    "RepositoryModelUnload": rpc.unary(
                        self._unload, repository_pb2.RepositoryModelUnloadRequest
                    ),
                },
            ),
            grpc.method_handlers_generic_handler(
                "synergai.v1.Jobs",
                {
                    "Submit": rpc.unary(self._submit, jobs_pb2.SubmitRequest),
                    "Watch": rpc.server_stream(self._watch, jobs_pb2.WatchRequest),
                    "Get": rpc.unary(self._get, jobs_pb2.GetRequest),
                    "List": rpc.unary(self._list, jobs_pb2.ListRequest),
                    "Cancel": rpc.unary(self._cancel, jobs_pb2.CancelRequest),
                    "Upload": rpc.stream(self._upload, jobs_pb2.UploadRequest),
                    "Results": rpc.server_stream(self._results, jobs_pb2.ResultsRequest),
                },
            ),
            grpc.method_handlers_generic_handler(
                "synergai.v1.Fleet",
                {"ListWorkers": rpc.unary(self._workers, fleet_pb2.ListWorkersRequest)},
            ),
        ]
        self.address = self.server.bind("127.0.0.1:0")

    def start(self) -> None:
        self.server.start(self._handlers)

    def _maybe_unavailable(self) -> None:
        if self.unavailable:
            self.unavailable -= 1
            raise errors.Unavailable("the gateway is stopping")

    async def _server_ready(self, _: oip.ServerReadyRequest, __: object) -> oip.ServerReadyResponse:
        self._maybe_unavailable()
        return oip.ServerReadyResponse(ready=True)

    async def _model_ready(
        self, request: oip.ModelReadyRequest, _: object
    ) -> oip.ModelReadyResponse:
        if request.name not in ENGINES:
            raise errors.EngineNotFound(request.name)
        return oip.ModelReadyResponse(ready=request.name == "identity")

    async def _metadata(
        self, request: oip.ModelMetadataRequest, context: ServerCall
    ) -> oip.ModelMetadataResponse:
        self.metadata_within.append(context.time_remaining())
        if self.describes_late:
            self.describes_late -= 1
            raise errors.Unavailable("the gateway is stopping")
        if request.name not in ENGINES:
            raise errors.EngineNotFound(request.name)
        tensor = oip.ModelMetadataResponse.TensorMetadata
        return oip.ModelMetadataResponse(
            name=request.name,
            versions=[self.version],
            platform="none",
            inputs=[tensor(name="x", datatype=self.datatype, shape=[-1])],
            outputs=[tensor(name="y", datatype="FP32", shape=[-1])],
        )

    async def _load(
        self, request: repository_pb2.RepositoryModelLoadRequest, _: object
    ) -> repository_pb2.RepositoryModelLoadResponse:
        self._maybe_unavailable()
        if request.model_name == "broken":
            raise errors.EngineUnusable("the model file is truncated")
        self.unloaded.discard(request.model_name)
        return repository_pb2.RepositoryModelLoadResponse()

    async def _unload(
        self, request: repository_pb2.RepositoryModelUnloadRequest, _: object
    ) -> repository_pb2.RepositoryModelUnloadResponse:
        if request.model_name not in ENGINES:
            raise errors.EngineNotFound(request.model_name)
        self.unloaded.add(request.model_name)
        return repository_pb2.RepositoryModelUnloadResponse()

    async def _infer_unary(
        self, request: oip.ModelInferRequest, context: ServerCall
    ) -> oip.ModelInferResponse:
        self.infer_within.append(context.time_remaining())
        response = await self._infer(request)
        if self.backwards > 1:
            await self._wait_for_later_ones()
        return response

    async def _wait_for_later_ones(self) -> None:
        self._held.append(held := asyncio.Event())
        if len(self._held) == self.backwards:
            for each in reversed(self._held):
                each.set()
            self._held.clear()
        await held.wait()

    async def _infer(self, request: oip.ModelInferRequest) -> oip.ModelInferResponse:
        self._maybe_unavailable()
        self.requests.append(request)
        match request.model_name:
            case "identity":
                outputs = {"y": self._x(request)}
                if (outputs["y"] < 0).any():
                    raise errors.Overloaded("negative numbers are not supported")
                if np.isnan(outputs["y"]).any():
                    raise errors.EngineUnusable("NaN is not supported")
                if np.isinf(outputs["y"]).any():
                    raise errors.Unavailable("the workers that ran engine 'identity' failed")
                return build_response("identity", outputs, version="1", request_id=request.id)
            case "wide":
                outputs = {"y": np.tile(read_inputs(request)["x"], 1000)}
                return build_response("wide", outputs, request_id=request.id)
            case "broken":
                raise errors.EngineUnusable("the model file is truncated")
            case "stuck":
                await self._stall()
        raise errors.EngineNotFound(request.model_name)

    def _x(self, request: oip.ModelInferRequest) -> NDArray[Any]:
        if (datatype := request.inputs[0].datatype) != self.datatype:
            raise errors.InvalidInput(f"x must be {self.datatype}, not {datatype}")
        return read_inputs(request)["x"]

    async def _stall(self) -> None:
        self.stalled += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.stalled -= 1

    async def _submit(self, request: jobs_pb2.SubmitRequest, _: object) -> jobs_pb2.Job:
        self.submissions.append(request.idempotency_key)
        self._maybe_unavailable()
        if request.spec.engine not in ENGINES:
            raise errors.EngineNotFound(request.spec.engine)
        if request.spec.upload_id and request.spec.upload_id not in self.uploads:
            raise errors.NotFound(f"there is no upload {request.spec.upload_id!r}")
        job = jobs_pb2.Job(
            id=f"job-{request.idempotency_key}", spec=request.spec, state=jobs_pb2.JOB_STATE_QUEUED
        )
        if request.spec.qos_s == INFEASIBLE_QOS:
            job.state, job.reason = jobs_pb2.JOB_STATE_REJECTED, "no worker would be done in time"
        known = self.jobs.setdefault(job.id, job)
        if known.spec != request.spec:
            raise errors.IdempotencyConflict(request.idempotency_key, ["engine"])
        return known

    def _job(self, job_id: str) -> jobs_pb2.Job:
        if job_id not in self.jobs:
            raise errors.JobNotFound(job_id)
        return self.jobs[job_id]

    async def _get(self, request: jobs_pb2.GetRequest, _: object) -> jobs_pb2.Job:
        return self._job(request.job_id)

    async def _list(self, request: jobs_pb2.ListRequest, _: object) -> jobs_pb2.ListResponse:
        jobs = [job for job in self.jobs.values() if job.state in (request.states or (job.state,))]
        return jobs_pb2.ListResponse(jobs=jobs[::-1][: request.limit])

    async def _cancel(self, request: jobs_pb2.CancelRequest, _: object) -> jobs_pb2.Job:
        job = self._job(request.job_id)
        job.state = jobs_pb2.JOB_STATE_CANCELLED
        return job

    async def _watch(
        self, request: jobs_pb2.WatchRequest, _: object
    ) -> AsyncGenerator[jobs_pb2.Job, None]:
        job = self._job(request.job_id)
        yield job
        self._maybe_unavailable()
        if job.spec.engine == "stuck":
            await self._stall()
        job.state = jobs_pb2.JOB_STATE_RUNNING
        job.estimated_s = 0.5
        job.queries_done = job.spec.queries // 2
        yield job
        if job.spec.engine == "broken":
            job.state, job.reason = jobs_pb2.JOB_STATE_FAILED, "the model file is truncated"
        else:
            job.state, job.queries_done = jobs_pb2.JOB_STATE_SUCCEEDED, job.spec.queries
            job.executions.add(worker_id="nano", count=job.spec.queries, seconds=0.5)
            job.labelled, job.correct = job.spec.queries, job.spec.queries - 1
        job.actual_s = 0.5
        job.finished_at.GetCurrentTime()
        yield job

    async def _upload(
        self, requests: AsyncIterator[jobs_pb2.UploadRequest], _: object
    ) -> AsyncGenerator[jobs_pb2.UploadReceipt, None]:
        inputs: list[jobs_pb2.Input] | None = None
        async for request in requests:
            if inputs is None:
                inputs = self.uploads.setdefault(request.upload_id, [])
            assert request.first <= len(inputs), "a gap"
            inputs += request.inputs[len(inputs) - request.first :]
            if self.refused_from is not None and len(inputs) >= self.refused_from:
                raise errors.Overloaded("the disk is full")
            self._maybe_unavailable()
            digest = 0
            for each in inputs:
                digest = chain_digest(digest, [each.SerializeToString()])
            yield jobs_pb2.UploadReceipt(stored=len(inputs), digest=digest)

    async def _results(
        self, request: jobs_pb2.ResultsRequest, _: object
    ) -> AsyncGenerator[jobs_pb2.ResultBatch, None]:
        """Answer like ``identity``, three results at a time."""
        inputs = self.uploads[self._job(request.job_id).spec.upload_id]
        for first in range(request.cursor, len(inputs), 3):
            results = []
            for index, each in enumerate(inputs[first : first + 3], first):
                query = oip.ModelInferRequest.FromString(each.request)
                if query.inputs:
                    outputs = {"y": read_inputs(query)["x"]}
                    response = build_response("identity", outputs).SerializeToString()
                    results.append(
                        jobs_pb2.JobResult(index=index, name=each.name, response=response)
                    )
                else:
                    reason = query.parameters["synergai_unusable"].string_param
                    results.append(jobs_pb2.JobResult(index=index, name=each.name, error=reason))
            yield jobs_pb2.ResultBatch(results=results, cursor=first + len(results))
            self._maybe_unavailable()

    async def _workers(
        self, _: fleet_pb2.ListWorkersRequest, __: object
    ) -> fleet_pb2.ListWorkersResponse:
        tensor = common_pb2.TensorSpec(name="x", datatype="FP32", shape=[-1])
        engines = [
            common_pb2.Engine(name="identity", version="1", inputs=[tensor], outputs=[tensor]),
            common_pb2.Engine(name="broken", fault="the model file is truncated"),
        ]
        configuration = common_pb2.Configuration(threads=2)
        nano = fleet_pb2.Worker(
            id="nano",
            worker_class="jetson-nano",
            state=fleet_pb2.WORKER_STATE_IDLE,
            cores=4,
            memory_bytes=4 << 30,
            configurations=[configuration],
            engines=engines,
            sessions=[common_pb2.Session(engine="identity", configuration=configuration)],
            queries_done=7,
            last_heard_s=0.25,
            unprofiled=["identity"],
        )
        return fleet_pb2.ListWorkersResponse(workers=[nano])


@pytest.fixture
async def gateway(grpc_server: str) -> AsyncGenerator[FakeGateway, None]:
    fake = FakeGateway(grpc_server)
    fake.start()
    yield fake
    await fake.server.stop(0.0)


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str


class StartCommand(Protocol):
    def __call__(
        self, *arguments: str
    ) -> AbstractAsyncContextManager[asyncio.subprocess.Process]: ...


class RunCommand(Protocol):
    async def __call__(self, *arguments: str) -> CommandResult: ...


@asynccontextmanager
async def start_command(*arguments: str) -> AsyncGenerator[asyncio.subprocess.Process, None]:
    """Run the ``synergai`` command as a process that is killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "synergai",
        *arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def wait_for_exit(process: asyncio.subprocess.Process) -> CommandResult:
    out, err = await process.communicate()
    assert process.returncode is not None
    assert "Traceback" not in err.decode()
    return CommandResult(process.returncode, out.decode(), err.decode())


@pytest.fixture
def start() -> StartCommand:
    return start_command


@pytest.fixture
def wait() -> WaitForExit:
    return wait_for_exit


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> RunCommand:
    """Run the ``synergai`` command in a thread of this process, which is faster than a new one."""
    monkeypatch.setenv("COLUMNS", "200")

    def run_now(arguments: Sequence[str]) -> CommandResult:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(arguments)
        assert isinstance(ended.value.code, int)
        return CommandResult(ended.value.code, out.getvalue(), err.getvalue())

    async def run_command(*arguments: str) -> CommandResult:
        return await asyncio.to_thread(run_now, arguments)

    return run_command


@pytest.fixture
def ask(gateway: FakeGateway, run: RunCommand) -> RunCommand:
    """Run a command that calls the gateway."""

    async def run_at_gateway(*arguments: str) -> CommandResult:
        return await run(*arguments, "--target", gateway.address)

    return run_at_gateway

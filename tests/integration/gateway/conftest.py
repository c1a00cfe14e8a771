"""A real gateway on ephemeral ports, and fake agents that speak the hub protocol."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, Self, TypeAlias, Unpack

import grpc
import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.server import Gateway
from synergai.models.manifest import Package
from synergai.oip import inference_pb2 as oip
from synergai.oip import inference_pb2_grpc as oip_grpc
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.service import DictionaryChanges
from synergai.v1 import (
    common_pb2,
    fleet_pb2,
    fleet_pb2_grpc,
    hub_pb2,
    hub_pb2_grpc,
    jobs_pb2,
    jobs_pb2_grpc,
    store_pb2,
)
from synergai.wire import rpc
from synergai.wire.credentials import ClientTls, open_channel
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES, HUB_VERSION
from synergai.wire.request_codec import Buffer
from synergai.wire.work_socket import WorkSocket
from synergai.wire.writes import keep_status
from tests.calls import raw_stream
from tests.cores import new_entry
from tests.message_fields import PlacedFields, ProgressFields, RequestFields

ControlCall: TypeAlias = grpc.aio.StreamStreamCall[hub_pb2.AgentControl, hub_pb2.GatewayControl]
InferStream: TypeAlias = grpc.aio.StreamStreamCall[
    oip.ModelInferRequest, oip.ModelStreamInferResponse
]
NewAgent: TypeAlias = Callable[[str], "FakeAgent"]


class Connect(Protocol):
    """Connects a caller and an agent to a gateway of the test."""

    def __call__(
        self, gateway: Gateway, tls: ClientTls = ...
    ) -> Awaitable[tuple[Caller, FakeAgent]]: ...


class PendingCall(Awaitable[object], Protocol):
    """A call or task that a test waits for."""

    def cancel(self) -> bool: ...


ECHO = "echo"
PLAINTEXT = ClientTls()


def described(name: str = ECHO, fault: str = "") -> common_pb2.Engine:
    return common_pb2.Engine(
        name=name,
        version="1",
        backend="test",
        samples=10,
        fault=fault,
        inputs=[common_pb2.TensorSpec(name="x", datatype="FP32", shape=[-1])],
        outputs=[common_pb2.TensorSpec(name="y", datatype="FP32", shape=[-1])],
    )


def echoed(data: bytes) -> bytes:
    request = oip.ModelInferRequest.FromString(data)
    return oip.ModelInferResponse(
        model_name=request.model_name,
        id=request.id,
        outputs=[
            oip.ModelInferResponse.InferOutputTensor(
                name="y", datatype="FP32", shape=request.inputs[0].shape
            )
        ],
        raw_output_contents=[request.raw_input_contents[0]],
    ).SerializeToString()


class FakeAgent:
    """An agent in the test process, with an engine that returns its input.

    Attributes:
        answer: called for each assignment; `complete` by default.
        assignments: all received assignments.
        stops: ids of the assignments that the gateway stopped.
        loads: sessions that the gateway ordered to load; done unless `cannot_load` is set.
        unloads: sessions that the gateway ordered to drop.
        placements: versions of the store that the gateway wants here; None before it says so.
        asked: engines that the gateway has asked for.
        cannot_load: fault to report for loads.
        gone: why the gateway closed the control stream; empty before.
        ended: set once the control stream has ended.
        work_closed: set once the gateway has closed or replaced the current work socket.
    """

    def __init__(self, hub_address: str, worker_id: str = "w1", tls: ClientTls = PLAINTEXT) -> None:
        self.register = hub_pb2.Register(
            protocol_version=HUB_VERSION,
            worker_id=worker_id,
            worker_class="test",
            agent_version="0",
            cores=1,
            configurations=[common_pb2.Configuration(threads=1)],
            engines=[described()],
        )
        self.answer: Callable[[hub_pb2.Assignment], Awaitable[None]] = self.complete
        self.heartbeats = True
        self.heartbeat_s = 1.0
        self.assignments: list[hub_pb2.Assignment] = []
        self.stops: set[int] = set()
        self.loads: list[common_pb2.Session] = []
        self.unloads: list[common_pb2.Session] = []
        self.placements: list[hub_pb2.Placement] | None = None
        self.asked: list[str] = []
        self.cannot_load = ""
        self.gone = ""
        self.code: grpc.StatusCode | None = None
        self.ended = asyncio.Event()
        self.work_closed = asyncio.Event()
        self._changed = asyncio.Condition()
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.tls = tls
        self.channel = open_channel(
            hub_address,
            [*rpc.channel_options(), ("grpc.use_local_subchannel_pool", 1)],
            tls.channel,
        )
        self._hub = hub_pb2_grpc.HubStub(self.channel)
        self._host = hub_address.rpartition(":")[0]
        # A call that is kept keeps its connection open, and a gateway that stops waits for it.
        self._control: ControlCall | None = None
        self.work: WorkSocket
        self._streams: list[ControlCall | WorkSocket] = []
        self.connection_id = ""
        self.work_port = 0

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        control: ControlCall = keep_status(self._hub.Control())
        self._control = control
        self._streams.append(control)
        await control.write(hub_pb2.AgentControl(register=self.register))
        answer = await control.read()
        assert isinstance(answer, hub_pb2.GatewayControl)
        registered = answer.registered
        self.heartbeat_s = registered.heartbeat_s
        self.connection_id = registered.session
        self.work_port = registered.work_port
        self._spawn(self._read_control(control))
        self._spawn(self._beat())
        await self.reopen_work()

    async def refusal(self, first: bytes) -> grpc.aio.AioRpcError:
        """Return the error that the gateway ends a control stream with at its first message."""
        call = raw_stream(self.channel, "/synergai.v1.Hub/Control")(iter([first]), timeout=30)
        try:
            await anext(aiter(call))
        except grpc.aio.AioRpcError as error:
            return error.with_traceback(None)  # as in `Caller.failure`
        finally:
            call.cancel()
            await self.channel.close()
        raise AssertionError("the gateway accepted the message")

    async def reopen_work(self) -> None:
        """Open a work stream; the gateway closes an earlier one."""
        loop = asyncio.get_running_loop()
        _, self.work = await loop.create_connection(
            lambda: WorkSocket(self._read_orders, DEFAULT_MAX_MESSAGE_BYTES),
            self._host,
            self.work_port,
            ssl=self.tls.socket,
            server_hostname=self._host if self.tls.socket else None,
        )
        self._streams.append(self.work)
        self._spawn(self._await_closed(self.work))
        self.work.send((self.connection_id.encode(),))

    async def disconnect(self) -> None:
        """Disconnect without notice, like a power cut."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for stream in self._streams:
            if isinstance(stream, WorkSocket):
                stream.close()
            else:
                stream.cancel()
        self._streams.clear()
        self._control = None
        await self.channel.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on this agent holds."""
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(condition), 30)

    echoed = staticmethod(echoed)

    async def complete(self, assignment: hub_pb2.Assignment) -> None:
        await self.end(
            assignment,
            done=assignment.count,
            responses=[echoed(request) for request in assignment.requests],
            labelled=0 if assignment.requests else assignment.count,
            correct=0 if assignment.requests else assignment.count,
        )

    async def hold(self, assignment: hub_pb2.Assignment) -> None:
        """Wait for the order to stop an assignment, and report it as stopped."""
        await self.until(lambda: assignment.id in self.stops)
        await self.end(assignment, outcome=hub_pb2.OUTCOME_STOPPED)

    async def end(
        self,
        assignment: hub_pb2.Assignment,
        *,
        outcome: hub_pb2.Outcome.ValueType = hub_pb2.OUTCOME_COMPLETED,
        fault: hub_pb2.Fault.ValueType = hub_pb2.FAULT_UNSPECIFIED,
        detail: str = "",
        **progress: Unpack[ProgressFields],
    ) -> None:
        report = hub_pb2.Progress(assignment_id=assignment.id, **progress)
        ended = hub_pb2.Ended(progress=report, outcome=outcome, fault=fault, detail=detail)
        await self.report(hub_pb2.WorkReports(ended=[ended]))

    async def progress(
        self, assignment: hub_pb2.Assignment, **progress: Unpack[ProgressFields]
    ) -> None:
        report = hub_pb2.Progress(assignment_id=assignment.id, **progress)
        await self.report(hub_pb2.WorkReports(progress=[report]))

    async def fetch(self, sha256: str, offset: int = 0) -> bytes:
        call = self._hub.Fetch(
            hub_pb2.FetchRequest(session=self.connection_id, sha256=sha256, offset=offset)
        )
        try:
            return b"".join([chunk.data async for chunk in call])
        finally:
            call.cancel()

    async def send_engine(
        self,
        engine: str,
        package: Package | None,
        *,
        fault: str = "",
        end: int | None = None,
        ends: bool = True,
    ) -> list[store_pb2.MissingContent]:
        """Send an engine into the store; return what it lacked.

        Args:
            end: byte of each content after which nothing is sent.
            ends: whether the call ends then.
        """
        head = hub_pb2.EngineChunk(session=self.connection_id, engine=engine, fault=fault)
        head.manifest = b"" if package is None else package.manifest.encode()
        call = self._hub.Send()
        try:
            await call.write(head)
            opened = await call.read()
            assert isinstance(opened, store_pb2.OpenResponse)
            for each in opened.missing:
                assert package is not None
                data = package.paths[each.sha256].read_bytes()[each.received : end]
                for start in range(0, len(data), 100_000):
                    await call.write(hub_pb2.EngineChunk(data=data[start : start + 100_000]))
            if ends:
                await call.done_writing()
            await call.read()
            return list(opened.missing)
        finally:
            call.cancel()

    async def report_placed(self, **fields: Unpack[PlacedFields]) -> None:
        placed = common_pb2.Placed(**fields)
        await self.send(hub_pb2.AgentControl(placed=placed))

    async def send(self, message: hub_pb2.AgentControl) -> None:
        async with self._turn:
            if self._control is None:
                raise asyncio.InvalidStateError("the control stream has ended")
            await self._control.write(message)

    async def report(self, reports: hub_pb2.WorkReports) -> None:
        self.work.send((reports.SerializeToString(),))
        await self.work.drain()

    def _spawn(self, coroutine: Coroutine[object, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _read_control(self, control: ControlCall) -> None:
        try:
            while isinstance(order := await control.read(), hub_pb2.GatewayControl):
                match order.WhichOneof("message"):
                    case "load":
                        self.loads.append(order.load.session)
                        await self._change(order.load.session, resident=not self.cannot_load)
                    case "unload":
                        self.unloads.append(order.unload.session)
                        await self._change(order.unload.session, resident=False)
                    case "placements":
                        self.placements = list(order.placements.placements)
                    case "send":
                        self.asked.append(order.send.engine)
                await self._notify()
        except grpc.aio.AioRpcError as error:
            self.gone, self.code = error.details() or "no text", error.code()
        self._streams.remove(control)
        if self._control is control:
            self._control = None
        self.ended.set()
        await self._notify()

    async def _change(self, session: common_pb2.Session, *, resident: bool) -> None:
        changed = hub_pb2.SessionChanged(session=session, resident=resident, fault=self.cannot_load)
        await self.send(hub_pb2.AgentControl(session_changed=changed))

    def _read_orders(self, data: Buffer) -> None:
        orders = hub_pb2.WorkOrders.FromString(bytes(data))
        self.stops.update((*orders.stops, *orders.aborts))
        for assignment in orders.assignments:
            self.assignments.append(assignment)
            self._spawn(self._answer(assignment))
        self._spawn(self._notify())

    async def _await_closed(self, work: WorkSocket) -> None:
        await asyncio.wait([work.closed])
        if work is self.work:
            self.work_closed.set()

    async def _answer(self, assignment: hub_pb2.Assignment) -> None:
        # Some tests have the gateway close the connection while this agent writes to it.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await self.answer(assignment)

    async def _beat(self) -> None:
        sequence = 0
        while self.heartbeats:
            sequence += 1
            beat = hub_pb2.Heartbeat(sequence=sequence)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await self.send(hub_pb2.AgentControl(heartbeat=beat))
            await asyncio.sleep(self.heartbeat_s)


class Caller:
    """A client of the gateway's public services."""

    def __init__(self, address: str, tls: ClientTls = PLAINTEXT) -> None:
        self.channel = open_channel(
            address,
            [*rpc.channel_options(), ("grpc.use_local_subchannel_pool", 1)],
            tls.channel,
        )
        self.oip = oip_grpc.GRPCInferenceServiceStub(self.channel)
        self.jobs = jobs_pb2_grpc.JobsStub(self.channel)
        self.fleet = fleet_pb2_grpc.FleetStub(self.channel)

    async def refused(self) -> None:
        """Wait until the gateway refuses new requests."""
        with contextlib.suppress(grpc.aio.AioRpcError):  # it has closed the connection
            while (await self.oip.ServerReady(oip.ServerReadyRequest())).ready:  # noqa: ASYNC110 - polls the gateway's state
                await asyncio.sleep(0.005)

    async def submit(self, queries: int = 10, key: str = "", **fields: Any) -> jobs_pb2.Job:
        """Submit a job with further fields of its ``JobSpec``."""
        spec = jobs_pb2.JobSpec(engine=ECHO, queries=queries, **fields)
        request = jobs_pb2.SubmitRequest(spec=spec, idempotency_key=key)
        return await self.jobs.Submit(request, timeout=30)

    async def watched(self, job_id: str) -> list[jobs_pb2.Job]:
        """Wait for the end of a job; return what was seen of it."""
        call = self.jobs.Watch(jobs_pb2.WatchRequest(job_id=job_id), timeout=60)
        try:
            return [job async for job in call]
        finally:
            call.cancel()

    async def recorded(self, job_id: str, queries: int) -> None:
        """Wait until a number of a job's queries is recorded."""
        request = jobs_pb2.GetRequest(job_id=job_id)
        while (await self.jobs.Get(request)).queries_done < queries:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.005)

    async def workers(self, count: int) -> list[fleet_pb2.Worker]:
        """Wait until there are `count` workers, and return them."""
        while True:
            answer = await self.fleet.ListWorkers(fleet_pb2.ListWorkersRequest())
            if len(answer.workers) == count:
                return list(answer.workers)
            await asyncio.sleep(0.005)

    async def until(self, condition: Callable[[fleet_pb2.Worker], bool]) -> None:
        """Wait until a condition on the only worker holds."""
        while not condition((await self.workers(1))[0]):  # noqa: ASYNC110 - polls the gateway's state
            await asyncio.sleep(0.005)

    async def failure(self, call: PendingCall) -> grpc.aio.AioRpcError:
        """Return the error of a call that must fail."""
        try:
            await asyncio.wait_for(_finish(call), 30)
        except grpc.aio.AioRpcError as error:
            return error.with_traceback(None)  # which keeps the call, and that its connection
        raise AssertionError("the call did not fail")


async def _finish(call: PendingCall) -> None:
    try:
        await call
    finally:
        call.cancel()


def config_in(directory: Path, **options: object) -> GatewaySettings:
    addresses = dict.fromkeys(("listen", "hub", "http"), "127.0.0.1:0")
    # Tests say themselves what agents load.
    defaults = {"heartbeat_s": 0.5, "drain_s": 1.0, "preload": False}
    return GatewaySettings.load({**addresses, "state": directory / "state", **defaults, **options})


@pytest.fixture
def config(tmp_path: Path) -> GatewaySettings:
    return config_in(tmp_path)


@pytest.fixture
async def gateway(config: GatewaySettings) -> AsyncIterator[Gateway]:
    async with Gateway(config) as running:
        yield running


PROFILE: Final = new_entry(ECHO, "test", 1000.0)


async def profile(gateway: Gateway, entry: ProfileEntry = PROFILE) -> None:
    """Add a profile of the engine, so that the gateway does not measure it first."""
    profiles = gateway.app.fleet.profiles
    await profiles._in_thread(partial(profiles._store.put_all, [entry]))
    gateway.app.fleet.tell_changes(DictionaryChanges([entry], []))


@pytest.fixture
async def caller(gateway: Gateway) -> AsyncIterator[Caller]:
    caller = Caller(gateway.address)
    async with caller.channel:
        await profile(gateway)
        yield caller


@pytest.fixture
async def agent(gateway: Gateway, caller: Caller) -> AsyncIterator[FakeAgent]:
    async with FakeAgent(gateway.hub_address) as agent:
        await caller.workers(1)
        yield agent


@pytest.fixture
def new_agent(gateway: Gateway) -> NewAgent:
    """Return a factory of further agents, to be entered as contexts."""
    return lambda worker_id: FakeAgent(gateway.hub_address, worker_id)


def infer_request(values: int = 1, **fields: Unpack[RequestFields]) -> oip.ModelInferRequest:
    usual: RequestFields = {
        "model_name": ECHO,
        "raw_input_contents": [b"\0\0\x80\x3f" * values],
    }
    request = oip.ModelInferRequest(**(usual | fields))
    request.inputs.add(name="x", datatype="FP32", shape=[values])
    return request


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Return a function that connects a caller and an agent to a gateway of the test."""
    async with contextlib.AsyncExitStack() as stack:

        async def connected(
            gateway: Gateway, tls: ClientTls = PLAINTEXT
        ) -> tuple[Caller, FakeAgent]:
            caller = Caller(gateway.address, tls)
            await stack.enter_async_context(caller.channel)
            await profile(gateway)
            agent = await stack.enter_async_context(FakeAgent(gateway.hub_address, tls=tls))
            await caller.workers(1)
            return caller, agent

        yield connected

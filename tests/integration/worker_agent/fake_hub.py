"""A gateway's hub that records what agents send, and sends what a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TypeAlias, TypedDict, Unpack

import grpc

from synergai.v1 import common_pb2, hub_pb2
from synergai.wire import rpc
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES
from synergai.wire.native.server import NativeServer
from synergai.wire.request_codec import Buffer
from synergai.wire.work_socket import WorkSocket

ONE = common_pb2.Configuration(threads=1)
Report: TypeAlias = hub_pb2.Started | hub_pb2.Progress | hub_pb2.Ended


class AssignmentFields(TypedDict, total=False):
    """Fields of ``hub_pb2.Assignment``, without its id and engine."""

    configuration: common_pb2.Configuration
    job_id: str
    first: int
    count: int
    requests: Sequence[bytes]


class FakeHub:
    """Accepts one agent at a time and records its messages.

    Heartbeats are rare unless a test is about them: on a busy machine an agent whose heartbeats
    are not answered at once would otherwise leave, and forget what it was just assigned. Its store
    sends a byte of any content, and no more.
    """

    def __init__(
        self, heartbeat_s: float = 1.0, *, acknowledges: bool = True, epoch: int = 0
    ) -> None:
        self.heartbeat_s = heartbeat_s
        self.acknowledges = acknowledges
        self._epoch = epoch
        self.address = "127.0.0.1:0"
        self.registrations: asyncio.Queue[hub_pb2.Register] = asyncio.Queue()
        self.control: asyncio.Queue[hub_pb2.AgentControl] = asyncio.Queue()
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self._ended: dict[int, hub_pb2.Ended] = {}
        self.connection_ids: list[str] = []
        self.empty_reports = asyncio.Semaphore(0)
        self._orders: asyncio.Queue[hub_pb2.WorkOrders] = asyncio.Queue()
        self._control_orders: asyncio.Queue[hub_pb2.GatewayControl] = asyncio.Queue()
        self._server: NativeServer | None = None
        self._work_server: asyncio.Server | None = None
        self._senders: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._orders, self._control_orders = asyncio.Queue(), asyncio.Queue()
        self._server = NativeServer(100, DEFAULT_MAX_MESSAGE_BYTES)
        methods = {
            "Control": rpc.stream(self._serve_control, hub_pb2.AgentControl),
            "Fetch": rpc.server_stream(self._fetch, hub_pb2.FetchRequest),
        }
        handler = grpc.method_handlers_generic_handler("synergai.v1.Hub", methods)
        self.address = self._server.bind(self.address)
        loop = asyncio.get_running_loop()
        self._work_server = await loop.create_server(self._accept_work, "127.0.0.1", 0)
        self._server.start((handler,))

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncGenerator[str]:
        """Start, yield the address, and stop."""
        await self.start()
        try:
            yield self.address
        finally:
            await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0.0)
        if self._work_server is not None:
            self._work_server.close()
        for sender in list(self._senders):
            sender.cancel()
        await asyncio.gather(*self._senders, return_exceptions=True)

    def assign(self, assignment_id: int, engine: str, **fields: Unpack[AssignmentFields]) -> None:
        usual: AssignmentFields = {
            "configuration": common_pb2.Configuration(threads=1),
            "count": 1,
            "job_id": "job",
        }
        assignment = hub_pb2.Assignment(id=assignment_id, engine=engine, **(usual | fields))
        self._orders.put_nowait(hub_pb2.WorkOrders(assignments=[assignment]))

    def order(self, message: hub_pb2.GatewayControl) -> None:
        self._control_orders.put_nowait(message)

    async def ended(self, assignment_id: int) -> hub_pb2.Ended:
        while assignment_id not in self._ended:
            report = await self.reports.get()
            if isinstance(report, hub_pb2.Ended):
                self._ended[report.progress.assignment_id] = report
        return self._ended[assignment_id]

    async def progress(self) -> hub_pb2.Progress:
        while not isinstance(report := await self.reports.get(), hub_pb2.Progress):
            pass
        return report

    async def heard(self, kind: str) -> hub_pb2.AgentControl:
        while True:
            message = await self.control.get()
            if message.WhichOneof("message") == kind:
                return message

    async def _serve_control(
        self, requests: AsyncIterator[hub_pb2.AgentControl], _context: object
    ) -> AsyncGenerator[hub_pb2.GatewayControl, None]:
        register = (await anext(requests)).register
        assert self._work_server is not None
        work_port = self._work_server.sockets[0].getsockname()[1]
        registered = hub_pb2.Registered(
            session="secret", heartbeat_s=self.heartbeat_s, work_port=work_port
        )
        if self._epoch:
            registered.cluster, registered.epoch = "cluster", self._epoch
        yield hub_pb2.GatewayControl(registered=registered)
        orders = self._control_orders = asyncio.Queue()
        reader = asyncio.create_task(self._read_control(register, requests))
        reader.add_done_callback(lambda _: orders.put_nowait(END))
        try:
            while (order := await orders.get()) is not END:
                yield order
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _fetch(
        self, _request: hub_pb2.FetchRequest, _context: object
    ) -> AsyncGenerator[hub_pb2.FetchChunk]:
        yield hub_pb2.FetchChunk(data=b"x")
        await asyncio.Event().wait()

    async def _read_control(
        self, register: hub_pb2.Register, requests: AsyncIterator[hub_pb2.AgentControl]
    ) -> None:
        """Read control messages; the registration is complete once its engines are inspected."""
        engines = {engine.name: engine for engine in register.engines}
        pending = {engine.name for engine in register.engines if engine.pending}
        if not pending:
            self.registrations.put_nowait(register)
        async for message in requests:
            if pending and message.HasField("engine_changed"):
                engine = message.engine_changed.engine
                engines[engine.name].CopyFrom(engine)
                pending.discard(engine.name)
                if not pending:
                    self.registrations.put_nowait(register)
                continue
            self.control.put_nowait(message)
            if message.WhichOneof("message") == "heartbeat" and self.acknowledges:
                ack = hub_pb2.HeartbeatAck(sequence=message.heartbeat.sequence)
                self.order(hub_pb2.GatewayControl(heartbeat_ack=ack))

    def _accept_work(self) -> WorkSocket:
        def on_id(data: Buffer) -> None:
            self.connection_ids.append(bytes(data).decode())
            socket.on_message = self._read_reports
            sender = asyncio.create_task(self._send_orders(socket, self._orders))
            self._senders.add(sender)
            sender.add_done_callback(self._senders.discard)
            socket.closed.add_done_callback(lambda _: sender.cancel())

        socket = WorkSocket(on_id, DEFAULT_MAX_MESSAGE_BYTES)
        return socket

    async def _send_orders(
        self, socket: WorkSocket, queue: asyncio.Queue[hub_pb2.WorkOrders]
    ) -> None:
        try:
            while True:
                socket.send(((await queue.get()).SerializeToString(),))
        finally:
            socket.close()

    def _read_reports(self, data: Buffer) -> None:
        reports = hub_pb2.WorkReports.FromString(bytes(data))
        if not data:
            self.empty_reports.release()
        everything: list[Report] = [*reports.started, *reports.progress, *reports.ended]
        for report in everything:
            self.reports.put_nowait(report)


END = hub_pb2.GatewayControl()

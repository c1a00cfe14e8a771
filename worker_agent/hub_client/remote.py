"""Link to a gateway over the network.

Control messages, work and files have a connection each, so that none waits behind another.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import grpc
from msgspec import Struct

from synergai.errors import InvalidInput, Unavailable
from synergai.runtime.addresses import is_loopback
from synergai.runtime.files import StateFile
from synergai.v1 import hub_pb2, store_pb2
from synergai.wire import rpc
from synergai.wire.credentials import ClientTls, open_channel
from synergai.wire.limits import GATEWAY_LOST_AFTER
from synergai.wire.status import error_from_call
from synergai.wire.work_messages import Orders, decode_orders
from synergai.wire.work_socket import WorkSocket
from synergai.wire.writes import keep_status
from worker_agent.hub_client.identity import read_token

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
    from pathlib import Path

    from worker_agent.agent_settings import AgentSettings
    from worker_agent.placements.sending import ReadContents

_SOCKET_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 1.0
_OWN_CONNECTION: Final = ("grpc.use_local_subchannel_pool", 1)
"""Option of a channel that shares no connection, nor the backoff of a previous one."""
_FILES_PING: Final = ("grpc.keepalive_time_ms", 30_000)
"""Option of the channel for files: the answer to a ping may take a minute, as it waits behind them.
"""
_ENDED: Final = "the connection to the gateway has ended"


def open_link(config: AgentSettings, token: str = "") -> RemoteHub:
    """Return the link to the gateway, with the worker's token unless there is a file with it."""
    hub = RemoteHub(
        config.gateway,
        config.max_message_bytes,
        partial(ClientTls.read, config.tls_ca, config.tls_cert, config.tls_key),
        partial(read_token, config.token_file, token),
        LatestLeader(config.state),
    )
    hub.check()
    return hub


class RemoteHub:
    """A hub at one of several addresses, which are tried in turn; implements `HubLink`.

    TLS and token are read before each attempt, because their files may be renewed.

    Args:
        targets: the addresses, separated by commas.
        read_token: returns what proves the worker's identity; empty for nothing.
    """

    def __init__(
        self,
        targets: str,
        max_message_bytes: int,
        read_tls: Callable[[], ClientTls] = ClientTls,
        read_token: Callable[[], str] = str,
        leader: LatestLeader | None = None,
    ) -> None:
        # The next one to try comes first.
        self._targets = deque(targets.split(","))
        self.gateways = len(self._targets)
        self.target = self._targets[0]
        self._max_message_bytes = max_message_bytes
        self._read_tls = read_tls
        self._read_token = read_token
        self._leader = leader

    def check(self) -> None:
        """Check, before anything is started, that the agent can connect."""
        tls = self._read_tls()
        for target in self._targets:
            self._token_for(target, tls)

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[RemoteConnection, None]:
        """Open a channel to the next address, and a control stream on it."""
        self.target = self._targets[0]
        self._targets.rotate(-1)
        tls = await asyncio.to_thread(self._read_tls)
        token = await asyncio.to_thread(self._token_for, self.target, tls)
        options = rpc.channel_options(self._max_message_bytes)
        async with (
            open_channel(self.target, [*options, _OWN_CONNECTION], tls.channel) as channel,
            open_channel(self.target, [_FILES_PING, _OWN_CONNECTION], tls.channel) as files,
        ):
            connection = RemoteConnection(
                channel,
                files,
                self.target,
                self._max_message_bytes,
                tls.socket,
                token,
                self._accepted,
            )
            try:
                yield connection
            finally:
                connection.close()

    async def find_other(self) -> str:
        """Return another address that accepts connections, and try it next; empty for none."""
        for target in list(self._targets):
            host, _, port = target.rpartition(":")
            if target == self.target:
                continue
            try:
                async with asyncio.timeout(_LOOK_S):
                    _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            except (OSError, TimeoutError):
                continue
            writer.transport.abort()
            self._targets.rotate(-self._targets.index(target))
            return target
        return ""

    async def _accepted(self, registered: hub_pb2.Registered) -> None:
        if self._leader is not None and registered.cluster:
            await asyncio.to_thread(self._leader.follow, registered.cluster, registered.epoch)

    def _token_for(self, target: str, tls: ClientTls) -> str:
        """Return the worker's token, which is sent over TLS or loopback only; empty for none."""
        token = self._read_token()
        if token and tls.channel is None and not is_loopback(target.rpartition(":")[0]):
            raise InvalidInput(
                f"the worker's token is not sent to {target} without encryption: use TLS (--tls-ca)"
            )
        return token


class RemoteConnection:
    """A connection to a remote hub; implements `HubConnection`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        files: grpc.aio.Channel,
        target: str,
        max_message_bytes: int,
        tls: ssl.SSLContext | None = None,
        token: str = "",
        on_accepted: Callable[[hub_pb2.Registered], Awaitable[None]] | None = None,
    ) -> None:
        self._host = target.rpartition(":")[0].strip("[]")
        self._max_message_bytes = max_message_bytes
        self._tls = tls
        self._token = token
        self._on_accepted = on_accepted
        # The stubs of grpc.aio leave the types of a raw stream open.
        control: Any = channel.stream_stream(
            "/synergai.v1.Hub/Control",
            response_deserializer=rpc.deserializer(hub_pb2.GatewayControl),
        )
        self._control = keep_status(control())
        fetch: Any = files.unary_stream(
            "/synergai.v1.Hub/Fetch",
            request_serializer=hub_pb2.FetchRequest.SerializeToString,
            response_deserializer=rpc.deserializer(hub_pb2.FetchChunk),
        )
        self._fetch = fetch
        send: Any = files.stream_stream(
            "/synergai.v1.Hub/Send",
            request_serializer=hub_pb2.EngineChunk.SerializeToString,
            response_deserializer=rpc.deserializer(store_pb2.OpenResponse),
        )
        self._send = send
        self._target = target

    def authenticate(self, register: hub_pb2.Register) -> None:
        register.token = self._token

    async def read(self) -> hub_pb2.GatewayControl:
        message = await self._control.read()
        if message is grpc.aio.EOF:
            raise Unavailable("the gateway closed the connection")
        if isinstance(message, rpc.Malformed):
            raise message.error()
        if self._on_accepted is not None:
            accept, self._on_accepted = self._on_accepted, None
            await accept(message.registered)
        return cast("hub_pb2.GatewayControl", message)

    async def write(self, data: bytes) -> None:
        try:
            await self._control.write(data)
        except asyncio.InvalidStateError:
            # The call has ended; its reader raises the reason.
            await asyncio.Event().wait()

    async def open_work(
        self, registered: hub_pb2.Registered, on_orders: Callable[[Orders], None]
    ) -> WorkSocket:
        """Open a work socket to the port that the gateway has announced."""
        return await open_work_socket(
            self._host,
            registered.work_port,
            registered.session,
            on_orders,
            tls=self._tls,
            max_message_bytes=self._max_message_bytes,
            timeout_s=_SOCKET_TIMEOUT_S,
            lost_after_s=GATEWAY_LOST_AFTER * registered.heartbeat_s,
        )

    async def fetch(self, session: str, sha256: str, offset: int) -> AsyncGenerator[bytes, None]:
        request = hub_pb2.FetchRequest(session=session, sha256=sha256, offset=offset)
        with self._calling(self._fetch, request) as call:
            while (chunk := await call.read()) is not grpc.aio.EOF:
                if isinstance(chunk, rpc.Malformed):
                    raise chunk.error()
                yield chunk.data

    async def send(self, head: hub_pb2.EngineChunk, read: ReadContents) -> None:
        with self._calling(self._send) as call:
            with suppress(asyncio.InvalidStateError):  # it has ended; the last read tells why
                await keep_status(call).write(head)
                opened = await call.read()
                if isinstance(opened, rpc.Malformed):
                    raise opened.error()
                async with aclosing(read(opened.missing)) as chunks:
                    async for data in chunks:
                        await call.write(hub_pb2.EngineChunk(data=data))
                await call.done_writing()
            await call.read()

    @contextmanager
    def _calling(self, method: Callable[..., Any], *request: object) -> Generator[Any, None, None]:
        """Begin a call, translate its errors, and cancel it."""
        try:
            call = method(*request)
        except grpc.aio.UsageError:  # the channel is closed
            raise Unavailable(_ENDED) from None
        try:
            yield call
        except grpc.aio.AioRpcError as error:
            raise error_from_call(self._target, error.code(), error.details() or "") from None
        except asyncio.CancelledError:  # of the task, or of the call as the channel is closed
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Unavailable(_ENDED) from None
        finally:
            call.cancel()

    def close(self) -> None:
        self._control.cancel()


async def open_work_socket(
    host: str,
    port: int,
    connection_id: str,
    on_orders: Callable[[Orders], None],
    *,
    tls: ssl.SSLContext | None,
    max_message_bytes: int,
    timeout_s: float,
    lost_after_s: float,
) -> WorkSocket:
    """Open a work socket, which ends if what was sent is not acknowledged within `lost_after_s`.

    The control stream, which has another connection, may not notice that this one is broken.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            transport, work = await loop.create_connection(
                lambda: WorkSocket(lambda _: None, max_message_bytes),
                host,
                port,
                ssl=tls,
                server_hostname=None if tls is None else host,
            )
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"cannot open a work socket to {host}:{port}: {_reason(error, timeout_s)}"
        ) from None
    transport.get_extra_info("socket").setsockopt(
        socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1e3 * lost_after_s)
    )
    work.listen(decode_orders, on_orders)
    work.send((connection_id.encode(),))
    return work


def _reason(error: OSError | TimeoutError, timeout_s: float) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError):
        return f"TLS handshake failed: {error.reason or error}"
    reason = error.strerror or f"timeout after {timeout_s:g} s"
    return f"{reason}; agents must reach the gateway's --work-port as well as its --hub port"


LEADER_FILE: Final = "leader.json"


class _Leader(Struct, frozen=True):
    cluster: str
    epoch: int


class LatestLeader:
    """The highest epoch that the agent has seen in its cluster. The methods block on files."""

    def __init__(self, state: Path) -> None:
        remedy = "Remove it: the agent then obeys any gateway that it is told of"
        self._file = StateFile(state / LEADER_FILE, _Leader, remedy)

    def follow(self, cluster: str, epoch: int) -> None:
        with self._file.locked():
            latest = self._file.read()
            if latest is not None and latest.cluster == cluster:
                if epoch < latest.epoch:
                    raise Unavailable(
                        f"this gateway led in epoch {epoch}, and another one leads since epoch "
                        f"{latest.epoch}. After a restore of the database from a backup, remove "
                        f"{self._file.path}"
                    )
                if epoch == latest.epoch:
                    return
            self._file.write(_Leader(cluster, epoch))

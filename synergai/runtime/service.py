"""Lifecycle of a serving process: event loop, logging, signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from synergai.runtime.addresses import bind
from synergai.runtime.resources import raise_descriptor_limit, retain_freed_memory
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from synergai.runtime.setting_types import LogLevel


_log = logging.getLogger(__name__)


class _Told:
    """What this process has told its manager."""

    ready = False


def notify(state: str) -> None:
    """Send `state`, such as ``READY=1``, to the service manager if there is one.

    Failures are only logged.
    """
    _Told.ready = state == "READY=1" or (_Told.ready and state != "STOPPING=1")
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name in the abstract namespace
        address = f"\0{address[1:]}"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as connection:
            connection.sendto(state.encode(), address)
    except OSError as error:
        _log.warning("cannot send %s to the service manager: %s", state, error)


def watchdog_timeout_s() -> float | None:
    """Return the watchdog timeout in seconds that systemd set for this process, if any."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    timeout = os.environ.get("WATCHDOG_USEC", "")
    return int(timeout) / 1e6 if timeout.isdecimal() and int(timeout) > 0 else None


@contextlib.asynccontextmanager
async def notify_lifecycle() -> AsyncIterator[None]:
    """Notify systemd as `notify_ready` does, and of stopping on exit."""
    async with notify_ready():
        try:
            yield
        finally:
            notify("STOPPING=1")


@contextlib.asynccontextmanager
async def notify_ready() -> AsyncIterator[None]:
    """Notify systemd of readiness, and feed the watchdog as long as the context is open.

    The watchdog is fed from the event loop, so a blocked loop gets the service restarted.
    """
    timeout = watchdog_timeout_s()
    async with TaskBag() as tasks:
        if timeout is not None:
            tasks.start(_feed_watchdog(timeout / 3))
        notify("READY=1")
        yield


async def _feed_watchdog(interval: float) -> None:
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval)


_FULL_COLLECTION: Final = 200
"""Collections of middle-aged objects after which one of all objects may follow."""


class Stoppable(Protocol):
    """A service that runs until it is stopped."""

    def stop(self) -> None:
        """Begin to stop; idempotent."""

    async def wait_stopped(self) -> None:
        """Wait until the service has stopped."""

    @property
    def ready(self) -> bool:
        """Whether the service, which has started, can do its work."""


def run_service(
    make: Callable[[], AbstractAsyncContextManager[Stoppable]],
    log_level: LogLevel,
    probes: str | None = None,
) -> None:
    """Run a service, made on the loop, on uvloop until it stops; SIGINT and SIGTERM stop it.

    A second signal exits the process at once.

    Args:
        probes: address for the probes of Kubernetes; see `answering_probes`.
    """
    import uvloop  # deferred to keep --help fast

    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=log_level.upper()
    )
    retain_freed_memory()
    raise_descriptor_limit()
    uvloop.run(_serve(make, probes))


async def _serve(
    make: Callable[[], AbstractAsyncContextManager[Stoppable]], probes: str | None
) -> None:
    loop = asyncio.get_running_loop()
    starting = asyncio.current_task()
    started: Stoppable | None = None
    signalled = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal signalled
        if signalled:
            os._exit(128 + number)
        signalled = True
        if started is not None:
            started.stop()
        elif starting is not None:
            starting.cancel()

    def ready() -> bool:
        # A gateway that stands by is ready before it has started.
        return _Told.ready and (started is None or started.ready)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        async with answering_probes(probes, ready), make() as service, notify_lifecycle():
            started = service
            # Objects created during start-up live as long as the process. Frozen, they are skipped
            # by full collections, which would stall requests for tens of milliseconds.
            gc.freeze()
            # Each object of a call counts, so that thousands of calls which begin together would
            # otherwise have a full collection every time their number has grown by a quarter.
            gc.set_threshold(*gc.get_threshold()[:2], _FULL_COLLECTION)
            await service.wait_stopped()
    except asyncio.CancelledError:
        # A signal during start-up is an orderly stop as well.
        if not signalled:
            raise


_BACKLOG: Final = 16
_MAX_CONNECTIONS: Final = 64
_MAX_HEAD_BYTES: Final = 4096
_TIMEOUT_S: Final = 5.0


@asynccontextmanager
async def answering_probes(address: str | None, ready: Callable[[], bool]) -> AsyncIterator[None]:
    """Answer ``/livez`` and ``/readyz`` at an address, if any, as long as the context is open.

    ``/livez`` is always answered by 200, so that only a process that hangs fails it. ``/readyz`` is
    answered by 503 while `ready` is false.
    """
    sockets = [] if address is None else await asyncio.to_thread(bind, address, _BACKLOG)
    async with TaskBag() as probes:

        def on_probe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if len(probes) >= _MAX_CONNECTIONS:
                writer.close()
            else:
                probes.start(_answer_probe(reader, writer, ready))

        servers = [
            await asyncio.start_server(on_probe, sock=each, limit=_MAX_HEAD_BYTES)
            for each in sockets
        ]
        try:
            yield
        finally:
            for server in servers:
                server.close()


async def _answer_probe(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, ready: Callable[[], bool]
) -> None:
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
        writer.write(_answer(head, is_ready=ready()))
    except (OSError, EOFError, asyncio.LimitOverrunError):
        pass  # it was no probe, has gone, or took too long
    finally:
        writer.close()


def _answer(head: bytes, *, is_ready: bool) -> bytes:
    match head.split(b" ", 2)[1:2]:
        case [b"/livez"]:
            status, text = "200 OK", "alive\n"
        case [b"/readyz"] if is_ready:
            status, text = "200 OK", "ready\n"
        case [b"/readyz"]:
            status, text = "503 Service Unavailable", "not ready\n"
        case _:
            status, text = "404 Not Found", "ask for /livez or /readyz\n"
    return (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
        f"Connection: close\r\n\r\n{text}"
    ).encode()

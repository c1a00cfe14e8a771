"""Lifecycle of a serving process: event loop, logging, signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol

from synergai.runtime.memory import GlibcHeap, retain_freed_memory, rss_bytes
from synergai.runtime.probes import answering_probes
from synergai.runtime.processes import raise_descriptor_limit
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
        probes: address for the probes of Kubernetes; see `synergai.runtime.probes`.
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
        async with (
            answering_probes(probes, ready),
            make() as service,
            notify_lifecycle(),
            _trimming(),
        ):
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


@asynccontextmanager
async def _trimming() -> AsyncIterator[None]:
    """Give freed memory back while the process is idle, as long as the context is open."""
    async with TaskBag() as tasks:
        if (heap := GlibcHeap.find()) is not None:
            tasks.start(IdleTrimmer(heap).run())
        yield


# `retain_freed_memory` lets the C library keep freed memory for the next message. It may be hours
# until there is another large one, so an idle process gives the memory back.

TRIM_INTERVAL_S: Final = 15.0
IDLE_SHARE: Final = 0.3
"""Share of a processor below which a process counts as idle: a trim stalls its threads for some
milliseconds, and the next large message page-faults its memory in again."""
RETAINED_BYTES: Final = 16 << 20
"""Freed memory that is not worth a trim."""


class IdleTrimmer:
    """Trims a heap if the process was idle since the last look at it."""

    def __init__(
        self,
        heap: GlibcHeap,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
        resident: Callable[[], int] = rss_bytes,
    ) -> None:
        self._heap = heap
        self._clock = clock
        self._cpu = cpu
        self._seen_at = clock()
        self._used_s = cpu()
        self._resident = resident
        self._resident_after = 0

    def look(self) -> None:
        """Trim the heap if that is worth it and disturbs nothing."""
        now, used_s = self._clock(), self._cpu()
        busy = used_s - self._used_s > IDLE_SHARE * (now - self._seen_at)
        self._seen_at, self._used_s = now, used_s
        # Pages that were returned still count as free, but are not resident.
        grown = self._resident() > self._resident_after + RETAINED_BYTES
        if grown and not busy and self._heap.free_bytes() > RETAINED_BYTES:
            self._heap.trim()
            self._resident_after = self._resident()

    async def run(self) -> None:
        """Look at the heap from time to time until cancelled."""
        while True:
            await asyncio.sleep(TRIM_INTERVAL_S)
            await asyncio.to_thread(self.look)

"""One engine host as its agent sees it: started, fed, watched, and missed when it dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from synergai.domain import Fault, Outcome
from synergai.errors import EngineUnusable, InvalidInput, Unavailable
from synergai.values import value
from worker_agent.hosts.launch import Launch
from worker_agent.ipc import interrupts
from worker_agent.ipc.arena import INLINE_BYTES, SLOT_BYTES, slots_for
from worker_agent.ipc.frames import (
    ArenaRef,
    Decoder,
    LoadFailed,
    Message,
    Ready,
    RunEnded,
    RunProgress,
    RunQuery,
    RunSamples,
    StopRun,
    Tally,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from synergai.domain import BatchTimes, Session
    from synergai.protocol.request_codec import Buffer
    from worker_agent.ipc.arena import Arena

    OnEnded: TypeAlias = Callable[[RunEnded], None]
    """Called once for every run; `RunEnded.response` is bytes by then."""
    OnProgress: TypeAlias = Callable[[Tally], None]

WINDOW: Final = 32
"""Runs that may wait inside a host, so that it never waits for its agent."""
INTERRUPT_AFTER_S: Final = 0.2
"""A run that was stopped and goes on for so long is in a long query, which is interrupted."""
QUICK_S: Final = 0.0005
"""A query that computes for less is quick: waking processes is what it mostly costs."""
_LEAVE_S: Final = 5.0
_LOG_CHUNK_BYTES: Final = 4096

_log = logging.getLogger(__name__)


@value()
class _Run:
    on_ended: OnEnded
    on_progress: OnProgress | None = None
    slot: int | None = None


class HostProcess(asyncio.Protocol):
    """A child process with a loaded engine. Made by `start`.

    Runs are fed without waiting and end by callback, in the order in which they were fed. When
    the process dies or hangs, all of them end with ``HOST_DIED``.

    Attributes:
        session: engine and configuration that it holds.
        ready: what it said when it was up.
    """

    def __init__(self, session: Session, arena: Arena, hang_timeout_s: float) -> None:
        self.session = session
        self.ready: Ready
        self._arena = arena
        self._hang_timeout_s = hang_timeout_s
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[Message] = self._loop.create_future()
        self._decoder = Decoder()
        self._runs: dict[int, _Run] = {}
        self._last_run = 0
        self._outgoing: list[bytes] = []
        self._sent_runs = 0
        self._is_quick = False
        self._largest_response = 0
        self._heard_at = self._loop.time()
        self._watchdog: asyncio.TimerHandle | None = None
        self._killed_because = ""
        self._closing = False
        self._retired: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()
        self._interrupts: int
        self._transport: asyncio.Transport
        self._process: asyncio.subprocess.Process
        self._supervisor: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        models: Path,
        session: Session,
        *,
        cores: Sequence[int] = (),
        hang_timeout_s: float = 30.0,
        load_timeout_s: float = 300.0,
        on_exit: Callable[[HostProcess], None] = lambda _: None,
    ) -> HostProcess:
        """Start a host for `session` and wait until the engine is resident and warm.

        Args:
            models: the model directory.
            session: engine and configuration.
            cores: those that it is kept to; all if empty.
            hang_timeout_s: how long it may be silent while it owes an answer.
            load_timeout_s: how long loading may take.
            on_exit: called once, when the host has died by itself, after it was up.

        Raises:
            EngineUnusable: the engine cannot be loaded, or not in time.
            Unavailable: the process died before it was up.
        """
        loop = asyncio.get_running_loop()
        with Launch.of(models, session, cores) as launch:
            host = cls(session, launch.arena, hang_timeout_s)
            host._interrupts = launch.interrupts
            host._process = await asyncio.create_subprocess_exec(
                *launch.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=launch.inherited,
            )
            host._transport, _ = await loop.create_connection(lambda: host, sock=launch.connection)
        host._supervisor = asyncio.create_task(host._supervise(on_exit))
        try:
            async with asyncio.timeout(load_timeout_s):
                first = await host._first
        except TimeoutError:
            await host.close()
            raise EngineUnusable(
                f"engine {session.engine!r} was not loaded within {load_timeout_s:g} s"
            ) from None
        except BaseException:
            await host.close()
            raise
        if not isinstance(first, Ready):
            await host.close()
            reason = first.reason if isinstance(first, LoadFailed) else f"it began with {first}"
            raise EngineUnusable(reason)
        host.ready = first
        host._arena.grow(slots_for(first.max_batch))
        return host

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_closed(self) -> bool:
        """It has ended, or is about to; there is nothing more to be had from it."""
        return self._gone.is_set() or self._retired is not None

    @property
    def is_idle(self) -> bool:
        """It owes no answer."""
        return not self._runs

    def has_room(self, size: int) -> bool:
        """A query of `size` bytes can be fed now."""
        return len(self._runs) < WINDOW and (not self._is_large(size) or self._arena.has_room)

    def run_query(
        self,
        request: Buffer,
        on_ended: OnEnded,
        batch_times: BatchTimes | None = None,
        due: float = math.inf,
    ) -> int:
        """Feed a query that comes with its tensors, a serialised ``ModelInferRequest``.

        There must be room for it. With `batch_times`, it may be computed together with others that
        have one, if all of them are still computed by when they are `due`.

        Returns:
            The run, for `stop`.
        """
        self._last_run += 1
        run = self._last_run
        if self._is_large(len(request)):
            place = self._arena.put(request)
            self._feed(run, _Run(on_ended, slot=place.slot), RunQuery(run, place, batch_times, due))
        else:
            self._feed(run, _Run(on_ended), RunQuery(run, request, batch_times, due))
        return run

    def run_samples(
        self,
        first: int,
        count: int,
        on_progress: OnProgress,
        on_ended: OnEnded,
        job: str = "",
    ) -> int:
        """Feed the queries [first, first + count) of the sample set; returns the run.

        `job` is whose they are, for backends that want to know.
        """
        self._last_run += 1
        run = self._last_run
        self._feed(run, _Run(on_ended, on_progress), RunSamples(run, first, count, job))
        return run

    def stop(self, run: int) -> None:
        """Stop the run at its next query, or in it if that takes long. Harmless when it is over."""
        if run in self._runs:
            self._send(StopRun(run))
            self._loop.call_later(INTERRUPT_AFTER_S, self._interrupt, run)

    def _interrupt(self, run: int) -> None:
        if run in self._runs and not self._gone.is_set():
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._interrupts, interrupts.encode(run))

    def kill(self, reason: str = "") -> None:
        """End the process now; its runs end with ``HOST_DIED``, and what is said of the host."""
        self._killed_because = reason
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def retire(self) -> asyncio.Future[None]:
        """Take nothing more; the future is done once all that it owes is answered."""
        self._retired = self._loop.create_future()
        if not self._runs:
            self._release()
        return self._retired

    async def close(self) -> None:
        """End the process in order, and wait until it has ended."""
        self._closing = True
        self._gone.set()  # whoever comes now needs another one
        self._transport.abort()
        await self._supervisor

    # --- asyncio.Protocol -------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Hand on what the host says."""
        self._heard_at = self._loop.time()
        try:
            for message in self._decoder.feed(data):
                self._receive(message)
        except InvalidInput:
            _log.exception("engine host of %s does not speak our protocol", self.session.engine)
            self.kill()
        if self._outgoing:
            self._flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        """The host has gone, or we let it go."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._gone.set()

    def _receive(self, message: Message) -> None:
        match message:
            case RunProgress(run, tally) if run in self._runs:
                progressed = self._runs[run].on_progress
                if progressed is not None:
                    progressed(tally)
            case RunEnded(run) if run in self._runs:
                self._end(message)
            case Ready() | LoadFailed() if not self._first.done():
                self._first.set_result(message)
            case _:
                raise InvalidInput(f"an engine host said {message}")

    def _end(self, ended: RunEnded) -> None:
        run = self._runs.pop(ended.run)
        self._sent_runs -= 1
        self._is_quick = run.on_progress is None and ended.tally.compute_s < QUICK_S
        if isinstance(ended.response, ArenaRef):
            try:
                ended = replace(ended, response=self._arena.read(ended.response))
            except ValueError as error:
                raise InvalidInput(str(error)) from error
        if run.slot is not None:
            self._arena.release(run.slot)
        self._largest_response = max(self._largest_response, len(ended.response))
        run.on_ended(ended)
        if not self._runs:
            self._release()

    def _release(self) -> None:
        """It owes nothing any more, which is what its retirement waits for."""
        if self._retired is not None and not self._retired.done():
            self._retired.set_result(None)

    # --- feeding and watching ---------------------------------------------------------------

    def _is_large(self, size: int) -> bool:
        """The request or, as far as earlier ones tell, its response is one for the arena."""
        return max(size, self._largest_response) > INLINE_BYTES and size <= SLOT_BYTES

    def _feed(self, number: int, run: _Run, message: RunQuery | RunSamples) -> None:
        if self.is_closed:
            ended = _host_died(number, f"the engine host of {self.session.engine!r} is gone")
            self._loop.call_soon(run.on_ended, ended)
            return
        if not self._runs:
            self._heard_at = self._loop.time()
        self._runs[number] = run
        if isinstance(message, RunSamples):
            self._is_quick = False
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._hang_timeout_s, self._watch)
        self._send(message)

    def _send(self, message: RunQuery | RunSamples | StopRun) -> None:
        """Send with all else of this turn of the loop: a system call costs more than a query."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message.encode())

    def _flush(self) -> None:
        """Send what waits, unless it can go together with more.

        While the host computes a quick query, others wait for its answer, and the host is woken
        once for all of them; what a quick query loses by that is less than a wake-up costs.
        """
        if self._is_quick and self._sent_runs:
            return
        frames, self._outgoing = self._outgoing, []
        self._sent_runs = len(self._runs)
        if not self._gone.is_set():
            self._transport.write(b"".join(frames))

    def _watch(self) -> None:
        """Look whether the host has been silent for too long; runs only while it owes answers."""
        self._watchdog = None
        if not self._runs or self._gone.is_set():
            return
        left = self._heard_at + self._hang_timeout_s - self._loop.time()
        if left > 0:
            self._watchdog = self._loop.call_later(left, self._watch)
            return
        _log.warning(
            "engine host of %s is silent for %g s and is killed", self.session, self._hang_timeout_s
        )
        self.kill("hung and was killed")

    async def _supervise(self, on_exit: Callable[[HostProcess], None]) -> None:
        """Own the process until it has ended, then end what it still owed."""
        output = asyncio.create_task(self._log_output())
        try:
            await self._gone.wait()
            reason = f"the engine host of {self.session.engine!r} {await self._leave()}"
            await output
        finally:
            output.cancel()
            self._arena.close()
            os.close(self._interrupts)
        runs, self._runs = self._runs, {}
        for number, run in runs.items():
            run.on_ended(_host_died(number, reason))
        self._release()
        if not self._first.done():
            self._first.set_exception(Unavailable(f"{reason} while loading"))
        elif not self._closing:
            _log.warning("%s", reason)
            on_exit(self)

    async def _leave(self) -> str:
        """Wait until the process has ended, and say how it did."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                code = await self._process.wait()
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        if self._killed_because:
            return self._killed_because
        if code >= 0:
            return f"ended with exit code {code}"
        return f"died by signal {-code}"

    async def _log_output(self) -> None:
        """Log what the runtime prints, until the process closes its output."""
        reader = cast("asyncio.StreamReader", self._process.stdout)
        while chunk := await reader.read(_LOG_CHUNK_BYTES):
            for line in chunk.decode(errors="replace").splitlines():
                _log.info("[%s] %s", self.session.engine, line)


def _host_died(run: int, reason: str) -> RunEnded:
    return RunEnded(run, Outcome.FAILED, fault=Fault.HOST_DIED, detail=reason)

"""Agent's side of one engine host: starts the process, feeds it runs and supervises it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from synergai.domain import Fault, Outcome
from synergai.errors import EngineUnusable, InvalidInput, Unavailable
from worker_agent.hosts.launch import Launch
from worker_agent.hosts.memory import HostMemory
from worker_agent.ipc import interrupts
from worker_agent.ipc.arena import INLINE_BYTES, SLOT_BYTES, slots_for
from worker_agent.ipc.frames import (
    ArenaRef,
    Decoder,
    LoadFailed,
    LoadStarted,
    LoadVariant,
    Message,
    Ready,
    RunEnded,
    RunProgress,
    RunQuery,
    RunSamples,
    StopRun,
    Tally,
    UnloadVariant,
    VariantUnloaded,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from synergai.domain import BatchTimes, Session
    from synergai.errors import SynergaiError
    from synergai.protocol.request_codec import Buffer
    from worker_agent.ipc.arena import Arena
    from worker_agent.ipc.frames import Order
    from worker_agent.providers.choice import ProviderChoice

    OnEnded: TypeAlias = Callable[[RunEnded], None]
    """Called exactly once per run; `RunEnded.response` is bytes, never an `ArenaRef`."""
    OnProgress: TypeAlias = Callable[[Tally], None]

WINDOW: Final = 32
"""Maximum number of runs in flight in a host, so that it never waits for the agent."""
INTERRUPT_AFTER_S: Final = 0.2
"""A stopped run that has not ended after this time is interrupted in its current query."""
QUICK_S: Final = 0.0005
"""Below this compute time, waking the processes dominates the cost of a query."""
_EXIT_TIMEOUT_S: Final = 5.0
_LOG_CHUNK_BYTES: Final = 4096

_log = logging.getLogger(__name__)


class LoadHung(EngineUnusable):
    """The engine was not loaded within the time limit."""


class LoadCrashed(Unavailable):
    """The engine host crashed while it loaded the engine."""


class LoadSuspected(Unavailable):
    """The engine host crashed while it loaded a variant and computed runs; either was the cause."""


class _PendingRun(Struct, frozen=True):
    on_ended: OnEnded
    on_progress: OnProgress | None = None
    slot: int | None = None
    variant: str = ""


class HostProcess(asyncio.Protocol):
    """A child process with a loaded engine, and maybe further variants of it. Created by `start`.

    Runs are fed without waiting and end by callback, in the order in which they were fed. If the
    process dies or hangs, all pending runs end with ``HOST_DIED``; but the run of a variant that it
    computed when it crashed, with ``CRASHED``.

    Attributes:
        session: engine and configuration that it was started with.
        ready: tensors and load times reported by the host.
        was_suspended: it was suspended while it loaded, so that its load times are too long.
    """

    def __init__(
        self,
        session: Session,
        arena: Arena,
        hang_timeout_s: float,
        on_unusable: Callable[[str, str], None],
    ) -> None:
        self.session = session
        self.ready: Ready
        self.was_suspended = False
        self._arena = arena
        self._hang_timeout_s = hang_timeout_s
        self._on_unusable = on_unusable
        self._loop = asyncio.get_running_loop()
        self._first_message: asyncio.Future[Message] = self._loop.create_future()
        # Answers to orders in flight, by variant.
        self._orders: dict[str, asyncio.Future[Message]] = {}
        # The variant that the host is loading, and whether it computes nothing meanwhile.
        self._loading: str | None = None
        self._loads_alone = False
        self._decoder = Decoder()
        self._runs: dict[int, _PendingRun] = {}
        self._last_run_id = 0
        self._outgoing: list[bytes] = []
        self._runs_at_host = 0
        self._is_quick = False
        self._largest_response = 0
        self._heard_at = self._loop.time()
        self._watchdog: asyncio.TimerHandle | None = None
        self._kill_reason = ""
        self._kill_error: SynergaiError | None = None
        self._closing = False
        self._retired: asyncio.Future[None] | None = None
        self._disconnected = asyncio.Event()
        self._interrupt_writer: int
        self._transport: asyncio.Transport
        self._process: asyncio.subprocess.Process
        self._supervisor: asyncio.Task[None]

    @classmethod
    async def start(
        cls,
        models: Path,
        session: Session,
        *,
        memory: HostMemory | None = None,
        cores: Sequence[int] = (),
        provider: ProviderChoice | None = None,
        hang_timeout_s: float = 30.0,
        load_timeout_s: float = 300.0,
        on_launched: Callable[[HostProcess], None] = lambda _: None,
        on_exit: Callable[[HostProcess], None] = lambda _: None,
        on_unusable: Callable[[str, str], None] = lambda *_: None,
    ) -> HostProcess:
        """Start a host for `session` and wait until the engine is resident and warm.

        Args:
            models: the model directory.
            session: engine and configuration to load.
            memory: counts and limits the memory of the agent's hosts.
            cores: CPU cores that the host is restricted to; all if empty.
            provider: the execution provider of the configuration; None for the CPU.
            hang_timeout_s: the host is killed when it is silent for this long while it has runs.
            load_timeout_s: time limit for loading.
            on_launched: called once the process is started, before it has loaded the engine.
            on_exit: called once if the host exits without being closed after it was ready.
            on_unusable: called with the variant and the reason when the engine fails with
                `provider`, or has variants and this one fails.

        Raises:
            EngineUnusable: the engine cannot be loaded; `LoadHung` if loading timed out.
            Unavailable: the process died while loading; `LoadCrashed` by itself.
        """
        loop = asyncio.get_running_loop()
        memory = HostMemory() if memory is None else memory
        data_bytes = memory.data_limit_bytes(session.configuration.threads)
        if provider is not None and not provider.uses_threads:
            data_bytes = 0  # drivers of devices map much more memory than they use
        with Launch.prepare(models, session, cores, data_bytes, provider) as launch:
            host = cls(session, launch.arena, hang_timeout_s, on_unusable)
            host._interrupt_writer = launch.interrupt_writer
            host._process = await asyncio.create_subprocess_exec(
                *launch.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                pass_fds=launch.inherited_fds,
                # Ctrl-C in a terminal signals its process group; the agent stops its hosts.
                start_new_session=True,
            )
            host._transport, _ = await loop.create_connection(
                lambda: host, sock=launch.agent_socket
            )
        memory.hosts.add(host)
        host._supervisor = asyncio.create_task(host._supervise(on_exit))
        host._supervisor.add_done_callback(lambda _: memory.hosts.discard(host))
        async with contextlib.AsyncExitStack() as on_failure:
            on_failure.push_async_callback(host.close)
            on_launched(host)
            host.ready = await host._wait_ready(load_timeout_s)
            host._arena.grow(slots_for(host.ready.max_batch))
            on_failure.pop_all()
        return host

    async def _wait_ready(self, timeout_s: float) -> Ready:
        """Wait until the engine is loaded; raise the exceptions of `start`."""
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._first_message
        except TimeoutError:
            # Without the engine's name: faults are shown beside it.
            raise LoadHung(f"it was not loaded within {timeout_s:g} s") from None
        match message:
            case Ready():
                return message
            case LoadFailed():
                raise message.error()
            case _:
                raise EngineUnusable(f"unexpected first message from the host: {message}")

    async def load_variant(
        self, variant: str, *, alone: bool = False, timeout_s: float = 300.0
    ) -> Ready:
        """Load another variant of the engine, beside the queries of those that are loaded.

        If it kills the process, the variants that were loaded are lost.

        Args:
            variant: the variant.
            alone: compute no queries meanwhile, to know what to blame if the process dies.
            timeout_s: time limit.

        Raises:
            EngineUnusable: it cannot be loaded; `LoadHung` if that takes too long.
            Unavailable: the process died before, or while loading; `LoadCrashed` if that caused it,
                `LoadSuspected` if a query may have.
        """
        self._loads_alone = alone
        try:
            async with asyncio.timeout(timeout_s):
                message = await self._order(variant, LoadVariant(variant, alone))
        except TimeoutError:
            what = f"variant {variant!r}"
            error = LoadHung if self._loading == variant else Unavailable
            self.kill(f"did not load {what} in time, and was killed")
            raise error(f"{what} was not loaded within {timeout_s:g} s") from None
        if isinstance(message, Ready):
            self._arena.grow(slots_for(message.max_batch))
            return message
        if isinstance(message, LoadFailed):
            raise message.error()
        raise EngineUnusable(f"unexpected answer from the host: {message}")

    async def unload_variant(self, variant: str) -> None:
        """Free a variant without runs, while another one stays loaded.

        Raises:
            Unavailable: the process died.
        """
        await self._order(variant, UnloadVariant(variant))

    async def _order(self, variant: str, order: LoadVariant | UnloadVariant) -> Message:
        if self.is_closed:
            raise Unavailable(f"the engine host of {self.session.engine!r} has exited")
        while (before := self._orders.get(variant)) is not None:
            await asyncio.wait([before])
        answer = self._orders[variant] = self._loop.create_future()
        self._is_quick = False
        self._send(order)
        try:
            message: Message = await answer
        finally:
            del self._orders[variant]
        return message

    @property
    def pid(self) -> int:
        """Process id of the host."""
        return self._process.pid

    @property
    def is_closed(self) -> bool:
        """Whether the host has exited, is closing or is retired; it accepts no runs."""
        return self._disconnected.is_set() or self._retired is not None

    @property
    def is_idle(self) -> bool:
        """Whether no run is in flight, and no variant is being loaded."""
        return not self._runs and not self._orders

    def needs(self, variant: str) -> bool:
        """Return whether a run of `variant` is in flight, or a variant is being loaded."""
        return bool(self._orders) or any(run.variant == variant for run in self._runs.values())

    def has_room(self, size: int) -> bool:
        """Return whether a query of `size` bytes can be fed now."""
        return len(self._runs) < WINDOW and (not self._is_large(size) or self._arena.has_room)

    def run_query(
        self,
        request: Buffer,
        on_ended: OnEnded,
        batch_times: BatchTimes | None = None,
        due: float = math.inf,
        variant: str = "",
    ) -> int:
        """Feed one query; `has_room` must be true.

        Args:
            request: serialised ``ModelInferRequest``.
            on_ended: called once with the result.
            batch_times: durations of batches by size, if the query may share a batch.
            due: instant on the monotonic clock by which a batch must be computed.
            variant: the loaded variant to run it on; empty for an engine without variants.

        Returns:
            Id of the run, for `stop_run`.
        """
        self._last_run_id += 1
        run_id = self._last_run_id
        if self._is_large(len(request)):
            ref = self._arena.put(request)
            run = _PendingRun(on_ended, None, ref.slot, variant)
            self._feed(run_id, run, RunQuery(run_id, ref, batch_times, due, variant))
        else:
            run = _PendingRun(on_ended, None, None, variant)
            self._feed(run_id, run, RunQuery(run_id, request, batch_times, due, variant))
        return run_id

    def run_samples(
        self,
        first: int,
        count: int,
        on_progress: OnProgress,
        on_ended: OnEnded,
        job: str = "",
        variant: str = "",
    ) -> int:
        """Feed the queries [first, first + count) of the sample set.

        Args:
            first: index of the first query.
            count: number of queries.
            on_progress: called with the counts so far.
            on_ended: called once with the result.
            job: id of the job, for `JobAware` backends.
            variant: as of `run_query`.

        Returns:
            Id of the run, for `stop_run`.
        """
        self._last_run_id += 1
        run_id = self._last_run_id
        run = _PendingRun(on_ended, on_progress, None, variant)
        self._feed(run_id, run, RunSamples(run_id, first, count, job, variant=variant))
        return run_id

    def stop_run(self, run_id: int) -> None:
        """Stop a run before its next query, and interrupt a long query; no-op if it has ended."""
        if run_id in self._runs:
            self._send(StopRun(run_id))
            self._loop.call_later(INTERRUPT_AFTER_S, self._interrupt, run_id)

    def _interrupt(self, run_id: int) -> None:
        if run_id in self._runs and not self._disconnected.is_set():
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._interrupt_writer, interrupts.encode(run_id))

    def kill(self, reason: str = "", error: SynergaiError | None = None) -> None:
        """Kill the process; its runs end with ``HOST_DIED`` and `reason` in the detail.

        Args:
            reason: what the host did.
            error: what `start` raises if the engine is still being loaded.
        """
        self._kill_reason, self._kill_error = reason, error
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def suspend(self) -> bool:
        """Stop the process until `resume`, while it loads.

        Returns:
            Whether it is stopped; it is not before the kernel would kill it with this process.
        """
        if self._arena.closed or not self._arena.bound:
            return False
        self.was_suspended = True
        self._signal(signal.SIGSTOP)
        return True

    def resume(self) -> None:
        """Let a suspended process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def retire(self) -> asyncio.Future[None]:
        """Accept no more runs; return a future that completes once no run is in flight."""
        self._retired = self._loop.create_future()
        if not self._runs:
            self._complete_retirement()
        return self._retired

    async def close(self) -> None:
        """Stop the process and wait until it has exited."""
        self._closing = True
        self._disconnected.set()  # from now on `is_closed` is true
        self._transport.abort()
        if not self._first_message.done() or self._first_message.cancelled():
            self.kill()  # it would notice the disconnection only once the engine is loaded
        await self._supervisor

    # --- asyncio.Protocol -------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Decode and dispatch messages from the host."""
        self._heard_at = self._loop.time()
        try:
            for message in self._decoder.feed(data):
                self._receive(message)
        except InvalidInput:
            _log.exception("malformed message from the engine host of %s", self.session.engine)
            self.kill()
        if self._outgoing:
            self._flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - part of asyncio.Protocol
        """Handle the disconnection of the host, whichever side caused it."""
        if self._watchdog is not None:
            self._watchdog.cancel()
        self._disconnected.set()

    def _receive(self, message: Message) -> None:
        match message:
            case RunProgress(run_id, tally) if run_id in self._runs:
                on_progress = self._runs[run_id].on_progress
                if on_progress is not None:
                    on_progress(tally)
            case RunEnded(run_id) if run_id in self._runs:
                self._end_run(message)
            case Ready() | LoadFailed() if not self._first_message.done():
                self._first_message.set_result(message)
            case LoadStarted(variant):
                self._loading = variant
            case Ready(variant=variant) | LoadFailed(variant=variant) | VariantUnloaded(variant):
                if not isinstance(message, VariantUnloaded):
                    self._loading = None
                answer = self._orders.get(variant)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            case _:
                raise InvalidInput(f"unexpected message from an engine host: {message}")

    def _end_run(self, ended: RunEnded) -> None:
        run = self._runs.pop(ended.run_id)
        if ended.fault is Fault.ENGINE_BROKEN and (
            run.variant or self.session.configuration.execution_provider
        ):
            ended = replace(ended, fault=Fault.CONFIGURATION_UNUSABLE)
            self._on_unusable(run.variant, ended.detail)
        self._runs_at_host -= 1
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
            self._complete_retirement()

    def _complete_retirement(self) -> None:
        if self._retired is not None and not self._retired.done():
            self._retired.set_result(None)

    # --- feeding and watching ---------------------------------------------------------------

    def _is_large(self, size: int) -> bool:
        """Return whether the request, or judging by earlier ones its response, needs the arena."""
        return max(size, self._largest_response) > INLINE_BYTES and size <= SLOT_BYTES

    def _feed(self, run_id: int, run: _PendingRun, message: RunQuery | RunSamples) -> None:
        if self.is_closed:
            ended = _host_died(run_id, f"the engine host of {self.session.engine!r} has exited")
            self._loop.call_soon(run.on_ended, ended)
            return
        if not self._runs:
            self._heard_at = self._loop.time()
        self._runs[run_id] = run
        if isinstance(message, RunSamples):
            self._is_quick = False
        if self._watchdog is None:
            self._watchdog = self._loop.call_later(self._hang_timeout_s, self._watch)
        self._send(message)

    def _send(self, message: RunQuery | RunSamples | StopRun | Order) -> None:
        """Buffer a message until the end of this turn of the loop, to save system calls."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(message.encode())

    def _flush(self) -> None:
        """Send the buffered messages, unless the host is about to answer quick queries.

        While quick queries are at the host, others are held back until it answers, so that one
        wake-up serves all of them; a wake-up costs more than a quick query loses by waiting.
        """
        if self._is_quick and self._runs_at_host:
            return
        frames, self._outgoing = self._outgoing, []
        self._runs_at_host = len(self._runs)
        if not self._disconnected.is_set():
            self._transport.write(b"".join(frames))

    def _watch(self) -> None:
        """Kill the host if it is silent for too long; scheduled only while runs are in flight."""
        self._watchdog = None
        if not self._runs or self._disconnected.is_set():
            return
        left = self._heard_at + self._hang_timeout_s - self._loop.time()
        if self._loading is not None:  # loading has a limit of its own
            left = self._hang_timeout_s
        if left > 0:
            self._watchdog = self._loop.call_later(left, self._watch)
            return
        _log.warning(
            "killing the engine host of %s, silent for %g s", self.session, self._hang_timeout_s
        )
        self.kill("hung and was killed")

    async def _supervise(self, on_exit: Callable[[HostProcess], None]) -> None:
        """Own the process until it has exited, then end its pending runs."""
        output = asyncio.create_task(self._log_output())
        crashed: int | None = None
        try:
            await self._disconnected.wait()
            reason = f"the engine host of {self.session.engine!r} {await self._wait_exit()}"
            await output
            crashed = self._crashed_run()
        finally:
            output.cancel()
            self._arena.close()
            os.close(self._interrupt_writer)
        for variant, answer in self._orders.items():
            if not answer.done():
                blamed = variant == self._loading
                answer.set_exception(
                    self._load_death(f"{reason} while loading") if blamed else Unavailable(reason)
                )
        runs, self._runs = self._runs, {}
        for run_id, run in runs.items():
            fault = Fault.CRASHED if run_id == crashed else Fault.HOST_DIED
            run.on_ended(_host_died(run_id, reason, fault))
        self._complete_retirement()
        if not self._first_message.done():
            self._first_message.set_exception(self._death(f"{reason} while loading"))
        elif not self._closing:
            _log.warning("%s", reason)
            on_exit(self)

    def _death(self, reason: str) -> SynergaiError:
        """Return why a load failed during which the process died."""
        if self._closing:
            return Unavailable(reason)
        # Killed from outside, as by the kernel when memory is short, it may load another time.
        killed = self._process.returncode == -signal.SIGKILL
        return self._kill_error or (Unavailable if killed else LoadCrashed)(reason)

    def _load_death(self, reason: str) -> SynergaiError:
        """Return why the load of a further variant failed during which the process died."""
        error = self._death(reason)
        if isinstance(error, LoadCrashed) and self._runs and not self._loads_alone:
            return LoadSuspected(reason)
        return error

    def _crashed_run(self) -> int | None:
        """Return the run that named a variant and was computed when the process crashed.

        None if it was killed, or if a load beside the run may be the cause.
        """
        if self._loading is not None or not isinstance(self._death(""), LoadCrashed):
            return None
        return self._arena.computing

    async def _wait_exit(self) -> str:
        """Wait until the process has exited, and describe how."""
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                code = await self._process.wait()
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        if self._kill_reason:
            return self._kill_reason
        if code >= 0:
            return f"exited with code {code}"
        return f"died by signal {-code}"

    async def _log_output(self) -> None:
        """Log the output of the runtime until the process closes it."""
        reader = cast("asyncio.StreamReader", self._process.stdout)
        while chunk := await reader.read(_LOG_CHUNK_BYTES):
            for line in chunk.decode(errors="replace").splitlines():
                _log.info("[%s] %s", self.session.engine, line)


def _host_died(run_id: int, reason: str, fault: Fault = Fault.HOST_DIED) -> RunEnded:
    return RunEnded(run_id, Outcome.FAILED, fault=fault, detail=reason)

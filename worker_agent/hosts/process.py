"""Agent's side of one engine host: starts the process, and supervises it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, SynergaiError, Unavailable
from synergai.runtime.resources import forget_peak_rss, is_stopped
from synergai.runtime.tasks import TaskBag
from worker_agent.hosts.connection import RunningHost
from worker_agent.hosts.launch import Child, Launch
from worker_agent.hosts.loads import HostLoads, LoadCrashed
from worker_agent.hosts.memory import HostMemory
from worker_agent.ipc import (
    INTERRUPT,
    Arena,
    LoadFailed,
    LoadStarted,
    Message,
    Ready,
    StopRun,
    VariantUnloaded,
    slots_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from synergai.domain import Session
    from worker_agent.providers import ProviderChoice

HUNG_FACTOR: Final = 8.0
"""Multiple of the time of a query, as found when its engine was loaded, after which a run hangs."""
INTERRUPT_AFTER_S: Final = 0.01
"""An aborted run that has not ended after this time is interrupted in its current query."""

_log = logging.getLogger(__name__)


class HostProcess(RunningHost):
    """A child process with a loaded engine, and maybe further variants of it. Created by `start`.

    If the process dies or hangs, all pending runs end with ``HOST_DIED``; but the run of a variant
    that it computed when it crashed, with ``CRASHED``.
    """

    def __init__(
        self,
        session: Session,
        arena: Arena,
        hang_timeout_s: float,
        on_unusable: Callable[[str, str], None],
    ) -> None:
        super().__init__(session, arena, hang_timeout_s, on_unusable)
        self.ready: Ready
        # Until `start` returns: a host that waits for room serves nothing yet.
        self.is_loading = True
        self.was_suspended = False
        self._is_suspended = False
        self._arena = arena
        self._loads = HostLoads(self._connection.send, self.kill)
        # Whether something else had stopped it when its load was last looked at.
        self._was_stopped = False
        self._closing = False
        self._interrupt_writer: int
        self._child: Child
        self._memory: HostMemory
        self._supervising = TaskBag()

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

        `on_unusable` is called with a variant, and why it fails, or the engine with `provider`.
        """
        loop = asyncio.get_running_loop()
        memory = HostMemory() if memory is None else memory
        data_bytes = memory.data_limit_bytes(session.configuration.threads)
        if provider is not None and not provider.uses_threads:
            data_bytes = 0  # drivers of devices map much more memory than they use
        with Launch.prepare(models, session, cores, data_bytes, provider) as launch:
            child = await Child.start(launch, session.engine)
        host = cls(session, launch.arena, hang_timeout_s, on_unusable)
        host._interrupt_writer = launch.interrupt_writer
        host._child = child
        host._memory = memory
        try:
            await loop.create_connection(lambda: host._connection, sock=launch.agent_socket)
        except BaseException:
            launch.close()
            raise
        memory.hosts.add(host)
        host._supervising.start(host._supervise(on_exit))
        async with contextlib.AsyncExitStack() as on_failure:
            on_failure.push_async_callback(host.close)
            on_launched(host)
            host._begin_watch()
            host.ready = await host._loads.first(load_timeout_s)
            if child.kill_error is not None:  # it may not have exited yet
                raise child.kill_error
            memory.check_start(host)
            host.require_open()
            host._arena.grow(slots_for(host.ready.max_batch))
            on_failure.pop_all()
        host.is_loading = False
        return host

    async def load_variant(self, variant: str, timeout_s: float = 300.0) -> Ready:
        """Load another variant of the engine while queries of the loaded ones run.

        If the process dies, they are lost. A load beside them is then only suspected.
        """
        self.require_open()
        self._begin_watch()
        is_measured = forget_peak_rss(self.pid)
        ready = await self._loads.load(variant, timeout_s)
        if is_measured:  # else the peak may be that of queries before
            self._memory.check_load(self)
        self._arena.grow(slots_for(ready.max_batch))
        return ready

    def unload_variant(self, variant: str) -> asyncio.Future[Message]:
        """Free a variant without runs, while another one stays loaded; return the answer to come.

        The host answers once it has computed the runs that it has.
        """
        self.require_open()
        if not self._runs.by_id:
            self._connection.heard_at = self._loop.time()
        self._begin_watch()
        return self._loads.unload(variant)

    def require_open(self) -> None:
        """Raise Unavailable if the host accepts no runs."""
        if self.is_closed:
            raise Unavailable(f"the engine host of {self.session.engine!r} has exited")

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_idle(self) -> bool:
        """Whether no run is in flight, and no variant is being loaded."""
        return not self._runs.by_id and not self._loads

    def needs(self, variant: str) -> bool:
        return bool(self._loads) or self._runs.needs(variant)

    def stop_run(self, run_id: int, *, abort: bool = False) -> None:
        """Stop a run before its next query, or abort a query that runs; no-op if it has ended."""
        if run_id in self._runs.by_id:
            self._connection.send(StopRun(run_id))
            if abort:
                self._loop.call_later(INTERRUPT_AFTER_S, self._interrupt, run_id)

    def _interrupt(self, run_id: int) -> None:
        if run_id in self._runs.by_id and not self._connection.is_lost:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                os.write(self._interrupt_writer, INTERRUPT.pack(run_id))

    def kill(self, reason: str = "", error: SynergaiError | None = None) -> None:
        """Kill the process; its runs end with ``HOST_DIED`` and `reason` in the detail."""
        self._child.kill(reason, error)

    def suspend(self) -> bool:
        """Stop the process, while it loads, until `resume`; return whether it is stopped.

        Before it has bound the arena, the kernel would not yet kill it with this process.
        """
        if self._arena.closed or not self._arena.bound:
            return False
        self.was_suspended = self._is_suspended = True
        self._child.send_signal(signal.SIGSTOP)
        return True

    def resume(self) -> None:
        self._is_suspended = False
        self._child.send_signal(signal.SIGCONT)

    async def close(self) -> None:
        self._closing = True
        self._connection.abort()  # from now on `is_closed` is true
        if self._loads.is_starting:
            self.kill()  # it would notice the disconnection only once the engine is loaded
        await self._supervising.wait()

    # --- messages ---------------------------------------------------------------------------

    def _receive_other(self, message: Message) -> None:
        match message:
            case LoadStarted() | Ready() | LoadFailed() | VariantUnloaded():
                self._loads.receive(message)
            case _:
                raise InvalidInput(f"unexpected message from an engine host: {message}")

    def _reject(self) -> None:
        """Kill the host, which has sent a message that is not valid."""
        _log.exception("malformed message from the engine host of %s", self.session.engine)
        self.kill()

    def _watch(self) -> None:
        """Kill the host if it owes answers and is silent for too long, or stopped in a load."""
        self._watchdog = None
        runs, loads = self._runs.by_id, self._loads
        if self._connection.is_lost or not (runs or loads or loads.is_starting):
            return
        if loads.is_starting or loads.loading is not None:
            # A load may take long, and has a limit of its own.
            before = self._was_stopped
            self._was_stopped = not self._is_suspended and is_stopped(self.pid)
            limit_s = self._hang_timeout_s
            left = 0.0 if before and self._was_stopped else limit_s
        else:
            limit_s = max(self._hang_timeout_s, HUNG_FACTOR * self.ready.query_s)
            left = self._connection.heard_at + limit_s - self._loop.time()
        if left > 0:
            self._watchdog = self._loop.call_later(left, self._watch)
            return
        _log.warning("killing the engine host of %s, silent for %g s", self.session, limit_s)
        self.kill("hung and was killed")

    async def _supervise(self, on_exit: Callable[[HostProcess], None]) -> None:
        """Own the process until it has exited, then end its pending runs."""
        output = self._supervising.start(self._child.log_output())
        crashed: int | None = None
        try:
            await self._connection.lost.wait()
            if self._watchdog is not None:
                self._watchdog.cancel()
            reason = f"the engine host of {self.session.engine!r} {await self._child.wait_exit()}"
            await output
            crashed = self._crashed_run()
        finally:
            output.cancel()
            self._memory.hosts.discard(self)
            self._arena.close()
            os.close(self._interrupt_writer)
        error = self._death(f"{reason} while loading")
        self._loads.fail(reason, error, has_runs=bool(self._runs.by_id))
        self._runs.end_all(reason, crashed)
        self._complete_retirement()
        if not self.is_loading and not self._closing:
            _log.warning("%s", reason)
            on_exit(self)

    def _death(self, reason: str) -> SynergaiError:
        """Return why a load failed during which the process died."""
        if self._closing:
            return Unavailable(reason)
        return self._child.load_error(reason)

    def _crashed_run(self) -> int | None:
        """Return the run that named a variant and was computed when the process crashed.

        None if it was killed, or if a load may be to blame.
        """
        if self._loads.loading is not None or not isinstance(self._death(""), LoadCrashed):
            return None
        return self._arena.computing

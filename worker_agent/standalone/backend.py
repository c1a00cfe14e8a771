"""The agent behind the Open Inference Protocol.

It does no scheduling: requests run in order of arrival, in a resident session of the engine or else
with the most threads.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Final

from synergai.domain import EngineName, Fault, Outcome, Session
from synergai.errors import (
    Cancelled,
    DeadlineExceeded,
    EngineNotFound,
    EngineUnloaded,
    EngineUnusable,
    InvalidInput,
    ResponseTooLarge,
    SynergaiError,
    Unavailable,
)
from synergai.protocol.oip_server.statistics import EngineStatistics
from worker_agent.runner.work_item import WorkItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.domain import Configuration, Engine
    from synergai.protocol.request_codec import Buffer, RequestHeader
    from synergai.protocol.rpc import RawRequest
    from synergai.runtime.clock import Clock
    from worker_agent.hosts.pool import HostPool
    from worker_agent.ipc.frames import Tally
    from worker_agent.runner.runner import Runner

LOAD_TIMEOUT_S: Final = 300.0
"""Timeout of a load whose call has no deadline."""


class AgentRequest:
    """A request in flight; handler of its work item.

    Attributes:
        result: the serialised ``ModelInferResponse``, or the error for the client.
    """

    __slots__ = ("_arrived_at", "_clock", "_engine", "_runner", "_statistics", "_work", "result")

    def __init__(
        self,
        runner: Runner,
        session: Session,
        data: bytes,
        statistics: EngineStatistics,
        clock: Clock,
    ) -> None:
        self._runner = runner
        self._engine = session.engine
        self._statistics = statistics
        self._clock = clock
        self._arrived_at = clock.now()
        self._work = WorkItem(session=session, handler=self, requests=[data])
        self.result: asyncio.Future[Buffer] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        """Enqueue the request."""
        self._runner.add(self._work)

    def abandon(self) -> None:
        """Cancel the request, because its client is gone or has cancelled it."""
        if self.result.cancel():
            error = Cancelled("the request was cancelled")
            self._statistics.record_failure(error, self._clock.now() - self._arrived_at)
        self._runner.abandon(self._work)

    # --- worker_agent.runner.interfaces.WorkHandler -------------------------------------------

    def on_started(self, setup_s: float) -> None:
        """Ignore the end of the setup."""

    def on_progress(self, tally: Tally, responses: Sequence[bytes]) -> None:
        """Ignore progress, which a single query does not make."""

    def on_ended(
        self,
        outcome: Outcome,
        tally: Tally,
        responses: Sequence[bytes],
        fault: Fault = Fault.UNSPECIFIED,
        detail: str = "",
    ) -> None:
        """Complete the result with the response or the error."""
        if self.result.done():
            return
        now = self._clock.now()
        elapsed_s = now - self._arrived_at
        if outcome is Outcome.COMPLETED:
            compute_s = min(tally.compute_s, elapsed_s)
            self._statistics.record_compute(1, compute_s, now, tally.batch)
            # Transfer to the host overlaps with the queue, and counts as part of it.
            self._statistics.record_success(elapsed_s - compute_s, 0.0, compute_s)
            self.result.set_result(responses[0])
            return
        error = _error(self._engine, outcome, fault, detail)
        self._statistics.record_failure(error, elapsed_s)
        self.result.set_exception(error)
        # The waiting call may have been cancelled; mark the exception as retrieved.
        self.result.exception()


class AgentBackend:
    """Runs requests on this worker; implements ``InferenceBackend``.

    Statistics cover the requests of this server only, not the gateway's assignments. Likewise, an
    engine that is unloaded here is still available to the gateway.

    Args:
        runner: runs the requests.
        hosts: the pool of engine hosts.
        engines: engines of this worker.
        configurations: available configurations, by increasing number of threads.
        clock: clock of the statistics.
    """

    def __init__(
        self,
        runner: Runner,
        hosts: HostPool,
        engines: Mapping[EngineName, Engine],
        configurations: Sequence[Configuration],
        clock: Clock,
    ) -> None:
        self._runner = runner
        self._hosts = hosts
        self._engines = engines
        self._configurations = configurations
        self._clock = clock
        self._statistics: defaultdict[EngineName, EngineStatistics] = defaultdict(EngineStatistics)
        self._unloaded: set[EngineName] = set()
        self._draining = False

    def drain(self) -> None:
        """Refuse new requests."""
        self._draining = True

    def is_ready(self) -> bool:
        """Return whether requests are accepted."""
        return not self._draining

    def begin(
        self, raw: RawRequest[RequestHeader], _budget_s: float | None, _tenant: str
    ) -> AgentRequest:
        """Enqueue a request; its deadline and tenant are ignored.

        Raises:
            Unavailable: the agent is shutting down.
            NotFound, EngineUnusable: see `find_engine`.
        """
        if self._draining:
            raise Unavailable("this worker is shutting down")
        engine = self.find_engine(raw.parsed.message.model_name)
        statistics = self._statistics[engine.name]
        request = AgentRequest(
            self._runner, self._session(engine.name), raw.data, statistics, self._clock
        )
        request.start()
        return request

    async def wait_inspected(self, name: str, budget_s: float | None) -> None:
        """Return at once: all engines are inspected before the server starts."""

    def find_engine(self, name: str) -> Engine:
        """Return the engine in service under `name`.

        Raises:
            EngineNotFound: this worker does not have it.
            EngineUnusable: it is faulty or unloaded.
        """
        engine = self._usable_engine(name)
        if engine.name in self._unloaded:
            raise EngineUnloaded(name)
        return engine

    def engines_in_service(self) -> Iterable[EngineName]:
        """Return the names of the engines that accept requests, sorted."""
        return (
            name
            for name in self.known_engines()
            if not self._engines[name].fault and name not in self._unloaded
        )

    def known_engines(self) -> Iterable[EngineName]:
        """Return the names of all engines of this worker, sorted."""
        return sorted(self._engines)

    def state_out_of_service(self, name: EngineName) -> str:
        """Return whether the engine is being unloaded, or else unavailable."""
        if name in self._unloaded and self._resident_session(name) is not None:
            return "UNLOADING"
        return "UNAVAILABLE"

    def statistics(self, name: EngineName) -> EngineStatistics:
        """Return the statistics of an engine."""
        return self._statistics[name]

    async def load(self, name: str, budget_s: float | None) -> None:
        """Load an engine and put it in service.

        Raises:
            EngineNotFound: this worker does not have it.
            EngineUnusable: it is faulty.
            DeadlineExceeded: the budget ran out; loading continues.
        """
        engine = self._usable_engine(name)
        timeout_s = LOAD_TIMEOUT_S if budget_s is None else budget_s
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(self._hosts.load(self._session(engine.name)))
        except TimeoutError:
            raise DeadlineExceeded(
                f"engine {name!r} is still being loaded after {timeout_s:.3g} s; "
                "retry with a longer timeout"
            ) from None
        self._unloaded.discard(engine.name)

    async def unload(self, name: str) -> None:
        """Take an engine out of service, and unload it once idle.

        Raises:
            EngineNotFound: this worker does not have it.
        """
        engine = self._engine(name)
        self._unloaded.add(engine.name)
        self._hosts.retire(engine.name)

    def _session(self, engine: EngineName) -> Session:
        return self._resident_session(engine) or Session(engine, self._configurations[-1])

    def _resident_session(self, engine: EngineName) -> Session | None:
        sessions = (
            session for session in self._hosts.resident_sessions() if session.engine == engine
        )
        return next(sessions, None)

    def _engine(self, name: str) -> Engine:
        engine = self._engines.get(EngineName(name))
        if engine is None:
            raise EngineNotFound(name)
        return engine

    def _usable_engine(self, name: str) -> Engine:
        engine = self._engine(name)
        if engine.fault:
            raise EngineUnusable(engine.fault)
        return engine


def _error(engine: str, outcome: Outcome, fault: Fault, detail: str) -> SynergaiError:
    match outcome, fault:
        case Outcome.STOPPED, _:
            return Cancelled("the request was cancelled")
        case _, Fault.BAD_INPUT:
            return InvalidInput(detail)
        case _, Fault.RESPONSE_TOO_LARGE:
            return ResponseTooLarge(detail)
        case _, Fault.ENGINE_BROKEN:
            return EngineUnusable(detail)
        case _, Fault.UNKNOWN_ENGINE:
            return EngineNotFound(engine)
        case _:
            return Unavailable(detail)

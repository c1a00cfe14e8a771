"""The agent behind the Open Inference Protocol.

It does no scheduling: requests run in order of arrival, in a resident session of the engine or else
with the most threads.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from synergai.domain import Fault, Outcome, Session
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
    VersionNotFound,
)
from synergai.protocol.oip_server.statistics import EngineStatistics
from synergai.protocol.oip_server.variants import of_variant, with_variants
from synergai.versions import by_version, parse_version, split_version, versioned, versioned_variant
from worker_agent.runner.work_item import WorkItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from synergai.domain import Configuration, Engine, EngineName
    from synergai.protocol.request_codec import Buffer, RequestHeader
    from synergai.protocol.rpc import RawRequest
    from synergai.runtime.clock import Clock
    from worker_agent.hosts.pool import HostPool
    from worker_agent.ipc.frames import Tally
    from worker_agent.runner.interfaces import Failure
    from worker_agent.runner.runner import Runner

    _LoadKey: TypeAlias = tuple[EngineName, int, tuple[EngineName, ...]]

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
        statistics: Sequence[EngineStatistics],
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
            for statistics in self._statistics:
                statistics.record_failure(error, self._clock.now() - self._arrived_at)
        self._runner.abandon(self._work)

    # --- worker_agent.runner.interfaces.WorkHandler -------------------------------------------

    def on_started(self, setup_s: float) -> None:
        """Ignore the end of the setup."""

    def on_input_failed(self, query: int, failure: Failure) -> None:
        """Do nothing: a request has no inputs that arrive later."""

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
            for statistics in self._statistics:
                statistics.record_compute(1, compute_s, now, tally.batch)
                # Transfer to the host overlaps with the queue, and counts as part of it.
                statistics.record_success(elapsed_s - compute_s, 0.0, compute_s)
            self.result.set_result(responses[0])
            return
        error = _error(self._engine, outcome, fault, detail)
        for statistics in self._statistics:
            statistics.record_failure(error, elapsed_s)
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
        configurations: available configurations; the last one has the most threads.
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
        # By engine and variant; those of an engine under the empty one include its variants'.
        self._statistics: defaultdict[tuple[EngineName, str], EngineStatistics] = defaultdict(
            EngineStatistics
        )
        self._unloaded: set[EngineName] = set()
        # By engine to load, calls of `unload` before, and engines to put in service with it.
        self._loads: dict[_LoadKey, asyncio.Task[None]] = {}
        # Calls of `unload` so far, and requests in flight, by engine.
        self._unloads: Counter[EngineName] = Counter()
        self._in_flight: Counter[EngineName] = Counter()
        self._draining = False

    def drain(self) -> None:
        """Refuse new requests."""
        self._draining = True

    async def close(self) -> None:
        """Wait for no more loads."""
        loads = list(self._loads.values())
        for load in loads:
            load.cancel()
        await asyncio.gather(*loads, return_exceptions=True)

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
        message = raw.parsed.message
        engine = self.find_engine(message.model_name, message.model_version)
        session = self._session(engine)
        variants = dict.fromkeys(("", session.configuration.variant))
        statistics = [self._statistics[engine.name, variant] for variant in variants]
        request = AgentRequest(self._runner, session, raw.data, statistics, self._clock)
        request.start()
        self._in_flight[engine.name] += 1
        request.result.add_done_callback(partial(self._on_request_ended, engine.name))
        return request

    async def wait_inspected(self, name: str, version: str, budget_s: float | None) -> None:
        """Return at once: all engines are inspected before the server starts."""

    def find_engine(self, name: str, version: str) -> Engine:
        """Return a version of an engine in service: without a version, the highest usable one.

        Raises:
            NotFound: this worker does not have it, or not this variant.
            EngineUnusable: it is faulty or unloaded.
        """
        version, variant = parse_version(version)
        if version:
            engine = self._version(name, version)
        else:
            known = self._versions(name)
            engine = next((each for each in reversed(known) if self._serves(each)), known[-1])
        found = self._usable_engine(engine)
        if engine in self._unloaded:
            raise EngineUnloaded(engine)
        if not variant:
            return found
        if not found.has_variant(variant):
            versions = self.versions_in_service(name)
            raise VersionNotFound(name, versioned_variant(found.version, variant), versions)
        return of_variant(found, variant)

    def versions_in_service(self, name: str) -> Sequence[str]:
        """Return the versions of an engine that accept requests, each before its variants."""
        return with_variants(
            (split_version(each)[1], self._engines[each].variants)
            for each in self._versions(name)
            if self._serves(each)
        )

    def engines_in_service(self) -> Iterable[EngineName]:
        """Return the engines that accept requests, sorted by name and version."""
        return filter(self._serves, self.known_engines())

    def known_engines(self) -> Iterable[EngineName]:
        """Return all engines of this worker, sorted by name and version."""
        return sorted(self._engines, key=by_version)

    def state_out_of_service(self, name: EngineName) -> str:
        """Return whether the engine is being unloaded, or else unavailable."""
        if name in self._unloaded and self._resident_session(name) is not None:
            return "UNLOADING"
        return "UNAVAILABLE"

    def statistics(self, name: EngineName, variant: str = "") -> EngineStatistics:
        """Return the statistics of an engine, or of one of its variants."""
        return self._statistics[name, variant]

    async def load(self, name: str, budget_s: float | None) -> None:
        """Load an engine ``NAME/N``, or of ``NAME`` the highest usable version; put it in service.

        Of ``NAME``, all versions are put in service.

        Raises:
            NotFound: this worker does not have it.
            EngineUnusable: it is faulty, or was unloaded meanwhile.
            DeadlineExceeded: the budget ran out; loading continues.
        """
        selected = tuple(self._selected(name))
        usable = [each for each in selected if not self._engines[each].fault]
        engine = usable[-1] if usable else selected[-1]
        key = engine, self._unloads[engine], selected
        if (load := self._loads.get(key)) is None:
            load = self._loads[key] = asyncio.create_task(self._put_in_service(engine, selected))
            load.add_done_callback(partial(self._on_load_ended, key))
        timeout_s = LOAD_TIMEOUT_S if budget_s is None else budget_s
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(load)
        except TimeoutError:
            raise DeadlineExceeded(
                f"engine {name!r} is still being loaded after {timeout_s:.3g} s; "
                "retry with a longer timeout"
            ) from None

    async def unload(self, name: str) -> None:
        """Take an engine ``NAME``, or ``NAME/N``, out of service, and unload it once idle.

        Raises:
            NotFound: this worker does not have it.
        """
        for engine in self._selected(name):
            self._unloaded.add(engine)
            self._unloads[engine] += 1
            self._retire_if_idle(engine)

    async def _put_in_service(self, engine: EngineName, selected: Iterable[EngineName]) -> None:
        await self._make_resident(engine)
        self._unloaded.difference_update(selected)

    def _on_load_ended(self, key: _LoadKey, load: asyncio.Task[None]) -> None:
        del self._loads[key]
        if not load.cancelled():
            load.exception()  # avoids asyncio's warning if no caller is waiting

    async def _make_resident(self, name: EngineName) -> None:
        """Load an engine, and again if its files are replaced meanwhile."""
        unloads = self._unloads[name]
        while True:
            load = self._hosts.load(self._session(self._usable_engine(name)))
            await asyncio.wait([load])
            if not load.cancelled():
                load.result()
            if self._unloads[name] != unloads:
                raise EngineUnusable(f"engine {name!r} was unloaded meanwhile")
            if not load.cancelled():
                return

    def _on_request_ended(self, engine: EngineName, _result: object) -> None:
        self._in_flight[engine] -= 1
        if engine in self._unloaded:
            self._retire_if_idle(engine)

    def _retire_if_idle(self, engine: EngineName) -> None:
        if not self._in_flight[engine]:
            self._hosts.retire(engine)

    def _session(self, engine: Engine) -> Session:
        """Return the session for an engine: with variants, for the most accurate one.

        Of variants that have the same accuracy, or of which none is known, it is the first.
        """
        best = max(engine.variants, key=lambda variant: variant.accuracy, default=None)
        configuration = self._configurations[-1]
        if best is None:
            return self._resident_session(engine.name) or Session(engine.name, configuration)
        resident = self._resident_session(engine.name)
        if resident is not None:
            configuration = resident.configuration
        return Session(engine.name, replace(configuration, variant=best.name))

    def _resident_session(self, engine: EngineName) -> Session | None:
        sessions = (
            session for session in self._hosts.resident_sessions() if session.engine == engine
        )
        return next(sessions, None)

    def _versions(self, name: str) -> list[EngineName]:
        """Return the versions of an engine, in increasing order.

        Raises:
            EngineNotFound: this worker does not have it.
        """
        found = [each for each in self._engines if split_version(each)[0] == name]
        if not found:
            raise EngineNotFound(name)
        return sorted(found, key=by_version)

    def _version(self, name: str, version: str) -> EngineName:
        known, engine = self._versions(name), versioned(name, version)
        if engine not in known:
            raise VersionNotFound(name, version, [split_version(each)[1] for each in known])
        return engine

    def _selected(self, text: str) -> list[EngineName]:
        name, separator, version = text.partition("/")
        return [self._version(name, version)] if separator else self._versions(name)

    def _serves(self, engine: EngineName) -> bool:
        return not self._engines[engine].fault and engine not in self._unloaded

    def _usable_engine(self, name: EngineName) -> Engine:
        engine = self._engines[name]
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
        case _, Fault.ENGINE_BROKEN | Fault.CONFIGURATION_UNUSABLE:
            return EngineUnusable(detail)
        case _, Fault.UNKNOWN_ENGINE:
            return EngineNotFound(engine)
        case _:
            return Unavailable(detail)

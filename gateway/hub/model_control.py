"""Loading and unloading of engines on client request, across the fleet.

Loading makes a session of the engine resident on every worker that has it, before any request.
Unloading takes the engine out of service: accepted requests and jobs still complete, new ones are
refused, and workers drop the sessions once nothing runs on them.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from synergai.domain import Configuration, EngineName, Session, WorkerId
from synergai.errors import (
    DeadlineExceeded,
    EnginePending,
    EngineUnusable,
    SynergaiError,
    Unavailable,
)
from synergai.v1 import hub_pb2
from synergai.wire.converters import session_to_proto

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker
    from gateway.journal.journal import Journal
    from synergai.profiles.dictionary import ConfigurationDictionary

_log = logging.getLogger(__name__)

LOAD_WITHIN_S: Final = 300.0
"""Timeout of calls without a deadline, in seconds; equal to the agents' timeout for a host."""


@dataclass(slots=True, eq=False)
class _Load:
    """An engine being loaded; continues even if all callers have timed out.

    Attributes:
        done: result is set once a worker is ready, an error once none can be; the result is itself
            a future, done once the journal has recorded that the engine is in service.
    """

    pending: set[WorkerId]
    done: asyncio.Future[asyncio.Future[None]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ModelControl:
    """Loader and unloader of engines."""

    def __init__(
        self,
        workers: Mapping[WorkerId, ConnectedWorker],
        catalogue: Catalogue,
        dictionary: ConfigurationDictionary,
        journal: Journal,
    ) -> None:
        self._workers = workers
        self._catalogue = catalogue
        self._dictionary = dictionary
        self._journal = journal
        self._loads: dict[EngineName, _Load] = {}

    # --- client requests --------------------------------------------------------------------

    async def load(
        self, name: str, on: Collection[str] = (), budget_s: float | None = None
    ) -> None:
        """Load an engine and put it into service; return when the first worker is ready.

        Workers try again to load one that is faulty on all of them: the fault may be of the past.

        Args:
            on: the workers that are to load it; by default, all that have it.
        """
        within_s = LOAD_WITHIN_S if budget_s is None else budget_s
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        load: _Load | None = None
        while load is None:
            await self._catalogue.wait_inspected(name, deadline - loop.time())
            with suppress(EnginePending):  # again, by the time this continues
                load = self._find_and_load(name, on)
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(await asyncio.shield(load.done))
        except TimeoutError:
            raise DeadlineExceeded(
                f"engine {name!r} is still being loaded after {within_s:.3g} s; "
                "retry with a longer timeout"
            ) from None

    async def load_any(self, engines: Sequence[EngineName], budget_s: float | None = None) -> None:
        """Load versions of an engine like `load`; those that cannot run now serve once they can."""
        usable = [each for each in engines if self._catalogue.whole(each) is not None]
        loading = usable or engines[-1:]
        loads = (self.load(engine, budget_s=budget_s) for engine in loading)
        results = await asyncio.gather(*loads, return_exceptions=True)
        failed = {each: error for each, error in zip(loading, results, strict=True) if error}
        stay = [each for each in failed if each in self._catalogue.unloaded]
        if stay or len(failed) == len(loading):
            raise failed[(stay or loading)[-1]]
        for engine in [each for each in engines if each in self._catalogue.unloaded]:
            self._catalogue.load(engine)
            await self._journal.set_unloaded(engine, unloaded=False)

    async def unload(self, name: str) -> None:
        """Take an engine out of service, durably; idempotent."""
        engine = self._catalogue.unload(name)
        if engine in self._loads:
            self._finish_load(
                engine, EngineUnusable(f"engine {name!r} was unloaded during its load")
            )
        for worker in self._workers.values():
            self.enforce_unloads(worker)
        await self._journal.set_unloaded(engine, unloaded=True)
        _log.info("engine %s is unloaded", engine)

    def is_loading(self, name: EngineName) -> bool:
        """Whether the engine is being loaded and no worker is ready yet."""
        return name in self._loads

    def is_resident(self, name: EngineName) -> bool:
        return any(
            session.engine == name
            for worker in self._workers.values()
            for session in worker.sessions
        )

    # --- worker events ----------------------------------------------------------------------

    def on_session_changed(
        self, worker: ConnectedWorker, session: Session, *, resident: bool, fault: str = ""
    ) -> None:
        engine = session.engine
        if resident:
            if engine in self._loads and engine in worker.usable_engines:
                self._finish_load(engine)
            self.enforce_unloads(worker)
        elif fault:
            if session in worker.unusable and self._load_otherwise(worker, engine):
                return
            text = f"engine {engine!r} was not loaded on worker {worker.id!r}: {fault}"
            self._on_load_failed(worker, engine, EngineUnusable(text))

    def on_worker_left(self, worker: ConnectedWorker) -> None:
        for engine in list(self._loads):
            text = f"worker {worker.id!r} left while loading engine {engine!r}"
            self._on_load_failed(worker, engine, Unavailable(text))

    def enforce_unloads(self, worker: ConnectedWorker) -> None:
        """Order a worker to drop its sessions of unloaded engines; it keeps those in use."""
        if not self._catalogue.unloaded:
            return
        for session in worker.sessions:
            if session.engine in self._catalogue.unloaded:
                order = hub_pb2.UnloadEngine(session=session_to_proto(session))
                worker.control.put(hub_pb2.GatewayControl(unload=order))

    # --- internals --------------------------------------------------------------------------

    def _find_and_load(self, name: str, on: Collection[str]) -> _Load:
        able = [
            worker
            for worker in self._workers.values()
            if not worker.draining and (not on or worker.id in on)
        ]
        try:
            return self._start_load(self._catalogue.find_usable(name).name, able)
        except EngineUnusable:
            engine = EngineName(name)
            workers = [
                each for each in able if engine in each.offered and each.offered[engine].fault
            ]
            if not workers:
                raise
        return self._order_loads(engine, workers)

    def _start_load(self, engine: EngineName, able: Iterable[ConnectedWorker]) -> _Load:
        """Order the workers with the engine to load it; finish at once if one has a session."""
        workers = [worker for worker in able if engine in worker.usable_engines]
        if not workers:
            raise Unavailable(f"all workers that have engine {engine!r} are joining or draining")
        lacking = [
            worker
            for worker in workers
            if all(session.engine != engine for session in worker.sessions)
        ]
        load = self._order_loads(engine, lacking)
        if len(lacking) < len(workers):
            self._finish_load(engine)
        return load

    def _order_loads(self, engine: EngineName, workers: Iterable[ConnectedWorker]) -> _Load:
        """Order workers to load an engine, except for those that are loading it."""
        load = self._loads.setdefault(engine, _Load(set()))
        for worker in workers:
            if worker.id not in load.pending:
                load.pending.add(worker.id)
                self._order_load(worker, engine)
        return load

    def _order_load(self, worker: ConnectedWorker, engine: EngineName) -> None:
        session = Session(engine, self._fastest_configuration(engine, worker))
        order = hub_pb2.LoadEngine(session=session_to_proto(session))
        worker.control.put(hub_pb2.GatewayControl(load=order))

    def _load_otherwise(self, worker: ConnectedWorker, engine: EngineName) -> bool:
        """Load in another configuration on a worker that cannot in one; return whether it may."""
        load = self._loads.get(engine)
        if load is None or worker.id not in load.pending or not worker.usable(engine):
            return False
        self._order_load(worker, engine)
        return True

    def _on_load_failed(
        self, worker: ConnectedWorker, engine: EngineName, error: SynergaiError
    ) -> None:
        """Handle a worker's failure to load; the last pending one fails the whole load."""
        load = self._loads.get(engine)
        if load is not None and worker.id in load.pending:
            load.pending.remove(worker.id)
            if not load.pending:
                self._finish_load(engine, error)

    def _finish_load(self, engine: EngineName, error: SynergaiError | None = None) -> None:
        """Complete a load: put the engine into service, or pass `error` to the callers."""
        done = self._loads.pop(engine).done
        if error is None:
            self._catalogue.load(engine)
            done.set_result(self._journal.set_unloaded(engine, unloaded=False))
            _log.info("engine %s is loaded", engine)
        else:
            done.set_exception(error)
            done.exception()  # avoids asyncio's warning if no caller is waiting

    def _fastest_configuration(self, engine: EngineName, worker: ConnectedWorker) -> Configuration:
        """Return the profiled configuration with the highest throughput, or the last configuration.

        Limited to the current power mode: only the scheduler switches modes.
        """
        row = self._dictionary.row(engine, worker.worker_class)
        usable = worker.usable(engine) or list(worker.configurations)
        in_current_mode = [c for c in usable if c.power_mode in ("", worker.power.mode)]
        candidates = in_current_mode or usable
        profiled = [configuration for configuration in candidates if configuration in row]
        if not profiled:
            return candidates[-1]
        return max(profiled, key=lambda configuration: row[configuration].qps)

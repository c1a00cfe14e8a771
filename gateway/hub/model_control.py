"""Engines loaded and unloaded on a client's word, over the whole fleet.

Loading brings a session of the engine into memory on every worker that has it, ahead of the
requests. Unloading takes the engine out of service: what was accepted before is still done, what
comes later is refused, and sessions leave the workers' memory as soon as nothing runs on them.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from synergai.domain import EngineName, Session
from synergai.errors import DeadlineExceeded, EngineUnusable, SynergaiError, Unavailable
from synergai.protocol.converters import session_to_proto
from synergai.v1 import hub_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker
    from synergai.domain import Configuration, WorkerId
    from synergai.profiles.dictionary import ConfigurationDictionary

_log = logging.getLogger(__name__)

LOAD_WITHIN_S: Final = 300.0
"""How long loading may take where the call has no deadline; agents give a host as long."""


class Marks(Protocol):
    """What remembers over restarts which engines are unloaded."""

    def mark(self, engine: EngineName, *, unloaded: bool) -> asyncio.Future[None]:
        """Remember it; done once that is durable."""


@dataclass(slots=True, eq=False)
class _Load:
    """An engine that is being loaded; it goes on though nobody waits for it any more.

    Attributes:
        asked: workers that have not answered yet.
        done: set once one is ready, or none can be any more; to what is done in turn once it is
            durable that the engine is in service.
    """

    asked: set[WorkerId]
    done: asyncio.Future[asyncio.Future[None]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class ModelControl:
    """Loads and unloads engines.

    Args:
        dispatcher: knows the workers.
        catalogue: is told what is in service.
        dictionary: tells in which configuration an engine is fastest.
        marks: is told what is unloaded.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        catalogue: Catalogue,
        dictionary: ConfigurationDictionary,
        marks: Marks,
    ) -> None:
        self._dispatcher = dispatcher
        self._catalogue = catalogue
        self._dictionary = dictionary
        self._marks = marks
        self._loads: dict[EngineName, _Load] = {}

    # --- what clients ask ---------------------------------------------------------------------

    async def load(self, name: str, budget_s: float | None = None) -> None:
        """Have an engine loaded, and in service; return when a first worker is ready.

        Args:
            name: the engine's.
            budget_s: what is left of the call's deadline; None if it has none.

        Raises:
            EngineNotFound: nobody ever had it.
            Unavailable: nobody has it now, or whoever had it left.
            EngineUnusable: no worker can load it; or it was unloaded meanwhile.
            DeadlineExceeded: loading takes longer than the call may.
        """
        engine = self._catalogue.present(name).name
        load = self._loads.get(engine) or self._begin(engine)
        within_s = LOAD_WITHIN_S if budget_s is None else budget_s
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(await asyncio.shield(load.done))
        except TimeoutError:
            raise DeadlineExceeded(
                f"engine {name!r} is still being loaded after {within_s:.3g} s; "
                "ask again with more time"
            ) from None

    async def unload(self, name: str) -> None:
        """Take an engine out of service, durably; again is harmless.

        Raises:
            EngineNotFound: nobody ever had it.
        """
        engine = self._catalogue.unload(name)
        if engine in self._loads:
            self._end(engine, EngineUnusable(f"engine {name!r} was unloaded meanwhile"))
        for worker in self._dispatcher.workers():
            self.remind(worker)
        await self._marks.mark(engine, unloaded=True)
        _log.info("engine %s is unloaded", engine)

    def is_loading(self, name: EngineName) -> bool:
        """Workers are loading the engine, and none of them is ready."""
        return name in self._loads

    def is_resident(self, name: EngineName) -> bool:
        """Some worker has a session of the engine in memory."""
        return any(
            session.engine == name
            for worker in self._dispatcher.workers()
            for session in worker.sessions
        )

    # --- what the hub tells ---------------------------------------------------------------------

    def session_changed(
        self, worker: ConnectedWorker, session: Session, *, resident: bool, fault: str = ""
    ) -> None:
        """A session came, left, or could not be loaded, which `fault` then explains."""
        engine = session.engine
        if resident:
            if engine in self._loads:
                self._end(engine)
            self.remind(worker)
        elif fault:
            text = f"engine {engine!r} was not loaded on worker {worker.id!r}: {fault}"
            self._give_up_on(worker, engine, EngineUnusable(text))

    def left(self, worker: ConnectedWorker) -> None:
        """A worker is gone."""
        for engine in list(self._loads):
            text = f"worker {worker.id!r} left while loading engine {engine!r}"
            self._give_up_on(worker, engine, Unavailable(text))

    def remind(self, worker: ConnectedWorker) -> None:
        """Have a worker drop what is unloaded; it does not while something runs on it."""
        if not self._catalogue.unloaded:
            return
        for session in worker.sessions:
            if session.engine in self._catalogue.unloaded:
                order = hub_pb2.UnloadEngine(session=session_to_proto(session))
                worker.control.put(hub_pb2.GatewayControl(unload=order))

    # --- inside ---------------------------------------------------------------------------------

    def _begin(self, engine: EngineName) -> _Load:
        """Have every worker that has the engine load it; over at once if one has done so."""
        workers = [worker for worker in self._workers(engine) if not worker.draining]
        if not workers:
            raise Unavailable(f"all workers that have engine {engine!r} are leaving")
        load = self._loads[engine] = _Load({worker.id for worker in workers})
        ready = False
        for worker in workers:
            if any(session.engine == engine for session in worker.sessions):
                ready = True
                continue
            session = Session(engine, self._fastest(engine, worker))
            order = hub_pb2.LoadEngine(session=session_to_proto(session))
            worker.control.put(hub_pb2.GatewayControl(load=order))
        if ready:
            self._end(engine)
        return load

    def _give_up_on(
        self, worker: ConnectedWorker, engine: EngineName, error: SynergaiError
    ) -> None:
        """A worker will not load the engine; with the last one that was asked, nobody will."""
        load = self._loads.get(engine)
        if load is not None and worker.id in load.asked:
            load.asked.remove(worker.id)
            if not load.asked:
                self._end(engine, error)

    def _end(self, engine: EngineName, error: SynergaiError | None = None) -> None:
        """Loading is over: the engine is in service, or stays as it was and whoever waits knows."""
        done = self._loads.pop(engine).done
        if error is None:
            self._catalogue.load(engine)
            done.set_result(self._marks.mark(engine, unloaded=False))
            _log.info("engine %s is loaded", engine)
        else:
            done.set_exception(error)
            done.exception()  # nobody may be waiting, and asyncio must not complain of that

    def _workers(self, engine: EngineName) -> Iterator[ConnectedWorker]:
        return (w for w in self._dispatcher.workers() if engine in w.usable_engines)

    def _fastest(self, engine: EngineName, worker: ConnectedWorker) -> Configuration:
        """The configuration with the highest rate; where none is known, the worker's last one.

        Only in the power mode that is in force: work decides on switching, not loading ahead.
        """
        row = self._dictionary.row(engine, worker.worker_class)
        in_force = [c for c in worker.configurations if c.power_mode in ("", worker.power.mode)]
        at_hand = in_force or worker.configurations
        known = [configuration for configuration in at_hand if configuration in row]
        if not known:
            return at_hand[-1]
        return max(known, key=lambda configuration: row[configuration].qps)

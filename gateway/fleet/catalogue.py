"""Which engine looks how, over all connected workers."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from synergai.domain import EngineName
from synergai.errors import EngineNotFound, EngineUnloaded, EngineUnusable, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from synergai.domain import Engine, WorkerId


class Catalogue:
    """Which engine looks how, over all connected workers.

    The first worker that brings a usable engine says what its inputs and outputs are; one that
    says something else is not believed as long as the first is there.

    Args:
        known: engines that were here before this gateway started.
        unloaded: those of them that were out of service.
    """

    def __init__(
        self, known: Iterable[EngineName] = (), unloaded: Iterable[EngineName] = ()
    ) -> None:
        self._known = set(known)
        self._said: dict[EngineName, dict[WorkerId, Engine]] = {}
        self._usable: dict[EngineName, Engine] = {}
        self._unloaded = set(unloaded)
        self._in_service: dict[EngineName, Engine] = {}

    def find(self, name: str) -> Engine:
        """The engine of this name, served by some worker now.

        Raises:
            EngineNotFound: nobody ever had it.
            Unavailable: nobody has it now.
            EngineUnusable: nobody who has it can run it, or it is unloaded.
        """
        engine = self._in_service.get(EngineName(name))
        if engine is not None:
            return engine
        if name in self._unloaded:
            raise EngineUnloaded(name)
        return self.present(name)

    def present(self, name: str) -> Engine:
        """The engine of this name, which some worker could run now, unloaded or not.

        Raises:
            EngineNotFound: nobody ever had it.
            Unavailable: nobody has it now.
            EngineUnusable: nobody who has it can run it.
        """
        engine = self._usable.get(EngineName(name))
        if engine is not None:
            return engine
        said = self._said.get(EngineName(name))
        if said:
            fault = next(iter(said.values())).fault
            raise EngineUnusable(f"engine {name!r} cannot be used: {fault}")
        if name in self._known:
            raise Unavailable(f"no worker that serves engine {name!r} is connected just now")
        raise EngineNotFound(name)

    def check_known(self, name: str) -> None:
        """Check that jobs of this engine may be accepted: it can be run now, or could once.

        Raises:
            EngineNotFound: nobody ever had it.
            EngineUnusable: nobody who has it can run it, or it is unloaded.
        """
        try:
            self.find(name)
        except Unavailable:
            return

    def learn(self, names: Iterable[EngineName]) -> None:
        """Take these engines for known, whether or not somebody serves them."""
        self._known.update(names)

    def known(self) -> Iterator[EngineName]:
        """Every engine that is here or was, by name."""
        return iter(sorted(self._known))

    def in_service(self) -> Iterator[EngineName]:
        """The engines that requests can be sent to now, by name."""
        return iter(sorted(self._in_service))

    @property
    def unloaded(self) -> Set[EngineName]:
        """The engines that are out of service."""
        return self._unloaded

    def unload(self, name: str) -> EngineName:
        """Take an engine out of service until it is loaded; return its name.

        Raises:
            EngineNotFound: nobody ever had it.
        """
        if name not in self._known:
            raise EngineNotFound(name)
        engine = EngineName(name)
        self._unloaded.add(engine)
        self._in_service.pop(engine, None)
        return engine

    def load(self, name: EngineName) -> None:
        """Take an engine back into service."""
        self._unloaded.discard(name)
        if name in self._usable:
            self._in_service[name] = self._usable[name]

    def put(self, worker_id: WorkerId, engine: Engine) -> dict[WorkerId, Engine]:
        """Take in what a worker says of an engine; what it is taken for now on every worker."""
        said = self._said.setdefault(engine.name, {})
        said.pop(worker_id, None)
        said[worker_id] = engine
        self._known.add(engine.name)
        return self._believed(engine.name)

    def drop(self, worker_id: WorkerId) -> list[dict[WorkerId, Engine]]:
        """Forget what a worker had; what its engines are taken for now on those that are left."""
        names = [name for name, said in self._said.items() if worker_id in said]
        for name in names:
            del self._said[name][worker_id]
        return [self._believed(name) for name in names]

    def _believed(self, name: EngineName) -> dict[WorkerId, Engine]:
        said = self._said[name]
        usable = ((worker_id, engine) for worker_id, engine in said.items() if not engine.fault)
        witness, engine = next(usable, (None, None))
        if engine is None:
            self._usable.pop(name, None)
            self._in_service.pop(name, None)
        else:
            self._usable[name] = engine
            if name not in self._unloaded:
                self._in_service[name] = engine
        if not said:
            del self._said[name]
        fault = f"it differs from the engine of this name on worker {witness!r}"
        return {
            worker_id: one
            if engine is None or one.fault or _alike(engine, one)
            else replace(one, fault=fault)
            for worker_id, one in said.items()
        }


_seen: Final = attrgetter("version", "inputs", "outputs", "preprocess", "postprocess")


def _alike(one: Engine, other: Engine) -> bool:
    """Clients see no difference between them; backend and file may be others."""
    return _seen(one) == _seen(other)

"""Catalogue of the engines served by the connected workers."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.domain import EngineName
from synergai.errors import (
    DeadlineExceeded,
    EngineNotFound,
    EnginePending,
    EngineUnloaded,
    EngineUnusable,
    SynergaiError,
    Unavailable,
)
from synergai.models.warmup import ADVICE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from synergai.domain import Engine, WorkerId

_MAX_COMPARED: Final = 200
_MAX_COMPARED_LENGTH: Final = 100
"""Names, and characters of a name, that are compared to suggest engines for an unknown one."""


class Catalogue:
    """Engines of all connected workers, by name.

    The first worker with a usable engine of a name defines its interface. While that worker is
    connected, engines of the same name with another interface are marked faulty.

    Args:
        known: engines known from earlier runs of the gateway.
        unloaded: those of them that were unloaded.
    """

    def __init__(
        self, known: Iterable[EngineName] = (), unloaded: Iterable[EngineName] = ()
    ) -> None:
        self._known = set(known)
        self._reported: dict[EngineName, dict[WorkerId, Engine]] = {}
        self._usable: dict[EngineName, Engine] = {}
        self._unloaded = set(unloaded)
        self._in_service: dict[EngineName, Engine] = {}
        self._inspected: dict[EngineName, asyncio.Future[None]] = {}

    def find(self, name: str) -> Engine:
        """Return the engine of this name if it is in service.

        Raises:
            EngineNotFound: no worker has ever had it.
            Unavailable: no connected worker has it.
            EnginePending: it is still being inspected by the workers that have it.
            EngineUnusable: it is faulty on every worker that has it, or it is unloaded.
        """
        engine = self._in_service.get(EngineName(name))
        if engine is not None:
            return engine
        if name in self._unloaded:
            raise EngineUnloaded(name)
        return self.find_usable(name)

    def find_usable(self, name: str) -> Engine:
        """Return the engine of this name if a connected worker can run it, unloaded or not.

        Raises:
            EngineNotFound: no worker has ever had it.
            Unavailable: no connected worker has it.
            EnginePending: it is still being inspected by the workers that have it.
            EngineUnusable: it is faulty on every worker that has it.
        """
        engine = self._usable.get(EngineName(name))
        if engine is not None:
            return engine
        reported = self._reported.get(EngineName(name))
        if reported:
            if any(engine.pending for engine in reported.values()):
                raise EnginePending(name)
            fault = next(iter(reported.values())).fault
            raise EngineUnusable(f"engine {name!r} cannot be used: {fault}")
        if name in self._known:
            raise Unavailable(f"no worker that serves engine {name!r} is connected")
        raise self._not_found(name)

    async def wait_inspected(self, name: str, timeout_s: float | None = None) -> None:
        """Wait until an engine is not pending any more; see `find_usable`.

        Args:
            name: name of the engine, known or not.
            timeout_s: seconds to wait; None means no limit.

        Raises:
            DeadlineExceeded: the timeout expired.
        """
        try:
            self.find_usable(name)
        except EnginePending:
            pass
        except SynergaiError:
            return  # the caller finds out by itself
        else:
            return
        loop = asyncio.get_running_loop()
        inspected = self._inspected.setdefault(EngineName(name), loop.create_future())
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(inspected)
        except TimeoutError:
            raise DeadlineExceeded(
                f"engine {name!r} was still being inspected at the deadline"
            ) from None

    def check_known(self, name: str) -> None:
        """Check that jobs for an engine may be accepted: it can run now or after a reconnection.

        Raises:
            EngineNotFound: no worker has ever had it.
            EngineUnusable: it is faulty on every worker that has it, or it is unloaded.
        """
        try:
            self.find(name)
        except Unavailable:
            return

    def check_samples(self, name: str) -> None:
        """Check that a job for a known engine has samples to draw its queries from.

        An engine that no connected worker has, or that one is still inspecting, passes.

        Raises:
            EngineUnusable: every worker that has it found no input that it accepts.
        """
        reported = self._reported.get(EngineName(name), {}).values()
        without = [each for each in reported if each.unverified and not each.samples]
        if reported and len(without) == len(reported):
            raise EngineUnusable(f"engine {name!r} is unverified and has no samples; {ADVICE}")

    def _not_found(self, name: str) -> EngineNotFound:
        # Bounded: any client may ask for any name.
        candidates = self.known_engines() if len(name) <= _MAX_COMPARED_LENGTH else ()
        return EngineNotFound(name, get_close_matches(name, islice(candidates, _MAX_COMPARED)))

    def add_known(self, names: Iterable[EngineName]) -> None:
        """Add engines to the known ones, served or not."""
        self._known.update(names)

    def known_engines(self) -> Iterator[EngineName]:
        """Return the names of all known engines, sorted."""
        return iter(sorted(self._known))

    def in_service(self) -> Iterator[EngineName]:
        """Return the names of the engines that accept requests, sorted."""
        return iter(sorted(self._in_service))

    @property
    def unloaded(self) -> Set[EngineName]:
        """Names of the unloaded engines."""
        return self._unloaded

    def unload(self, name: str) -> EngineName:
        """Take an engine out of service until `load`; return its name.

        Raises:
            EngineNotFound: no worker has ever had it.
        """
        if name not in self._known:
            raise self._not_found(name)
        engine = EngineName(name)
        self._unloaded.add(engine)
        self._in_service.pop(engine, None)
        return engine

    def load(self, name: EngineName) -> None:
        """Put an engine back into service."""
        self._unloaded.discard(name)
        if name in self._usable:
            self._in_service[name] = self._usable[name]

    def update(self, worker_id: WorkerId, engine: Engine) -> dict[WorkerId, Engine]:
        """Record a worker's engine; return the resolved engine per worker."""
        reported = self._reported.setdefault(engine.name, {})
        reported.pop(worker_id, None)
        reported[worker_id] = engine
        self._known.add(engine.name)
        return self._resolve(engine.name)

    def withdraw(self, worker_id: WorkerId, name: EngineName) -> dict[WorkerId, Engine]:
        """Remove one engine of a worker; return the resolved engine per remaining worker."""
        reported = self._reported.get(name, {})
        if reported.pop(worker_id, None) is None:
            return {}
        return self._resolve(name)

    def remove_worker(self, worker_id: WorkerId) -> list[dict[WorkerId, Engine]]:
        """Remove a worker's engines; return each resolved engine per remaining worker."""
        names = [name for name, reported in self._reported.items() if worker_id in reported]
        for name in names:
            del self._reported[name][worker_id]
        return [self._resolve(name) for name in names]

    def _resolve(self, name: EngineName) -> dict[WorkerId, Engine]:
        reported = self._reported[name]
        usable = ((worker_id, engine) for worker_id, engine in reported.items() if not engine.fault)
        reference_worker, reference = next(usable, (None, None))
        if reference is None:
            self._usable.pop(name, None)
            self._in_service.pop(name, None)
        else:
            self._usable[name] = reference
            if name not in self._unloaded:
                self._in_service[name] = reference
        if reference is not None or not any(engine.pending for engine in reported.values()):
            inspected = self._inspected.pop(name, None)
            if inspected is not None:
                inspected.set_result(None)
        if not reported:
            del self._reported[name]
        fault = f"it differs from the engine of this name on worker {reference_worker!r}"
        return {
            worker_id: engine
            if reference is None or engine.fault or _same_interface(reference, engine)
            else replace(engine, fault=fault)
            for worker_id, engine in reported.items()
        }


_interface: Final = attrgetter("version", "inputs", "outputs", "preprocess", "postprocess")


def _same_interface(one: Engine, other: Engine) -> bool:
    """Whether both look the same to clients; backend and model file may differ."""
    return _interface(one) == _interface(other)

"""Catalogue of the engines served by the connected workers.

Versions of an engine are engines of their own here; see `gateway.fleet.versions`.
"""

from __future__ import annotations

import asyncio
from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from gateway.fleet.descriptions import (
    CommittedDescription,
    EngineConflict,
    EngineOffers,
    KnownEngines,
)
from gateway.fleet.stages import EngineInStages, StageChains
from synergai.domain import REMOVED, Engine, EngineName, Variant, WorkerId
from synergai.errors import (
    DeadlineExceeded,
    EngineNotFound,
    EnginePending,
    EngineUnloaded,
    EngineUnserved,
    EngineUnusable,
    SynergaiError,
    Unavailable,
)
from synergai.models.definition import ADVICE
from synergai.names import by_version, engine_of_stage, is_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set

MAX_ABSENT: Final = 20_000
"""Engines without a worker that are remembered. Any agent may make up names."""


class Catalogue:
    """Engines of all connected workers, by name and version.

    One description of each name and version is in service. It is

    1. that of the version in the store, if there is one that a worker has;
    2. otherwise, the first one that a client has asked for, which is then *committed*: it stays,
       across restarts too, until the workers that serve it offer another one;
    3. until a client has asked, the one of the worker that has been connected the longest.

    A worker that offers another one does not serve the engine, which is a conflict. The file of
    each variant is compared on its own: a worker with another one serves the rest.

    Args:
        worker_wait_s: longest wait for a worker that serves a known engine; 0 for none.
        stored: returns the files of a version that was pushed into the store.
        model: returns the digest of a model that the gateway can cut; empty if it has none.
        suggests: whether the current caller may be told of an engine when it asks for an unknown
            one.

    Attributes:
        stages: the stages of engines, and the chains that they make up.
        unloaded: engines that are out of service until they are loaded.
        too_large: engines that no worker can run, some of them for want of memory.
        on_service_changed: called with each engine that becomes known, or whose workers change.
        deploys: returns whether the gateway deploys an engine in stages, or is about to.
    """

    def __init__(
        self,
        known: Iterable[EngineName] = (),
        unloaded: Iterable[EngineName] = (),
        committed: Mapping[EngineName, CommittedDescription] | None = None,
        on_commit: Callable[[EngineName, CommittedDescription], object] = lambda *_: None,
        suggests: Callable[[str], bool] = lambda _: True,
        stored: Callable[[EngineName], Collection[str]] = lambda _: (),
        model: Callable[[EngineName], str] = lambda _: "",
        worker_wait_s: float = 0.0,
    ) -> None:
        self.on_service_changed: Callable[[EngineName], object] = lambda _: None
        self.deploys: Callable[[EngineName], bool] = lambda _: False
        self._known = KnownEngines(suggests)
        known = set(known)
        self.add_known(known | set(map(engine_of_stage, known)))
        # Engines with an offer or a committed description.
        self._offers = {name: EngineOffers(name, each) for name, each in (committed or {}).items()}
        self._on_commit = on_commit
        self._stored = stored
        self._model = model
        self._worker_wait_s = worker_wait_s
        self._usable: dict[EngineName, Engine] = {}
        self.unloaded = set(unloaded)
        self._in_service: dict[EngineName, Engine] = {}
        self.stages = StageChains(self._in_service)
        self.too_large: set[EngineName] = set()
        self._inspected: dict[EngineName, asyncio.Future[None]] = {}

    def find(self, name: str) -> Engine:
        """Return the engine of this name if it is in service, and establish its description."""
        engine = self._in_service.get(EngineName(name))
        if engine is not None:
            self._on_asked(engine.name)
            return engine
        if name in self.unloaded:
            raise EngineUnloaded(name)
        return self.find_usable(name)

    def serves(self, engine: EngineName) -> bool:
        """Return whether an engine accepts requests."""
        return engine in self._in_service

    def is_staged(self, engine: EngineName) -> bool:
        """Return whether an engine that no worker has whole accepts requests in stages."""
        return engine not in self.unloaded and bool(self.stages.fewest(engine))

    def answers(self, engine: EngineName) -> bool:
        """Return whether an engine accepts requests, whole or in stages."""
        return self.serves(engine) or self.is_staged(engine)

    def chain(self, engine: EngineName) -> tuple[Engine, ...]:
        """Return the stages that an engine runs in; empty if it runs whole, or some lack."""
        return () if engine in self._usable else self.stages.fewest(engine)

    def open_chains(self, engine: EngineName) -> Sequence[tuple[Engine, ...]]:
        """Return the chains of stages that queries of an engine may take; see `StageChains`.

        There are none while it is unloaded, or while workers have it whole and cannot run it. That
        does not matter if the store has the model: it may be too large for each of them.
        """
        closed = self._closes_stages(engine) or engine in self.unloaded
        return () if closed else self.stages.alternatives(engine)

    def early_stages(self, engine: EngineName) -> tuple[Engine, ...]:
        """Return the first stages of an engine with early exits, unless it is unloaded."""
        return () if engine in self.unloaded else self.stages.early(engine)

    def whole(self, engine: EngineName) -> Engine | None:
        """Return an engine if a connected worker can run it whole, unloaded or not."""
        return self._usable.get(engine)

    def workers_with(self, engine: EngineName) -> Iterator[WorkerId]:
        offers = self.offers_of(engine).items()
        return (worker_id for worker_id, offered in offers if not offered.fault)

    def is_known(self, engine: EngineName) -> bool:
        """Return whether any worker has ever had an engine that was not dropped since."""
        return engine in self._known

    def is_relied_on(self, engine: EngineName) -> bool:
        """Return whether clients have asked for an engine that a connected worker has."""
        offers = self._offers.get(engine)
        usable = engine not in self.unloaded and not self.is_faulty(engine)
        return offers is not None and offers.committed and bool(offers.by_worker) and usable

    def has_same_tensors(self, engine: EngineName, other: EngineName) -> bool:
        """Return whether two engines that were described have the same inputs and outputs."""
        found = [self._offers[each].description for each in (engine, other)]
        return all(
            {*getattr(found[0], side)} == {*getattr(found[1], side)}
            for side in ("inputs", "outputs")
        )

    def is_faulty(self, engine: EngineName) -> bool:
        """Return whether an engine has a fault on every connected worker that has it."""
        offers = self.offers_of(engine).values()
        return bool(offers) and all(each.fault and not each.pending for each in offers)

    def check_in_service(self, engine: EngineName) -> None:
        """Check that an engine accepts requests, without asking for it as a client."""
        if engine not in self._in_service:
            self.find(engine)

    def versions_of(self, name: str) -> Sequence[EngineName]:
        """Return the known versions of an engine, in increasing order; empty if there are none."""
        return self._known.versions_of(name)

    def variants_of(self, engine: EngineName) -> Sequence[Variant]:
        """Return the variants of an engine that a connected worker can run; empty without any."""
        usable = self._usable.get(engine)
        return () if usable is None else usable.variants

    def find_usable(self, name: str) -> Engine:
        """Return the engine like `find` if a connected worker can run it, unloaded or not."""
        engine = self._usable.get(EngineName(name))
        if engine is not None:
            self._on_asked(engine.name)
            return engine
        offers = self._offers.get(EngineName(name))
        if offers is not None and self._closes_stages(EngineName(name)):
            if name in self.stages and self._worker_wait_s:  # whose workers may return, or others
                raise EngineUnserved(name)
            if offers.is_pending:
                raise EnginePending(name)
            if offers.conflicts:
                raise Unavailable(
                    f"no worker that serves engine {name!r} is connected; another one with this "
                    f"name differs: to use that, run 'synergai engines forget {name}'"
                )
            if self.deploys(EngineName(name)):
                raise Unavailable(f"engine {name!r} is being deployed in stages; retry later")
            fault = next(iter(offers.by_worker.values())).fault
            if fault == REMOVED and is_stage(name):  # there are others, or will be
                raise Unavailable(f"stage {name!r} was removed from its workers meanwhile")
            raise EngineUnusable(f"engine {name!r} cannot be used: {fault}")
        if stages := self.stages.fewest(EngineName(name)):
            raise EngineInStages(name, stages)
        if name in self.stages and self._worker_wait_s:
            raise EngineUnserved(name)
        if some := self.stages.names(EngineName(name)):
            raise Unavailable(
                f"connected workers lack stages of engine {name!r}: they have {', '.join(some)}"
            )
        if name in self._known:
            unserved = EngineUnserved(name)
            raise unserved if self._worker_wait_s else Unavailable(str(unserved))
        raise self.not_found(name)

    def _closes_stages(self, engine: EngineName) -> bool:
        """Return whether workers have an engine whole that cannot run, whatever its stages."""
        if engine in self._usable or not self.offers_of(engine):
            return False
        stages = self.stages.fewest(engine)
        return not stages or stages[0].stage_of != self._model(engine)

    async def wait_inspected(self, name: str, timeout_s: float | None = None) -> None:
        """Wait until an engine is no longer pending; see `find_usable`."""
        try:
            self.find_usable(name)
        except EnginePending as error:
            unserved = error if isinstance(error, EngineUnserved) else None
        except SynergaiError:
            return  # the caller gets the same error
        else:
            return
        loop = asyncio.get_running_loop()
        inspected = self._inspected.setdefault(EngineName(name), loop.create_future())
        limits = [timeout_s, self._worker_wait_s if unserved else None]
        limit_s = min((each for each in limits if each is not None), default=None)
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.shield(inspected)
        except TimeoutError:
            if unserved is not None:
                raise unserved from None
            raise DeadlineExceeded(
                f"engine {name!r} was still being inspected at the deadline"
            ) from None

    def check_known(self, name: str) -> None:
        """Check that jobs for an engine may be accepted: it can run now or after a reconnection."""
        try:
            self.find(name)
        except Unavailable:
            return

    def check_samples(self, name: str) -> None:
        """Check that a job for a known engine has samples to draw its queries from.

        An engine that no connected worker has, or that one is still inspecting, passes.
        """
        engines = self.offers_of(name).values()
        if engines and all(each.unverified and not each.samples for each in engines):
            raise EngineUnusable(f"engine {name!r} is unverified and has no samples; {ADVICE}")

    def not_found(self, name: str) -> EngineNotFound:
        """Return the error for an engine that is not known, which suggests similar names."""
        return self._known.not_found(name, self.answers)

    def add_known(self, names: Iterable[EngineName]) -> None:
        """Add engines to the known ones, served or not."""
        for engine in names:
            if engine not in self._known:
                self._known.add(engine)
                self.on_service_changed(engine)

    def forget_surplus(self) -> list[EngineName]:
        """Forget the latest of more than `MAX_ABSENT` engines without a worker; return their names.

        Engines that clients have asked for or unloaded stay. The caller removes the record of the
        others.
        """
        if len(self._known) <= MAX_ABSENT:
            return []
        kept = self._offers.keys() | self.unloaded
        absent = (name for name in self._known if name not in kept)
        forgotten = list(islice(absent, MAX_ABSENT, None))
        for name in forgotten:
            self._known.remove(name)
            self.on_service_changed(name)
        return forgotten

    def known_engines(self) -> Iterator[EngineName]:
        return iter(sorted(self._known, key=by_version))

    def in_service(self) -> Iterator[EngineName]:
        """Return the names of the engines that accept requests, sorted."""
        return iter(sorted(self._in_service, key=by_version))

    def unload(self, name: str) -> EngineName:
        """Take an engine out of service until `load`; return its name."""
        if name not in self._known:
            raise self.not_found(name)
        engine = EngineName(name)
        self.unloaded.add(engine)
        self.stages.changed(engine)
        self._in_service.pop(engine, None)
        self.on_service_changed(engine)
        return engine

    def load(self, name: EngineName) -> None:
        self.unloaded.discard(name)
        self.stages.changed(name)
        if name in self._usable:
            self._in_service[name] = self._usable[name]
        self.on_service_changed(name)

    def retire(self, stages: Set[EngineName]) -> None:
        """Let queries begin in all stages but these; those that have begun may end there."""
        changed, self.stages.retired = self.stages.retired ^ stages, frozenset(stages)
        for stage in changed:
            self.stages.changed(stage)
            self.on_service_changed(stage)

    @property
    def conflicts(self) -> Iterator[EngineConflict]:
        """Engines and variants that workers offer and that differ from those in service."""
        return chain.from_iterable(each.conflicts for each in self._offers.values())

    def update(self, worker_id: WorkerId, engine: Engine) -> dict[WorkerId, Engine]:
        """Record a worker's engine as it offers it; return the resolved engine per worker."""
        if engine.name not in self._offers:
            self._offers[engine.name] = EngineOffers(engine.name)
        self._offers[engine.name].by_worker[worker_id] = engine
        self.add_known([engine.name])
        if engine.stage_of:
            self.add_known([engine_of_stage(engine.name)])
        return self._resolve(engine.name)

    def review(self) -> list[dict[WorkerId, Engine]]:
        """Take the changed store into account; return each resolved engine per worker."""
        return [self._resolve(name) for name in list(self._offers)]

    def withdraw(self, worker_id: WorkerId, name: EngineName) -> dict[WorkerId, Engine]:
        """Remove one engine of a worker; return the resolved engine per remaining worker."""
        if worker_id not in self.offers_of(name):
            return {}
        self._offers[name].withdraw(worker_id, holds=False)
        return self._resolve(name)

    def remove_worker(self, worker_id: WorkerId) -> list[dict[WorkerId, Engine]]:
        """Remove a worker's engines; return each resolved engine per remaining worker."""
        names = [name for name, each in self._offers.items() if worker_id in each.by_worker]
        for name in names:
            self._offers[name].withdraw(worker_id, holds=True)
        return [self._resolve(name) for name in names]

    def forget(self, name: str) -> dict[WorkerId, Engine]:
        """Forget the committed description of an engine; return the engine per worker."""
        if name not in self._known:
            raise self.not_found(name)
        engine = EngineName(name)
        if engine not in self._offers:
            return {}
        self._offers[engine].forget_description()
        return self._resolve(engine)

    def drop(self, engine: EngineName) -> bool:
        """Forget that there is an engine which no connected worker can run; return whether it was.

        The caller removes the record of it. An unloaded engine stays, since it may be loaded again.
        """
        offers = self.offers_of(engine)
        if (offers and not self.is_faulty(engine)) or engine in self.unloaded:
            return False
        for worker_id in list(offers):
            self.withdraw(worker_id, engine)
        self._known.remove(engine)
        self.on_service_changed(engine)
        return True

    def _resolve(self, name: EngineName) -> dict[WorkerId, Engine]:
        offers = self._offers[name]
        before = offers.record()
        resolved = offers.resolve(self._stored(name))
        record = offers.record()
        if record is not None and record != before:
            self._on_commit(name, record)
        self._set_usable(name, offers.engine)
        self.too_large.discard(name)
        if offers.engine is None and any(each.too_large for each in offers.by_worker.values()):
            self.too_large.add(name)
        if offers.engine is not None or not offers.is_pending:
            for each in {name, engine_of_stage(name)}:
                if (inspected := self._inspected.pop(each, None)) is not None:
                    inspected.set_result(None)
        if not offers.by_worker and offers.description is None:
            del self._offers[name]
        self.on_service_changed(name)
        return resolved

    def _on_asked(self, name: EngineName) -> None:
        offers = self._offers[name]
        if not offers.committed:
            offers.committed = True
            record = offers.record()
            if record is not None:
                self._on_commit(name, record)

    def offers_of(self, name: str) -> Mapping[WorkerId, Engine]:
        """Return an engine as workers describe it, the longest connected ones first."""
        offers = self._offers.get(EngineName(name))
        return {} if offers is None else offers.by_worker

    def _set_usable(self, name: EngineName, engine: Engine | None) -> None:
        self.stages.changed(name)
        if engine is None:
            self._usable.pop(name, None)
            self.stages.discard(name)
            self._in_service.pop(name, None)
            return
        self._usable[name] = engine
        if engine.stage_of:
            self.stages.add(name)
        if name not in self.unloaded:
            self._in_service[name] = engine

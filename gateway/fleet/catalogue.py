"""Catalogue of the engines served by the connected workers.

Versions of an engine are engines of their own here; see `gateway.fleet.versions`.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.fleet.descriptions import (
    EngineConflict,
    Established,
    Offer,
    all_variants,
    most_common,
)
from gateway.fleet.sample_sets import other_samples
from gateway.fleet.variant_files import VariantFiles
from synergai.domain import EngineName, LeftOut
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
from synergai.versions import by_version, split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

    from gateway.fleet.descriptions import Description
    from gateway.fleet.sample_sets import OtherSamples
    from gateway.fleet.variant_files import VariantConflict
    from synergai.domain import Engine, Variant, WorkerId

MAX_ABSENT: Final = 20_000
"""Engines without a worker that are remembered. Any agent may make up names."""
_MAX_COMPARED: Final = 200
_MAX_COMPARED_LENGTH: Final = 100
"""Names, and characters of a name, that are compared to suggest engines for an unknown one."""
_MAX_HOLDERS: Final = 256
"""Workers remembered per description, of which absent ones may never return."""


class Catalogue:
    """Engines of all connected workers, by name and version.

    One description of each name is in service; a worker that offers another one does not serve the
    engine. Which one it is depends on trust, not on who comes first:

    1. Trusted offers decide, if there are any.
    2. Otherwise, a description that a client has asked for is *established*: it stays while a
       worker serves it, and while one that served it is absent but still counts (see
       `keep_absent`). A worker gives it up by offering another one, which
       then goes before those of others.
    3. Otherwise, the description that most workers offer, and of several the one of the worker
       that has been connected the longest.

    The file of each variant is decided on its own, by the same rules: a worker that offers another
    one does not use that variant, and serves the rest.

    Args:
        known: engines known from earlier runs of the gateway.
        unloaded: those of them that were unloaded.
        established: descriptions established in earlier runs.
        on_established: called with each description that becomes established or gains a worker.
        suggests: whether the current caller may be told of an engine when it asks for an unknown
            one.

    Attributes:
        on_service_changed: called with each engine that becomes known, or whose workers change.
        keep_absent: whether an absent worker counts as serving what it served last. This needs
            workers that prove their ids; without, it only holds until `release_absent`.
    """

    def __init__(
        self,
        known: Iterable[EngineName] = (),
        unloaded: Iterable[EngineName] = (),
        established: Mapping[EngineName, Established] | None = None,
        on_established: Callable[[EngineName, Established], object] = lambda *_: None,
        suggests: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.keep_absent = False
        self.on_service_changed: Callable[[EngineName], object] = lambda _: None
        self._known: dict[EngineName, None] = {}
        self._by_name: dict[str, list[EngineName]] = {}
        self.add_known(known)
        self._reported: dict[EngineName, dict[WorkerId, Offer]] = {}
        self._descriptions: dict[EngineName, Description] = {}
        self._holders: dict[EngineName, dict[WorkerId, None]] = {}
        self._provisional: set[EngineName] = set()
        self._conflicts: dict[EngineName, list[EngineConflict]] = {}
        self._files: dict[EngineName, VariantFiles] = {}
        self._variant_conflicts: dict[EngineName, list[VariantConflict]] = {}
        self._other_samples: dict[EngineName, list[OtherSamples]] = {}
        self._on_established = on_established
        self._suggests = suggests
        self._usable: dict[EngineName, Engine] = {}
        self._unloaded = set(unloaded)
        self._in_service: dict[EngineName, Engine] = {}
        self._inspected: dict[EngineName, asyncio.Future[None]] = {}
        for name, each in (established or {}).items():
            self._descriptions[name] = each.description
            self._holders[name] = dict.fromkeys(each.holders)
            if each.description.variants:
                self._files[name] = _established_files(each)

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
            if engine.name in self._provisional:
                self._establish(engine.name)
            return engine
        if name in self._unloaded:
            raise EngineUnloaded(name)
        return self.find_usable(name)

    def serves(self, engine: EngineName) -> bool:
        """Return whether an engine accepts requests."""
        return engine in self._in_service

    def is_usable(self, engine: EngineName) -> bool:
        """Return whether a connected worker can run an engine, unloaded or not."""
        return engine in self._usable

    def is_trusted(self, engine: EngineName) -> bool:
        """Return whether a connected worker's offer of an engine is trusted.

        One with a fault, or that is still being inspected, says nothing for another worker's offer
        that can be used.
        """
        offers = self._reported.get(engine, {}).values()
        usable = engine in self._usable
        return any(offer.trusted and not (usable and offer.engine.fault) for offer in offers)

    def is_faulty(self, engine: EngineName) -> bool:
        """Return whether an engine has a fault on every connected worker that has it."""
        offers = [offer.engine for offer in self._reported.get(engine, {}).values()]
        return bool(offers) and all(each.fault and not each.pending for each in offers)

    def check_in_service(self, engine: EngineName) -> None:
        """Check that an engine accepts requests, without asking for it as a client.

        Raises:
            SynergaiError: as for `find`.
        """
        if engine not in self._in_service:
            self.find(engine)

    def versions_of(self, name: str) -> Sequence[EngineName]:
        """Return the known versions of an engine, in increasing order; empty if there are none."""
        return self._by_name.get(name, ())

    def variants_of(self, engine: EngineName) -> Sequence[Variant]:
        """Return the variants of an engine that a connected worker can run; empty without any."""
        usable = self._usable.get(engine)
        return () if usable is None else usable.variants

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
            if engine.name in self._provisional:
                self._establish(engine.name)
            return engine
        reported = self._reported.get(EngineName(name))
        if reported:
            if any(offer.engine.pending for offer in reported.values()):
                raise EnginePending(name)
            if name in self._conflicts:
                raise Unavailable(
                    f"no worker that serves engine {name!r} is connected; another one with this "
                    "name differs"
                )
            fault = next(iter(reported.values())).engine.fault
            raise EngineUnusable(f"engine {name!r} cannot be used: {fault}")
        if name in self._known:
            raise Unavailable(f"no worker that serves engine {name!r} is connected")
        raise self.not_found(name)

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
        reported = [offer.engine for offer in self._reported.get(EngineName(name), {}).values()]
        without = [each for each in reported if each.unverified and not each.samples]
        if reported and len(without) == len(reported):
            raise EngineUnusable(f"engine {name!r} is unverified and has no samples; {ADVICE}")

    def not_found(self, name: str) -> EngineNotFound:
        """Return the error for an engine that is not known, which suggests similar names."""
        # Bounded: any client may ask for any name.
        candidates = sorted(self._by_name) if len(name) <= _MAX_COMPARED_LENGTH else ()
        compared = filter(self._suggests, islice(candidates, _MAX_COMPARED))
        return EngineNotFound(name, get_close_matches(name, compared))

    def add_known(self, names: Iterable[EngineName]) -> None:
        """Add engines to the known ones, served or not."""
        for engine in names:
            if engine not in self._known:
                self._known[engine] = None
                versions = self._by_name.setdefault(split_version(engine)[0], [])
                insort(versions, engine, key=_version_number)
                self.on_service_changed(engine)

    def forget_surplus(self) -> list[EngineName]:
        """Forget the latest of more than `MAX_ABSENT` engines without a worker; return their names.

        Engines that clients have asked for or unloaded stay. The caller removes the record of the
        others.
        """
        if len(self._known) <= MAX_ABSENT:
            return []
        kept = (self._reported, self._unloaded, self._descriptions)
        absent = (name for name in self._known if not any(name in each for each in kept))
        forgotten = list(islice(absent, MAX_ABSENT, None))
        for name in forgotten:
            del self._known[name]
            versions = self._by_name[split_version(name)[0]]
            versions.remove(name)
            if not versions:
                del self._by_name[split_version(name)[0]]
            self.on_service_changed(name)
        return forgotten

    def known_engines(self) -> Iterator[EngineName]:
        """Return the names of all known engines, sorted."""
        return iter(sorted(self._known, key=by_version))

    def in_service(self) -> Iterator[EngineName]:
        """Return the names of the engines that accept requests, sorted."""
        return iter(sorted(self._in_service, key=by_version))

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
            raise self.not_found(name)
        engine = EngineName(name)
        self._unloaded.add(engine)
        self._in_service.pop(engine, None)
        self.on_service_changed(engine)
        return engine

    def load(self, name: EngineName) -> None:
        """Put an engine back into service."""
        self._unloaded.discard(name)
        if name in self._usable:
            self._in_service[name] = self._usable[name]
        self.on_service_changed(name)

    @property
    def conflicts(self) -> Iterator[EngineConflict]:
        """Engines that workers offer and that differ from those in service."""
        return (each for conflicts in self._conflicts.values() for each in conflicts)

    @property
    def variant_conflicts(self) -> Iterator[VariantConflict]:
        """Variants of engines in service that workers offer with another file."""
        return (each for conflicts in self._variant_conflicts.values() for each in conflicts)

    @property
    def other_samples(self) -> Iterator[OtherSamples]:
        """Sample sets of engines in service that differ from those of most workers."""
        return (each for differing in self._other_samples.values() for each in differing)

    def update(
        self,
        worker_id: WorkerId,
        engine: Engine,
        *,
        trusted: bool = False,
        any_file: bool = False,
    ) -> dict[WorkerId, Engine]:
        """Record a worker's engine; return the resolved engine per worker.

        Args:
            worker_id: the worker.
            engine: the engine as it offers it.
            trusted: whether its description goes before that of others.
            any_file: whether its file may differ from that of other workers.
        """
        offer = Offer(engine, trusted=trusted, any_file=any_file)
        self._reported.setdefault(engine.name, {})[worker_id] = offer
        self.add_known([engine.name])
        return self._resolve(engine.name)

    def withdraw(self, worker_id: WorkerId, name: EngineName) -> dict[WorkerId, Engine]:
        """Remove one engine of a worker; return the resolved engine per remaining worker."""
        if worker_id not in self._reported.get(name, {}):
            return {}
        del self._reported[name][worker_id]
        self._holders.get(name, {}).pop(worker_id, None)
        return self._resolve(name)

    def remove_worker(self, worker_id: WorkerId) -> list[dict[WorkerId, Engine]]:
        """Remove a worker's engines; return each resolved engine per remaining worker."""
        names = [name for name, reported in self._reported.items() if worker_id in reported]
        for name in names:
            del self._reported[name][worker_id]
            if not self.keep_absent:
                self._holders.get(name, {}).pop(worker_id, None)
        return [self._resolve(name) for name in names]

    def release_absent(self) -> list[dict[WorkerId, Engine]]:
        """Let absent workers not count any more; return each resolved engine per worker.

        Does nothing if `keep_absent` is set. Call it once workers have had the time to connect
        after a restart of the gateway.
        """
        if self.keep_absent:
            return []
        for name, holders in self._holders.items():
            for worker_id in holders.keys() - self._reported.get(name, {}).keys():
                del holders[worker_id]
        return [self._resolve(name) for name in list(self._reported)]

    def forget(self, name: str) -> dict[WorkerId, Engine]:
        """Forget the established description of an engine; return the resolved engine per worker.

        The caller removes the record of it.

        Raises:
            EngineNotFound: no worker has ever had it.
        """
        if name not in self._known:
            raise self.not_found(name)
        engine = EngineName(name)
        self._forget_description(engine)
        return self._resolve(engine) if engine in self._reported else {}

    # --- descriptions -----------------------------------------------------------------------

    def _forget_description(self, name: EngineName) -> None:
        self._descriptions.pop(name, None)
        self._holders.pop(name, None)
        self._files.pop(name, None)

    def _resolve(self, name: EngineName) -> dict[WorkerId, Engine]:
        reported = self._reported[name]
        offers = {each: offer for each, offer in reported.items() if not offer.engine.fault}
        self._choose(name, offers)
        holders = set(self._holders.get(name, ()))
        faults = self._compare(name, offers)
        resolved = {each: offer.engine for each, offer in reported.items()}
        for conflict in self._compare_variants(name, offers, faults):
            resolved[conflict.worker_id] = _without(resolved[conflict.worker_id], conflict)
        for worker_id, difference in faults.items():
            fault = f"it differs from the engine of this name in service: {difference}"
            resolved[worker_id] = replace(reported[worker_id].engine, fault=fault)
        self._compare_samples(name, {each: resolved[each] for each in offers if each not in faults})
        for differing in self._other_samples.get(name, ()):
            there = differing.worker_id
            resolved[there] = replace(resolved[there], other_samples=differing.text)
        gained = not holders.issuperset(self._holders.get(name, ()))
        if name not in self._provisional and (gained or self._files_changed(name)):
            self._record(name)
        self._conflicts.pop(name, None)
        if faults:
            in_service = self._descriptions[name].digest
            self._conflicts[name] = [
                EngineConflict(
                    worker_id, name, offers[worker_id].engine.digest, in_service, difference
                )
                for worker_id, difference in faults.items()
            ]
        served = [resolved[each] for each in offers if each not in faults]
        self._set_usable(name, served)
        if served or not any(offer.engine.pending for offer in reported.values()):
            inspected = self._inspected.pop(name, None)
            if inspected is not None:
                inspected.set_result(None)
        if not reported:
            del self._reported[name]
            if name in self._provisional:  # no client knows it
                self._provisional.discard(name)
                self._forget_description(name)
        self.on_service_changed(name)
        return resolved

    def _choose(self, name: EngineName, offers: dict[WorkerId, Offer]) -> None:
        """Set the description of an engine in service."""
        current = self._descriptions.get(name)
        trusted = [offer for offer in offers.values() if offer.trusted]
        candidates = trusted or list(offers.values())
        provisional = name in self._provisional
        if current is not None and (trusted or not provisional):
            # Not by `Offer.difference`: a listed file goes before one that is not.
            if not all(current.difference(offer.engine) for offer in candidates):
                return
            if not trusted:
                changed = self._give_up(name, offers)
                if self._holders[name]:
                    return
                candidates = changed or candidates
        if not candidates:
            return
        chosen = most_common(candidates)
        if current is None or chosen != current.without_files:
            self._provisional.add(name)
            self._descriptions[name] = chosen
            self._holders[name] = {}
            self._files.pop(name, None)

    def _give_up(self, name: EngineName, offers: dict[WorkerId, Offer]) -> list[Offer]:
        """Let workers that offer something else give up a description; return what they offer.

        One that reports a fault gives it up as well, unless absent workers count.
        """
        holders = self._holders[name]
        changed = [offer for worker_id, offer in offers.items() if worker_id in holders]
        for worker_id, offer in self._reported[name].items():
            if worker_id in offers or not (self.keep_absent or offer.engine.pending):
                holders.pop(worker_id, None)
        return changed

    def _compare(self, name: EngineName, offers: dict[WorkerId, Offer]) -> dict[WorkerId, str]:
        """Return how offers differ that are not in service; workers with the others hold it."""
        if not offers:
            return {}
        current, holders = self._descriptions[name], self._holders[name]
        differences = {}
        for worker_id, offer in offers.items():
            if difference := offer.difference(current):
                differences[worker_id] = difference
                holders.pop(worker_id, None)
            else:
                holders[worker_id] = None
        return differences

    def _compare_variants(
        self, name: EngineName, offers: dict[WorkerId, Offer], differences: dict[WorkerId, str]
    ) -> list[VariantConflict]:
        """Return the variants that workers do not use, of an engine in service.

        A worker that can use none of them is added to `differences`.
        """
        description = self._descriptions.get(name)
        if description is None or not description.variants:
            self._files.pop(name, None)
            self._variant_conflicts.pop(name, None)
            return []
        holders = self._holders[name]
        faulty = {
            worker_id
            for worker_id, offer in self._reported[name].items()
            if offer.engine.fault and not (self.keep_absent or offer.engine.pending)
        }
        files = self._files.setdefault(name, VariantFiles())
        conflicts = files.resolve(
            name,
            {each: offer for each, offer in offers.items() if each not in differences},
            holders.keys() - faulty,
            provisional=name in self._provisional,
        )
        unlike: dict[WorkerId, list[VariantConflict]] = {}
        for conflict in conflicts:
            unlike.setdefault(conflict.worker_id, []).append(conflict)
        for worker_id, those in unlike.items():
            if len(those) == len(offers[worker_id].engine.variants):
                differences[worker_id] = f"variant {those[0].variant} is {those[0].difference}"
                holders.pop(worker_id, None)
        self._descriptions[name] = description.with_files(files.digests)
        self._variant_conflicts.pop(name, None)
        if conflicts:
            self._variant_conflicts[name] = conflicts
        return conflicts

    def _compare_samples(self, name: EngineName, served: dict[WorkerId, Engine]) -> None:
        """Find out which workers that serve an engine have other samples than most."""
        self._other_samples.pop(name, None)
        if found := other_samples(served):
            self._other_samples[name] = found

    def _files_changed(self, name: EngineName) -> bool:
        return name in self._files and self._files[name].changed

    def _establish(self, name: EngineName) -> None:
        """Establish the description of an engine that a client has asked for."""
        self._provisional.discard(name)
        self._record(name)

    def _record(self, name: EngineName) -> None:
        holders = self._holders[name]
        while len(holders) > _MAX_HOLDERS:
            del holders[next(iter(holders))]
        files = self._files.get(name)
        lacking = {} if files is None else files.lacking(holders)
        self._on_established(
            name,
            Established(
                description=self._descriptions[name], holders=tuple(holders), lacking=lacking
            ),
        )

    def _set_usable(self, name: EngineName, served: list[Engine]) -> None:
        """Set the engine that clients see, given those of the workers that serve it."""
        if not served:
            self._usable.pop(name, None)
            self._in_service.pop(name, None)
            return
        backend = self._descriptions[name].backend
        engine = next((each for each in served if each.backend == backend), served[0])
        if engine.variants:
            engine = replace(engine, variants=all_variants([engine, *served]))
        self._usable[name] = engine
        if name not in self._unloaded:
            self._in_service[name] = engine


def _established_files(established: Established) -> VariantFiles:
    """Return the files of an engine's variants as they were established."""
    digests = {name: digest for name, digest in established.description.variants if name}
    holders = {
        name: [
            each for each in established.holders if each not in established.lacking.get(name, ())
        ]
        for name in digests
    }
    return VariantFiles(digests, holders)


def _without(engine: Engine, conflict: VariantConflict) -> Engine:
    """Return an engine without a variant whose file is not the one in service."""
    variants = tuple(each for each in engine.variants if each.name != conflict.variant)
    reason = f"it differs from the variant of this name in service: {conflict.difference}"
    return replace(
        engine,
        variants=variants,
        digest=variants[0].digest if variants else engine.digest,
        left_out=(*engine.left_out, LeftOut(conflict.variant, reason)),
    )


def _version_number(engine: EngineName) -> int:
    return by_version(engine)[1]

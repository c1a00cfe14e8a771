"""The fleet and the store as a planner sees them."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from gateway.fleet.links import with_peers
from gateway.hub.store.store import GATEWAY as OWNER
from synergai.core.routes.deployment import Cutting
from synergai.core.routes.problem import HOST_BYTES, SESSION_PER_WEIGHT
from synergai.errors import SynergaiError
from synergai.models.formats.model_files import DEFINITION_FILE
from synergai.names import engine_of_stage, is_stage, split_version, stage_positions, versioned

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gateway.fleet.versions import Versions
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.store.storage import StoredVersion
    from gateway.hub.store.store import EngineStore
    from synergai.core.routes.deployment import Stage, Stages
    from synergai.core.routes.fleet import FleetFile
    from synergai.core.routes.links import Link
    from synergai.domain import EngineName, WorkerId


class StoredStages(NamedTuple):
    """The stages of a version of an engine that the store has.

    Attributes:
        made: those that the gateway has made, by the cuts between which they are.
        has_others: whether it has stages that somebody has pushed or placed, who then decides.
    """

    made: dict[Stage, StoredVersion]
    has_others: bool

    @property
    def placed(self) -> Stages:
        """The workers that each stage is placed on."""
        return {stage: placed_on(stored) for stage, stored in self.made.items()}

    def without(self, kept: Collection[Stage]) -> dict[EngineName, StoredVersion]:
        """Return the stages that are not kept, by name."""
        return {stored.name: stored for stage, stored in self.made.items() if stage not in kept}

    def loaded_on(self, workers: Iterable[ConnectedWorker]) -> set[Stage]:
        """Return the stages that any of some workers has loaded."""
        loaded = {session.engine for worker in workers for session in worker.sessions}
        return {stage for stage, stored in self.made.items() if stored.name in loaded}


class StoredEngines(NamedTuple):
    """What the store has of engines that can be cut.

    Attributes:
        highest: the highest version by engine.
        stages: by version of an engine, also of those that are gone.
        copies: versions from model directories of workers.
    """

    highest: dict[str, int]
    stages: dict[EngineName, StoredStages]
    copies: list[StoredVersion]


def stored_engines(store: EngineStore) -> StoredEngines:
    """Return what the store has of engines that can be cut."""
    highest: dict[str, int] = {}
    stages: dict[EngineName, StoredStages] = {}
    for stored in store.versions.values():
        if not is_stage(stored.engine):
            if can_be_cut(stored):
                highest[stored.engine] = max(stored.version, highest.get(stored.engine, 0))
            continue
        engine = engine_of_stage(stored.name)
        known = stages.get(engine, StoredStages({}, has_others=False))
        if stored.pushed_by == OWNER.name:
            known.made[stage_positions(stored.name)] = stored
            stages[engine] = known
        else:
            stages[engine] = known._replace(has_others=True)
    copies = [stored for stored in store.versions.values() if stored.source]
    return StoredEngines(highest, stages, copies)


def placed_on(stored: StoredVersion) -> frozenset[str]:
    """Return the workers that the gateway has placed a version on."""
    return frozenset(selector.removeprefix("worker=") for selector in stored.placement)


def can_be_cut(stored: StoredVersion) -> bool:
    """Return whether a version is a model that can be cut, as far as its name tells."""
    return stored.manifest.model.endswith(".onnx") and not stored.fault


def wanted_versions(versions: Versions, engine: str, highest: int) -> Iterator[EngineName]:
    """Yield the versions of an engine that may need stages.

    These are the target of a rollout, or else the version that requests are pinned to, or the
    highest one; and the former version in a rollout, if it does not answer.
    """
    policy, catalogue = versions.policy(engine), versions.catalogue
    yield versioned(engine, policy.target or policy.base or str(highest))
    if policy.target:
        base = versioned(engine, policy.base)
        if not catalogue.answers(base):
            yield base


def answering_version(versions: Versions, engine: EngineName) -> EngineName | None:
    """Return the version that requests for an engine get now; None if none is known."""
    try:
        return versions.resolve(split_version(engine)[0])
    except SynergaiError:
        return None


def memory_bytes(worker: ConnectedWorker) -> int:
    """Return the memory that all engines of a worker may take together; 0 if it is not known."""
    limits = (worker.memory_limit_bytes, worker.session_budget_bytes)
    return min(filter(None, limits), default=0)


def fleet_of(
    workers: Sequence[ConnectedWorker],
    known: Mapping[tuple[str, str], Link],
    limits: Mapping[WorkerId, int],
) -> FleetFile:
    """Return a fleet with its links, for a planner.

    Args:
        known: links that were measured.
        limits: memory of workers that have turned out to have less than they say.
    """
    # Imported on demand: most gateways plan nothing.
    from synergai.core.routes.fleet import (
        BYTES_PER_MBIT,
        MAX_MBIT_S,
        MIN_MBIT_S,
        FleetFile,
        FleetWorker,
        Pair,
    )
    from synergai.core.routes.links import GATEWAY
    from synergai.domain import MAX_THREADS

    def memory_mb(worker: ConnectedWorker) -> dict[str, float]:
        known = filter(None, (memory_bytes(worker), limits.get(worker.id, 0)))
        least = min(known, default=0)
        return {"memory_mb": least / 1e6} if least else {}

    links = with_peers(known, {each.id for each in workers if each.peer_address})
    names = [GATEWAY, *(worker.id for worker in workers)]
    pairs = []
    for source in names:
        for target in names:
            way = links.way(source, target)
            if len(way) == 1:  # others are relayed by the gateway
                [link] = way.values()
                mbit_s = min(max(link.bytes_per_s / BYTES_PER_MBIT, MIN_MBIT_S), MAX_MBIT_S)
                latency_ms = 1e3 * link.latency_s
                pairs.append(
                    Pair(source=source, target=target, mbit_s=mbit_s, latency_ms=latency_ms)
                )
    return FleetFile(
        workers=tuple(
            FleetWorker(
                id=each.id,
                worker_class=each.worker_class,
                cores=min(each.engine_cores or each.cores, MAX_THREADS),
                query_s=each.query_s,
                **memory_mb(each),
            )
            for each in workers
        ),
        pairs=tuple(pairs),
    )


async def cutting_of(store: EngineStore, stored: StoredVersion, default: Cutting) -> Cutting:
    """Return when an engine may be cut: what its ``engine.toml`` says, or the gateway's setting."""
    file = next((each for each in stored.manifest.files if each.path == DEFINITION_FILE), None)
    if file is None:
        return default
    text = await store.read(file.sha256, 0, file.size)
    try:
        routes = tomllib.loads(text.decode()).get("routes") or default
        cutting: Cutting = msgspec.convert(routes, type=Cutting)
    except (ValueError, msgspec.ValidationError):  # agents say what is wrong with the file
        return default
    return cutting


def planned_bytes(stored: StoredVersion) -> float:
    """Return the memory that a version is planned with, by the size of its files."""
    return HOST_BYTES + SESSION_PER_WEIGHT * stored.manifest.size


def busy_engines(workers: Iterable[ConnectedWorker]) -> set[EngineName]:
    """Return the engines that workers run at the moment."""
    return {
        progress.assignment.engine for worker in workers for progress in worker.in_flight.values()
    }

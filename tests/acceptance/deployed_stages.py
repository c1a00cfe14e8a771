"""What should be left of an engine that was deployed in stages: all that is wanted, and no more."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from synergai import SyncClient
from synergai.client.store import PlacedEngine, StoredEngine
from synergai.core.routes.deployment import stages_of
from synergai.models.manifest import read_manifest
from synergai.names import is_stage, stage_name, versioned
from tests.acceptance.fleets import KilledFleet

_AT_REST: Final = ("deployed", "whole")


def find_disorder(fleet: KilledFleet, client: SyncClient, engine: str) -> list[str]:
    """Return what is missing or left over of an engine, all of whose stages the gateway has made.

    The gateway deploys the highest version only. Without any, nothing of the engine is left.

    Raises:
        SynergaiError: the gateway does not answer.
    """
    stored = client.stored_engines().engines
    highest = max((each.version for each in stored if each.engine == engine), default=0)
    return [
        *_of_deployment(client, engine, highest, stored),
        *_of_store(fleet.local.directory / "gateway", stored),
        *_of_workers(fleet, client),
    ]


def _of_deployment(
    client: SyncClient, engine: str, highest: int, stored: Iterable[StoredEngine]
) -> Iterator[str]:
    name = versioned(engine, str(highest))
    wanted: dict[str, set[str]] = {}
    for each in client.deployments():
        if each.engine != name:
            yield f"{each.engine} is deployed"
        if each.state not in _AT_REST:
            yield f"{each.engine} is {each.state}: {each.where}: {each.why}"
        for stage, workers in stages_of(each.wanted).items():
            wanted[stage_name(name, *stage)] = {f"worker={worker}" for worker in workers}
    found = {_name(each): set(each.placement) for each in stored if is_stage(each.engine)}
    if found != wanted:
        yield f"the stages {found} are stored, {wanted} are wanted"


def _of_store(state: Path, stored: Iterable[StoredEngine]) -> Iterator[str]:
    store = state / "store"
    contents = {path.name: path for path in (store / "content").glob("*/*")}
    used = {each.digest for each in stored}
    for digest in used & contents.keys():
        used |= read_manifest(contents[digest].read_bytes()).contents.keys()
    if used != contents.keys():
        yield f"the store has the content {sorted(contents)}, and uses {sorted(used)}"
    records = {f"{each.engine}/{each.version}.json" for each in stored}
    found = {f"{path.parent.name}/{path.name}" for path in (store / "engines").glob("*/*")}
    if found != records:
        yield f"the store has the records {found}, not {records}"
    yield from (f"{path} is left of an upload" for path in _within(state / "uploads"))
    engines = {each.engine for each in stored}
    for folder in _within(state / "workshop"):
        if is_stage(folder.name) or folder.name not in engines:
            yield f"{folder} is left of a cut"


def _of_workers(fleet: KilledFleet, client: SyncClient) -> Iterator[str]:
    workers = {each.id: each for each in client.workers()}
    if workers.keys() != fleet.local.agents.keys():
        yield f"the workers are {sorted(workers)}"
    for worker in workers.values():
        fetched = fleet.local.directory / worker.id / "fetched"
        placed = {f"{each.engine}/{each.version}" for each in worker.placed}
        found = {str(path.relative_to(fetched)) for path in fetched.glob("[!.]*/*")}
        if found != placed:
            yield f"worker {worker.id} has fetched {found}, not {placed}"
        # A content of a version that is installed has two names, but for its manifest.
        single = {path.name for path in _within(fetched / ".contents") if path.stat().st_nlink < 2}
        digests = {f"{each.digest}.complete" for each in worker.placed}
        if single != digests:
            yield f"worker {worker.id} has the content {single}, not {digests}"
        marks = {f"{each.engine}@{each.version}" for each in worker.placed}
        if (noted := {path.name for path in _within(fetched / ".digests")}) != marks:
            yield f"worker {worker.id} has noted {noted}, not {marks}"
        yield from (
            f"{fetched / name} is left" for name in (".new", ".old") if (fetched / name).exists()
        )
        names = {_name(each) for each in worker.placed}
        loaded = {each.engine for each in worker.sessions}
        if not loaded <= names:
            yield f"worker {worker.id} has loaded {loaded}, of which {names} are placed"
        hosts = fleet.children(worker.id)
        if len(hosts) != len(worker.sessions):
            yield f"worker {worker.id} has {len(hosts)} hosts and {len(worker.sessions)} sessions"


def _name(each: StoredEngine | PlacedEngine) -> str:
    return versioned(each.engine, str(each.version))


def _within(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []

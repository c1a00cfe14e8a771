"""Copies engines into the store that only model directories of workers have, so as to cut them.

Like of whole engines of one name, the file of the worker counts that has been connected the
longest. A copy stays while its worker is absent, and goes once the file has.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final, NamedTuple

from gateway.deployment.planning import RETRY_S
from synergai.core.routes.deployment import EngineDeployment
from synergai.domain import REMOVED, WorkerId
from synergai.errors import SynergaiError
from synergai.names import is_stage
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.worker import ConnectedWorker
    from gateway.hub.store.storage import StoredVersion
    from gateway.hub.store.store import EngineStore
    from synergai.domain import EngineName

_ALONE: Final = "no worker can hold it, and stages need a second one"

_log = logging.getLogger(__name__)


class _Copy(NamedTuple):
    """An attempt to copy an engine from a worker."""

    worker: ConnectedWorker
    task: asyncio.Task[str]
    again_at: float

    @property
    def fault(self) -> str:
        """Why it has failed; empty if it has not."""
        return self.task.result() if self.task.done() else ""


class FolderEngines:
    """Engines of model directories that are too large for all workers that have them.

    Args:
        workers: those of the fleet at any time.
        bring: copies an engine from a worker into the store.
    """

    def __init__(
        self,
        store: EngineStore,
        catalogue: Catalogue,
        workers: Mapping[WorkerId, ConnectedWorker],
        bring: Callable[[ConnectedWorker, EngineName], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._catalogue = catalogue
        self._workers = workers
        self._bring = bring
        self._clock = clock
        # The last ones of the engines that need one, of which one is under way at most.
        self._copies: dict[EngineName, _Copy] = {}
        self._tasks = TaskBag()

    async def close(self) -> None:
        """End the copy that is under way."""
        await self._tasks.close()

    async def look(self, copies: Iterable[StoredVersion]) -> None:
        """Remove copies of files that are gone; begin to copy an engine if one needs it."""
        for stored in copies:
            if is_outdated(stored, self._catalogue, self._workers):
                await self._store.remove(stored.engine, stored.version)
        sources, now = self._sources(), self._clock()
        for name, copy in list(self._copies.items()):
            if sources.get(name) is not copy.worker:
                copy.task.cancel()
                del self._copies[name]
        is_idle = all(copy.task.done() for copy in self._copies.values())
        if not (sources and is_idle and len(self._workers) > 1):
            return
        # One that was not tried, or that was tried before the others.
        name = min(sources, key=lambda each: (self._again_at(each), each))
        if now >= self._again_at(name):
            task = self._tasks.start_awaited(self._try_to_bring(sources[name], name))
            self._copies[name] = _Copy(sources[name], task, now + RETRY_S)

    def _again_at(self, engine: EngineName) -> float:
        return self._copies[engine].again_at if engine in self._copies else -math.inf

    def deployments(self) -> Iterator[EngineDeployment]:
        """Yield the engines that are to be copied, and why some cannot be."""
        for name, worker in self._sources().items():
            fault = self._copies[name].fault if name in self._copies else ""
            if len(self._workers) < 2:
                fault = _ALONE
            yield EngineDeployment(
                engine=name,
                state="failed" if fault else "planning",
                reason=f"no worker can hold it; worker {worker.id} sends its file to the gateway",
                fault=fault,
            )

    def _sources(self) -> dict[EngineName, ConnectedWorker]:
        """Return the engines that the store lacks, and the worker to copy each one from."""
        found: dict[EngineName, ConnectedWorker] = {}
        for name in self._catalogue.too_large if self._store.loaded else ():
            if is_stage(name) or self._store.of(name) or not self._catalogue.is_faulty(name):
                continue
            for worker_id, offered in self._catalogue.offers_of(name).items():
                is_cuttable = offered.backend == "onnxruntime" and offered.routes != "never"
                if offered.too_large and is_cuttable and worker_id in self._workers:
                    found.setdefault(name, self._workers[worker_id])
        return found

    async def _try_to_bring(self, worker: ConnectedWorker, engine: EngineName) -> str:
        """Copy an engine; return why that has failed, or nothing."""
        try:
            await self._bring(worker, engine)
        except SynergaiError as error:
            _log.warning("engine %s is not copied from worker %s: %s", engine, worker.id, error)
            return str(error)
        return ""


def is_outdated(
    copy: StoredVersion, catalogue: Catalogue, workers: Mapping[WorkerId, ConnectedWorker]
) -> bool:
    """Return whether a copy is no longer needed: its file is gone, or another one replaces it.

    A worker that cannot read or load its file at the moment still has it, as far as is known. What
    a worker can run from its own directory goes before a copy.
    """
    own = [
        offered
        for worker_id, offered in catalogue.offers_of(copy.name).items()
        if worker_id in workers and (copy.engine, copy.version) not in workers[worker_id].placed
    ]
    if any(not each.fault and copy.model_sha256 not in each.digests for each in own):
        return True
    others = [each.fault == REMOVED or each.digest not in ("", copy.model_sha256) for each in own]
    return WorkerId(copy.source) in workers and all(others)

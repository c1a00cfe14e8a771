"""Operation of the fleet by a client: workers, engines, the gateway's store, and versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from synergai.client.channel import CALL_TIMEOUT_S
from synergai.client.connection import GatewayConnection
from synergai.client.fleet import (
    VersionPolicy,
    WorkerStatus,
    version_policy_from_proto,
    worker_from_proto,
)
from synergai.client.requests import normalize_deadline
from synergai.core.explanations import Explanation
from synergai.errors import NotFound, Unavailable
from synergai.names import validate_stored_version
from synergai.v1 import fleet_pb2
from synergai.wire.converters import profile_entry_from_proto

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from synergai.client.store import StoreContent, StoredEngine
    from synergai.core.routes.deployment import EngineDeployment
    from synergai.domain import Engine
    from synergai.profiles.dictionary import ProfileEntry

_INSPECTION_S: Final = 90.0
"""Time within which an engine is inspected if it is the only new one, in seconds."""


class FleetOperations(GatewayConnection):
    """The calls of `Client` that operate a fleet."""

    async def dictionary(self) -> list[ProfileEntry]:
        """List the entries of the gateway's configuration dictionary."""
        method = self._channel.fleet.GetDictionary
        response = await self._channel.call(method, fleet_pb2.GetDictionaryRequest())
        return [profile_entry_from_proto(entry) for entry in response.entries]

    async def workers(self) -> list[WorkerStatus]:
        """List the registered workers."""
        method = self._channel.fleet.ListWorkers
        response = await self._channel.call(method, fleet_pb2.ListWorkersRequest())
        return [worker_from_proto(worker) for worker in response.workers]

    async def deployments(self) -> list[EngineDeployment]:
        """List the engines that the gateway deploys in stages."""
        from synergai.core.routes.deployment import EngineDeployment

        method = self._channel.fleet.ListDeployments
        response = await self._channel.call(method, fleet_pb2.ListDeploymentsRequest())
        return msgspec.json.decode(response.json, type=list[EngineDeployment])

    async def explain(self, request_id: str = "") -> Explanation:
        """Explain why a request or job is late, was refused or waits.

        Args:
            request_id: id of a job, of a request that failed (`SynergaiError.request_id`), or the
                one that a client gave its request; by default, of the newest that was late.

        Raises:
            NotFound: the gateway keeps no explanation of it.
        """
        request = fleet_pb2.ExplainRequest(id=request_id)
        response = await self._channel.call(self._channel.fleet.Explain, request)
        return msgspec.json.decode(response.json, type=Explanation)

    async def engine(self, name: str, *, deadline: float | None = None) -> Engine:
        """Return an engine's description: its inputs, outputs and version.

        This waits while the engine is being inspected.

        Args:
            deadline: seconds to wait; by default, long enough for one inspection.

        Raises:
            NotFound: there is no such engine.
            DeadlineExceeded: there was no description before the deadline.
        """
        timeout = normalize_deadline(deadline)
        return await self._describe(name, _INSPECTION_S if timeout is None else timeout)

    async def ready(self, engine: str = "") -> bool:
        """Return whether the gateway, or one of its engines, is ready."""
        call, stub = self._channel.call, self._channel.oip
        from synergai.oip import inference_pb2

        try:
            if engine:
                name, _, version = engine.partition("/")
                model = inference_pb2.ModelReadyRequest(name=name, version=version)
                return (await call(stub.ModelReady, model)).ready
            server = inference_pb2.ServerReadyRequest()
            return (await call(stub.ServerReady, server)).ready
        except (NotFound, Unavailable):
            return False

    async def load(self, engine: str, *, deadline: float | None = None) -> None:
        """Load an engine on every worker that has it; put it back in service if it was unloaded.

        Returns when the first worker is ready.

        Args:
            deadline: seconds to wait for the first worker; loading continues afterwards. None
                means the gateway's default.

        Raises:
            NotFound: there is no such engine.
            EngineUnusable: no worker can load it.
            DeadlineExceeded: no worker was ready before the deadline.
            Unavailable: no worker is registered.
        """
        method = self._channel.oip.RepositoryModelLoad
        from synergai.oip import repository_pb2

        request = repository_pb2.RepositoryModelLoadRequest(model_name=engine)
        await self._channel.call(method, request, timeout=normalize_deadline(deadline))

    async def unload(self, engine: str) -> None:
        """Take an engine out of service until it is loaded again.

        Work accepted before is completed; idle sessions are then evicted.
        """
        method = self._channel.oip.RepositoryModelUnload
        from synergai.oip import repository_pb2

        request = repository_pb2.RepositoryModelUnloadRequest(model_name=engine)
        await self._channel.call(method, request)

    async def forget(self, engine: str) -> None:
        """Forget which description of an engine clients have relied on.

        Workers that offer another one under its name, and were not used for that reason, may then
        serve it.
        """
        method = self._channel.fleet.ForgetEngine
        await self._channel.call(method, fleet_pb2.ForgetEngineRequest(engine=engine))

    # --- the store of engines -----------------------------------------------------------

    async def push_engine(
        self,
        engine: str,
        version: int,
        manifest: bytes,
        paths: Mapping[str, Path],
        *,
        place: Sequence[str] = (),
        on_progress: Callable[[int, int], object] = lambda _done, _total: None,
    ) -> StoredEngine:
        """Push a version of an engine into the gateway's store.

        Content that the store has is not sent, and an interrupted push is continued by the next
        one. The same version with the same files again changes nothing.

        Args:
            manifest: its manifest, as ``synergai engines push`` makes it.
            paths: a file with each content of the manifest, by SHA-256.
            place: selectors of the workers that should fetch it, such as ``class=agx-xavier``; by
                default, all that have its backend.
            on_progress: called with the bytes that the store has and those of all files.

        Raises:
            Conflict: the version is stored with other files.
            Overloaded: the store has no room for it.
        """
        from synergai.client.store import EnginePush

        validate_stored_version(version)
        push = EnginePush(self._channel, engine, version, manifest, paths, on_progress)
        return await push.run(place)

    async def stored_engines(self) -> StoreContent:
        """Return what the gateway's store has, and which workers have fetched it."""
        method = self._channel.store.List
        from synergai.client.store import StoreContent, stored_from_proto
        from synergai.v1 import store_pb2

        response = await self._channel.call(method, store_pb2.ListStoredRequest())
        return StoreContent(tuple(map(stored_from_proto, response.engines)), response.used_bytes)

    async def place_engine(self, engine: str, version: int, place: Sequence[str]) -> StoredEngine:
        """Change which workers fetch a version; without selectors, all that have its backend."""
        method = self._channel.store.Place
        from synergai.client.store import stored_from_proto
        from synergai.v1 import store_pb2

        validate_stored_version(version)
        request = store_pb2.PlaceRequest(engine=engine, version=version, placement=place)
        return stored_from_proto(await self._channel.call(method, request))

    async def remove_engine(self, engine: str, version: int) -> int:
        """Remove a version from the store and the workers; return the bytes that it freed."""
        method = self._channel.store.Remove
        from synergai.v1 import store_pb2

        validate_stored_version(version)
        request = store_pb2.RemoveRequest(engine=engine, version=version)
        return (await self._channel.call_once(method, request, CALL_TIMEOUT_S)).freed_bytes

    async def version_policy(self, engine: str) -> VersionPolicy:
        """Return which version of an engine requests get that name none, and figures of each."""
        method = self._channel.fleet.GetVersionPolicy
        request = fleet_pb2.GetVersionPolicyRequest(engine=engine)
        return version_policy_from_proto(await self._channel.call(method, request))

    async def roll_out(
        self, engine: str, version: str, share: float, *, deadline: float | None = None
    ) -> VersionPolicy:
        """Give a version a share of the requests that name none, or change its share.

        Returns once a worker has loaded the version. If none can, the rollout is rolled back.

        Args:
            deadline: seconds to wait for the first worker; the rollout continues. None
                means the gateway's default.

        Raises:
            InvalidInput: the share is invalid, or there is no other version.
            Conflict: a rollout to another version is under way.
            EngineUnusable: no worker can load the version.
        """
        rollout = fleet_pb2.Rollout(version=version, share=share)
        change = fleet_pb2.SetVersionPolicyRequest(engine=engine, rollout=rollout)
        return await self._set_version_policy(change, deadline)

    async def promote(self, engine: str) -> VersionPolicy:
        """End a rollout: all requests that name no version get the new one."""
        return await self._set_version_policy(
            fleet_pb2.SetVersionPolicyRequest(engine=engine, promote=True)
        )

    async def roll_back(self, engine: str) -> VersionPolicy:
        """End a rollout: all requests that name no version get the old one."""
        return await self._set_version_policy(
            fleet_pb2.SetVersionPolicyRequest(engine=engine, roll_back=True)
        )

    async def pin(
        self, engine: str, version: str, *, deadline: float | None = None
    ) -> VersionPolicy:
        """Give all requests that name no version this one, once a worker has loaded it.

        Raises:
            EngineUnusable: no worker can load the version.
        """
        change = fleet_pb2.SetVersionPolicyRequest(engine=engine)
        if version:
            change.pin = version
        else:
            change.latest = True
        return await self._set_version_policy(change, deadline)

    async def _set_version_policy(
        self, change: fleet_pb2.SetVersionPolicyRequest, deadline: float | None = None
    ) -> VersionPolicy:
        method = self._channel.fleet.SetVersionPolicy
        response = await self._channel.call(method, change, timeout=normalize_deadline(deadline))
        return version_policy_from_proto(response)

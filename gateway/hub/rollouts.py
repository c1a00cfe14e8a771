"""Changes of the version policies: rollouts, pins, and what the gateway rolls back by itself.

A new version is loaded by a worker before requests switch to it. If it cannot be loaded by any, a
rollout to it is rolled back; requests have stayed with the old version.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gateway.fleet.stages import EngineInStages
from gateway.fleet.versions import LATEST, VersionPolicy, Versions
from synergai.errors import Conflict, EngineUnusable, InvalidInput, SynergaiError
from synergai.names import split_version, validate_version, versioned
from synergai.runtime.files import without_path
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from synergai.domain import EngineName

RETRY_S: Final = 5.0
"""Time after which the load of a version is tried again that no worker could do at the moment."""

_LOOK_S: Final = 1.0
"""Interval of looks whether the stages of a version are loaded."""

_log = logging.getLogger(__name__)


class Rollouts:
    """Changes which versions requests without a version get."""

    def __init__(
        self,
        versions: Versions,
        load: Callable[[str], Awaitable[None]],
        write: Callable[[Mapping[str, VersionPolicy]], Awaitable[None]],
    ) -> None:
        self._versions = versions
        self._load_engine = load
        self._write_policies = write
        self._preparing: dict[EngineName, asyncio.Task[None]] = {}
        self._loading = TaskBag()
        self._writing = TaskBag()
        self._changing = asyncio.Lock()
        versions.prepare = self._prepare
        versions.on_unusable = self._on_unusable
        versions.hold = self._hold

    async def close(self) -> None:
        """Stop loading versions, and complete what is being written."""
        await self._loading.close()
        await self._writing.wait()

    # --- changes --------------------------------------------------------------------------------

    async def start(self, name: str, version: str, share: float) -> None:
        """Give a version a share of the requests, 0 to 1, or change its share.

        Returns once a worker has loaded it. If the call is cancelled, the rollout continues.
        """
        async with self._changing:
            await self._apply(name, self._begun(name, version, share))
        _log.info("engine %s: version %s gets %.6g %% of requests", name, version, share * 100)
        await self._prepared(versioned(name, version))

    async def pin(self, name: str, version: str) -> None:
        """Give all requests a version, once a worker has loaded it. This ends a rollout."""
        await self._load_now(name, version)
        async with self._changing:
            await self._apply(name, VersionPolicy(base=version))
        _log.info("engine %s: pinned to version %s", name, version)

    async def promote(self, name: str) -> None:
        """End a rollout: all requests get the new version."""
        version = self._rollout(name).target
        await self._load_now(name, version)
        async with self._changing:
            if (other := self._rollout(name).target) != version:
                raise Conflict(f"a rollout of engine {name!r} to version {other} began meanwhile")
            await self._apply(name, VersionPolicy(base=version))
        _log.info("engine %s: promoted version %s", name, version)

    async def roll_back(self, name: str) -> None:
        """End a rollout: all requests get the old version."""
        async with self._changing:
            policy = self._rollout(name)
            await self._apply(name, VersionPolicy(base=policy.base))
        _log.info("engine %s: rolled back to version %s", name, policy.base)

    async def follow_latest(self, name: str) -> None:
        """Give requests the highest usable version again. This ends a rollout or a pin."""
        self._versions.selected(name)
        async with self._changing:
            await self._apply(name, LATEST)
        _log.info("engine %s: the highest usable version gets all requests", name)

    # --- checks ---------------------------------------------------------------------------------

    def _begun(self, name: str, version: str, share: float) -> VersionPolicy:
        before = self._versions.policy(name)
        if before.target not in ("", version):
            raise Conflict(
                f"engine {name!r} is being rolled out to version {before.target}: promote it or "
                "roll it back first"
            )
        self._usable(name, version)
        base = before.base or self._old_version(name, version)
        if base == version:
            raise InvalidInput(
                f"engine {name!r} is pinned to version {version} already; roll out another one"
            )
        return VersionPolicy(base=base, target=version, share=share)

    def _usable(self, name: str, version: str) -> EngineName:
        target = self._versions.resolve(name, validate_version(version))
        with suppress(EngineInStages):
            self._versions.catalogue.find(target)
        return target

    def _old_version(self, name: str, version: str) -> str:
        """Return the version next to a new one: that of requests now, or else the highest other."""
        _, current = split_version(self._versions.resolve(name))
        others = [each for each in self._versions.in_service(name) if each != version]
        if current != version and current in others:
            return current
        if not others:
            raise InvalidInput(
                f"engine {name!r} has no version in service except {version}: there is nothing to "
                "roll out from"
            )
        return others[-1]

    def _rollout(self, name: str) -> VersionPolicy:
        self._versions.selected(name)
        policy = self._versions.policy(name)
        if not policy.target:
            raise InvalidInput(
                f"engine {name!r} is not being rolled out; pin the version that requests should "
                "get (rollout --pin N)"
            )
        return policy

    # --- policies -------------------------------------------------------------------------------

    async def _apply(self, name: str, policy: VersionPolicy) -> None:
        """Record a policy and apply it; it is not applied if it cannot be recorded.

        The lock is held: a change that is being recorded is not among the policies yet.
        """
        policies = self._versions.policies | {name: policy}
        with without_path(f"the version policy of engine {name!r} cannot be recorded"):
            await self._write_policies({each: p for each, p in policies.items() if p != LATEST})
        self._versions.set_policy(name, policy)

    def _fall_back(self, name: str, reason: str) -> None:
        policy = replace(self._versions.policy(name), target="", share=0.0, reason=reason)
        _log.error("engine %s: rolled back to version %s: %s", name, policy.base, reason)
        self._set_now(name, policy)

    def _hold(self, name: str, policy: VersionPolicy) -> None:
        """Begin a rollout that waits for an operator."""
        text = (
            "engine %s: version %s answers on, as %s; give the new one requests with "
            "'synergai engines rollout %s --to %s --share 100%%'"
        )
        _log.warning(text, name, policy.base, policy.reason, name, policy.target)
        self._set_now(name, policy)

    def _set_now(self, name: str, policy: VersionPolicy) -> None:
        self._versions.set_policy(name, policy)
        self._writing.start(self._write())

    async def _write(self) -> None:
        try:
            async with self._changing:
                await self._write_policies(self._versions.policies)
        except SynergaiError as error:
            _log.error("the version policies hold until the next restart only: %s", error)

    # --- versions -------------------------------------------------------------------------------

    async def _load_now(self, name: str, version: str) -> None:
        """Load a version, unless requests may switch to it already."""
        target = self._usable(name, version)
        if not self._versions.is_prepared(target):
            await self._load_engine(target)
            self._versions.set_prepared(target)

    def _on_unusable(self, engine: EngineName) -> None:
        name, version = split_version(engine)
        if version == self._versions.policy(name).target:
            try:
                self._versions.catalogue.check_in_service(engine)
            except SynergaiError as error:
                self._fall_back(name, str(error))

    def _prepare(self, engine: EngineName) -> None:
        """Have a version loaded, unless that is under way."""
        loading = self._preparing.get(engine)
        if loading is None or loading.done():
            task = self._preparing[engine] = self._loading.start(self._load(engine))
            task.add_done_callback(partial(self._end_load, engine))

    def _end_load(self, engine: EngineName, task: asyncio.Task[None]) -> None:
        # Another one may have begun since.
        if self._preparing.get(engine) is task:
            del self._preparing[engine]

    async def _prepared(self, engine: EngineName) -> None:
        """Wait until the load of a version is over; raise why a rollout to it was rolled back."""
        task = self._preparing.get(engine)
        if task is not None:
            await asyncio.wait([task])
        name, version = split_version(engine)
        policy = self._versions.policy(name)
        if policy.reason and policy.target != version:
            raise EngineUnusable(f"rolled back to version {policy.base}: {policy.reason}")

    async def _load(self, engine: EngineName) -> None:
        name, version = split_version(engine)
        stages = self._versions.catalogue.stages
        if stages.any:  # whether it is to run in stages is known by then
            await asyncio.sleep(_LOOK_S)
        while self._versions.catalogue.serves(engine):
            if engine in stages.awaited:
                await asyncio.sleep(_LOOK_S)
                continue
            try:
                if engine not in stages.preferred:
                    await self._load_engine(engine)
            except EngineUnusable as error:
                _log.warning("%s stays without requests: %s", engine, error)
                if version == self._versions.policy(name).target:
                    self._fall_back(name, str(error))
                return
            except SynergaiError as error:  # its workers are leaving, or busy
                _log.info("%s is not loaded yet: %s", engine, error)
                await asyncio.sleep(RETRY_S)
            else:
                self._versions.set_prepared(engine)
                return

"""Resolution of engine names to versions, for requests and jobs.

Clients name an engine, and maybe a version of it. Everything behind this module deals with one
version at a time, an `EngineName`.

A version that requests would switch to is *prepared* first: loaded by a worker while another
version, if one is in service, keeps answering.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from gateway.fleet.routes import Routes
from gateway.fleet.stages import EngineInStages
from synergai.errors import (
    EnginePending,
    EngineUnserved,
    InvalidInput,
    SynergaiError,
    Unavailable,
    VersionNotFound,
)
from synergai.names import (
    engine_of_stage,
    parse_version,
    split_version,
    validate_version,
    versioned,
    versioned_variant,
)
from synergai.runtime.files import StateFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from gateway.fleet.catalogue import Catalogue
    from synergai.domain import Engine, EngineName
    from synergai.jobs import JobSpec

POLICY_FILE: Final = "version-policies.json"
"""Name of the file in the gateway's state directory."""
_HASH_BYTES: Final = 8


class VersionPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The policy of one engine.

    Requests without a version get `base`, the pinned one or the old one of a rollout; empty means
    the highest usable one. A share of them, 0 to 1, gets `target`. The reason is why the last
    rollout was rolled back.
    """

    base: str = ""
    target: str = ""
    share: float = 0.0
    reason: str = ""

    def __post_init__(self) -> None:
        for version in (self.base, self.target):
            if version:
                validate_version(version)
        if not 0.0 <= self.share <= 1.0:
            raise InvalidInput(f"the share must be from 0 % to 100 %, not {self.share:.6g}")


LATEST: Final = VersionPolicy()
"""Without a policy, requests get the highest usable version."""


def draw(name: str, target: str, request_id: str) -> float:
    """Return a number from 0 to 1 (exclusive): below the share, a request gets the target.

    The same id of a request always gives the same number, so that growing the share only moves
    requests from the old version to the new one. Other targets give other numbers: it is not
    always the same requests that get a new version first. Without an id, the number is random.
    """
    if not request_id:
        return random.random()
    text = f"{name}/{target}/{request_id}".encode()
    return int.from_bytes(blake2b(text, digest_size=_HASH_BYTES).digest()) / 256**_HASH_BYTES


class PolicyFile:
    """The policies of all engines that have one, in the gateway's state directory."""

    def __init__(self, state: Path) -> None:
        self._file = StateFile(
            state / POLICY_FILE,
            dict[str, VersionPolicy],
            "Move it away to serve the highest version of every engine",
        )
        self._writing = asyncio.Lock()

    def read(self) -> dict[str, VersionPolicy]:
        return self._file.read() or {}

    async def write(self, policies: Mapping[str, VersionPolicy]) -> None:
        async with self._writing:
            await asyncio.to_thread(self._file.write, dict(policies))


_MAX_NAMED: Final = 20
"""Versions that an error names, of those in service or else of those known."""


class Versions:
    """Resolves names of engines.

    Args:
        stored: returns the versions of an engine that are in the store; none by default. Call
            `on_stored_changed` whenever they may have changed.

    Attributes:
        routes: the routes of queries through engines.
        found: what `find` has returned without a version, of engines whose requests all get the
            same one; for the path of every request.
        prepare: called with a version in service that has to be prepared; calls `set_prepared`
            once it is. By default, every version is prepared.
        on_route_changed: called with an engine that has stages when it, or one of them, changes.
        on_unusable: called with a version that has a fault on every worker that has it.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        policies: Mapping[str, VersionPolicy] | None = None,
        *,
        stored: Callable[[str], Collection[int]] = lambda _: (),
        check_floor: Callable[[EngineName, float, str], object] = lambda *_: None,
    ) -> None:
        self.catalogue = catalogue
        self.routes = Routes(catalogue)
        self.policies: dict[str, VersionPolicy] = dict(policies or {})
        self.prepare: Callable[[EngineName], object] = self.set_prepared
        self.on_route_changed: Callable[[EngineName], object] = lambda _: None
        self.on_unusable: Callable[[EngineName], object] = lambda _: None
        self.hold: Callable[[str, VersionPolicy], object] = self.set_policy
        self.check_floor = check_floor
        self._stored = stored
        self._prepared: set[EngineName] = set()
        # Of engines whose requests all get the same version, which is in service.
        self._defaults: dict[str, EngineName] = {}
        self.found: dict[str, Engine] = {}
        catalogue.on_service_changed = self._on_service_changed

    def resolve(self, name: str, version: str = "", request_id: str = "") -> EngineName:
        """Return the version of an engine that a request or job gets.

        It need not be in service; `Catalogue.find` tells. A client may ask for a version, and maybe
        a variant of it, such as ``2.int8``; the gateway chooses otherwise.
        """
        if not version:
            default = self._defaults.get(name)
            if default is not None:
                return default
        return self._resolve(name, parse_version(version)[0], request_id)

    def find(self, name: str, version: str = "", request_id: str = "") -> Engine:
        """Return the version of an engine that a request gets; see `resolve`."""
        engine = self.catalogue.find(self.resolve(name, version, request_id))
        if "." in version:
            check_variant(engine, parse_version(version)[1])
        if name in self._defaults and not version:
            self.found[name] = engine
        return engine

    def of_job(self, spec: JobSpec, key: str = "") -> JobSpec:
        """Return the specification of a job with the version that it gets; see `resolve`.

        An idempotency key stands for the id of a request.
        """
        engine = self.resolve(spec.engine, spec.version, key)
        if spec.variant and self.catalogue.serves(engine):
            check_variant(self.catalogue.find(engine), spec.variant)
        if spec.min_accuracy:
            self.check_floor(engine, spec.min_accuracy, spec.variant)
        _, version = split_version(engine)
        return spec if version == spec.version else replace(spec, version=version)

    def policy(self, name: str) -> VersionPolicy:
        return self.policies.get(name, LATEST)

    def set_policy(self, name: str, policy: VersionPolicy) -> None:
        """Set the policy of an engine; requests follow it from now on."""
        if policy == LATEST:
            self.policies.pop(name, None)
        else:
            self.policies[name] = policy
        self._forget_default(name)
        if policy.target:
            self._make_ready(versioned(name, policy.target))

    def set_prepared(self, engine: EngineName) -> None:
        """Let requests switch to a version that a worker has loaded."""
        if self.catalogue.serves(engine):
            self._prepared.add(engine)
            self._forget_default(split_version(engine)[0])

    def is_prepared(self, engine: EngineName) -> bool:
        """Return whether requests may switch to a version; queries load one in stages."""
        return engine in self._prepared or self._runs_in_stages(engine)

    async def wait_inspected(
        self, name: str, version: str = "", timeout_s: float | None = None
    ) -> None:
        """Wait until a version of an engine is no longer pending; return at once if unknown."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        # By the time this continues, it may be pending again, or another version instead of it.
        while (engine := self._find_pending(name, version)) is not None:
            remaining_s = None if deadline is None else deadline - loop.time()
            await self.catalogue.wait_inspected(engine, remaining_s)

    def _find_pending(self, name: str, version: str) -> EngineName | None:
        """Return the version of an engine that a request gets if it is pending, or else None."""
        try:
            engine = self.resolve(name, version)
            self.catalogue.find_usable(engine)
        except EnginePending:
            return engine
        except SynergaiError:
            return None  # the caller gets the same error
        return None

    def in_service(self, name: str) -> list[str]:
        """Return the versions of an engine that accept requests, in increasing order."""
        known = self.catalogue.versions_of(name)
        return [split_version(each)[1] for each in known if self.catalogue.answers(each)]

    def selected(self, text: str) -> Sequence[EngineName]:
        """Return the versions that ``NAME`` (all) or ``NAME/N`` (one) stands for."""
        name, separator, version = text.partition("/")
        if separator:
            return [self.resolve(name, version)]
        known = tuple(self.catalogue.versions_of(name))
        if not known:
            raise self.catalogue.not_found(name)
        return known

    def counts(self, engine: EngineName) -> bool:
        """Return whether a version may be the highest one, which requests get by default.

        Any worker that may serve an engine can offer a version of it. Once the store has versions,
        those above all of them do not count.
        """
        name, version = split_version(engine)
        stored = self._stored(name)
        return not stored or int(version) <= max(stored)

    def on_stored_changed(self) -> None:
        """Take changed versions in the store into account."""
        self._defaults.clear()
        self.found.clear()

    def _forget_default(self, name: str) -> None:
        self._defaults.pop(name, None)
        self.found.pop(name, None)

    def _resolve(self, name: str, version: str, request_id: str) -> EngineName:
        known = self.catalogue.versions_of(name)
        if not known:
            raise self.catalogue.not_found(name)
        if version:
            engine = versioned(name, version)
            if engine in known:
                return engine
            named = self.in_service(name) or [split_version(each)[1] for each in known]
            # A variant's name without its version: suggest the version.
            meant = [
                versioned_variant(split_version(each)[1], version)
                for each in known
                if any(variant.name == version for variant in self.catalogue.variants_of(each))
            ]
            raise VersionNotFound(name, version, (meant or named)[-_MAX_NAMED:])
        policy = self.policy(name)
        if policy.target:
            return self._of_rollout(name, policy, request_id)
        engine = versioned(name, policy.base) if policy.base else self._choose_latest(name, known)
        if self.catalogue.serves(engine):
            self._defaults[name] = engine
        return engine

    def _of_rollout(self, name: str, policy: VersionPolicy, request_id: str) -> EngineName:
        base, target = versioned(name, policy.base), versioned(name, policy.target)
        if self._make_ready(target) and draw(name, policy.target, request_id) < policy.share:
            return target
        # The other version is better than none.
        return (
            target if self.catalogue.answers(target) and not self.catalogue.answers(base) else base
        )

    def _choose_latest(self, name: str, known: Sequence[EngineName]) -> EngineName:
        """Choose the highest usable version, or the highest that is ready until then."""
        counting = [each for each in known if self.counts(each)]
        if not counting:
            offered = ", ".join(split_version(each)[1] for each in known[-_MAX_NAMED:])
            raise Unavailable(
                f"no worker has a version of engine {name!r} that is in the store; of the others "
                f"({offered}), ask for one by its number, or pin it"
            )
        stored = self._stored(name)
        highest = max(counting, key=partial(self._usability, stored))
        if not self.catalogue.serves(highest):
            return highest
        others = [each for each in counting if each in self._prepared]
        if not others:  # no other version could answer until then
            self._prepared.add(highest)
            return highest
        if self._make_ready(highest):
            return highest
        return max(others, key=partial(self._usability, stored))

    def _make_ready(self, engine: EngineName) -> bool:
        """Prepare a version in service, if it is not prepared; return whether it is now."""
        if not self.is_prepared(engine) and self.catalogue.serves(engine):
            self.prepare(engine)
        return self.is_prepared(engine)

    def _runs_in_stages(self, engine: EngineName) -> bool:
        return not self.catalogue.serves(engine) and self.catalogue.is_staged(engine)

    def _usability(self, stored: Collection[int], engine: EngineName) -> tuple[int, bool, int]:
        """Return a key by which the version to use is the largest: the highest usable one.

        If there is none, the key is largest for the version most likely to become usable. Versions
        of the store take precedence.
        """
        number = int(split_version(engine)[1])
        try:
            self.catalogue.check_in_service(engine)
        except EngineInStages:
            pass
        except EngineUnserved:
            return 1, number in stored, number
        except EnginePending:
            return 2, number in stored, number
        except Unavailable:
            return 1, number in stored, number
        except SynergaiError:
            return 0, number in stored, number
        return 3, number in stored, number

    def _on_service_changed(self, engine: EngineName) -> None:
        whole = engine_of_stage(engine)
        if whole in self.catalogue.stages:
            self.on_route_changed(whole)
        name, version = split_version(engine)
        self._forget_default(name)
        if self.catalogue.serves(engine):
            if name not in self.policies:
                self._hold_other_tensors(name)
            elif version == self.policies[name].target:
                self._make_ready(engine)
            return
        self._prepared.discard(engine)
        if self.catalogue.is_faulty(engine):
            self.on_unusable(engine)

    def _hold_other_tensors(self, name: str) -> None:
        """Hold back a version that clients could not use as they use the one before it."""
        known = [each for each in self.catalogue.versions_of(name) if self.counts(each)]
        used = [each for each in known if self.catalogue.is_relied_on(each)]
        if not used or (newest := known[-1]) in used or not self.catalogue.serves(newest):
            return
        if self.catalogue.has_same_tensors(newest, used[-1]):
            return
        base, target = split_version(used[-1])[1], split_version(newest)[1]
        reason = f"version {target} has other inputs or outputs than version {base}"
        self.hold(name, VersionPolicy(base=base, target=target, reason=reason))


def check_variant(engine: Engine, variant: str) -> None:
    """Check that a connected worker has a variant of an engine."""
    if not engine.has_variant(variant):
        name, version = split_version(engine.name)
        variants = [versioned_variant(version, each.name) for each in engine.variants]
        raise VersionNotFound(name, versioned_variant(version, variant), [version, *variants])

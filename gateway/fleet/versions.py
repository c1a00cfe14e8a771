"""Which version of an engine a request or job gets: names become versions here, and only here.

Clients name an engine, and maybe a version of it. Everything behind this module deals with one
version at a time, an `EngineName`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from synergai.domain import EngineName, split_version, versioned
from synergai.errors import EnginePending, SynergaiError, Unavailable, VersionNotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.fleet.catalogue import Catalogue
    from synergai.domain import Engine, JobSpec

_MAX_NAMED: Final = 20
"""Versions that an error names, of those in service or else of those known."""


class Versions:
    """Resolves names of engines.

    Args:
        catalogue: the engines of all versions.

    Attributes:
        catalogue: as given.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        # Of engines in service; empty entries are found again at the next request.
        self._defaults: dict[str, EngineName] = {}
        catalogue.on_service_changed = self._forget_default

    def resolve(self, name: str, version: str = "", request_id: str = "") -> EngineName:
        """Return the version of an engine that a request or job gets.

        It need not be in service; `Catalogue.find` tells.

        Args:
            name: name of the engine, without a version.
            version: the version that the client asks for; empty leaves the choice to the gateway.
            request_id: id of the request, if it has one.

        Raises:
            EngineNotFound: no worker has ever had the engine.
            VersionNotFound: no worker has ever had this version of it.
        """
        if not version:
            default = self._defaults.get(name)
            if default is not None:
                return default
        return self._resolve(name, version, request_id)

    def find(self, name: str, version: str = "", request_id: str = "") -> Engine:
        """Return the version of an engine that a request gets; see `resolve`.

        Raises:
            NotFound: no worker has ever had the engine, or this version of it.
            Unavailable, EngineUnusable: see `Catalogue.find`.
        """
        return self.catalogue.find(self.resolve(name, version, request_id))

    def of_job(self, spec: JobSpec, key: str = "") -> JobSpec:
        """Return the specification of a job with the version that it gets; see `resolve`.

        Args:
            spec: as the client asks for it.
            key: idempotency key, if it has one; stands for the id of a request.
        """
        _, version = split_version(self.resolve(spec.engine, spec.version, key))
        return spec if version == spec.version else replace(spec, version=version)

    async def wait_inspected(
        self, name: str, version: str = "", timeout_s: float | None = None
    ) -> None:
        """Wait until a version of an engine is not pending any more; return at once if unknown.

        Raises:
            DeadlineExceeded: the timeout expired.
        """
        try:
            engine = self.resolve(name, version)
        except SynergaiError:
            return  # the caller finds out by itself
        await self.catalogue.wait_inspected(engine, timeout_s)

    def in_service(self, name: str) -> list[str]:
        """Return the versions of an engine that accept requests, in increasing order."""
        known = self.catalogue.versions_of(name)
        return [split_version(each)[1] for each in known if self.catalogue.serves(each)]

    def selected(self, text: str) -> Sequence[EngineName]:
        """Return what ``NAME`` or ``NAME/N`` stands for in an operation: all versions, or one.

        Raises:
            NotFound: no worker has ever had it.
        """
        name, separator, version = text.partition("/")
        one = self.resolve(name, version)
        return [one] if separator else tuple(self.catalogue.versions_of(name))

    def _resolve(self, name: str, version: str, _request_id: str) -> EngineName:
        known = self.catalogue.versions_of(name)
        if not known:
            raise self.catalogue.not_found(name)
        if version:
            engine = versioned(name, version)
            if engine in known:
                return engine
            named = self.in_service(name) or [split_version(each)[1] for each in known]
            raise VersionNotFound(name, version, named[-_MAX_NAMED:])
        engine = max(known, key=self._usability)
        if self.catalogue.serves(engine):
            self._defaults[name] = engine
        return engine

    def _usability(self, engine: EngineName) -> tuple[int, int]:
        """Return a key by which the version to use is the largest: the highest usable one.

        If there is none, the one that is most likely to become usable.
        """
        number = int(split_version(engine)[1])
        try:
            self.catalogue.check_in_service(engine)
        except EnginePending:
            return 2, number
        except Unavailable:
            return 1, number
        except SynergaiError:
            return 0, number
        return 3, number

    def _forget_default(self, engine: EngineName) -> None:
        self._defaults.pop(split_version(engine)[0], None)

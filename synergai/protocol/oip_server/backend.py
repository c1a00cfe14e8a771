"""Interface between the protocol server and the program that runs its requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from synergai.domain import Engine, EngineName
    from synergai.protocol.oip_server.statistics import EngineStatistics
    from synergai.protocol.request_codec import Buffer, RequestHeader
    from synergai.protocol.rpc import RawRequest


class PendingRequest(Protocol):
    """An accepted request."""

    @property
    def result(self) -> asyncio.Future[Buffer]:
        """The serialised ``ModelInferResponse``, or a `SynergaiError`."""

    def abandon(self) -> None:
        """Cancel the request, because its client is gone or has cancelled it."""


class InferenceBackend(Protocol):
    """Engines and requests behind a server of the Open Inference Protocol."""

    def is_ready(self) -> bool:
        """Return whether requests are accepted."""

    def begin(
        self, raw: RawRequest[RequestHeader], budget_s: float | None, tenant: str
    ) -> PendingRequest:
        """Accept a request and start it.

        Args:
            raw: the request.
            budget_s: seconds until the call's deadline; None if it has none.
            tenant: tenant in the call's metadata; empty if there is none.

        Raises:
            SynergaiError: the request is rejected.
        """

    async def wait_inspected(self, name: str, version: str, budget_s: float | None) -> None:
        """Wait while the workers of an engine, known or not, are still inspecting it.

        Raises:
            DeadlineExceeded: the budget ran out.
        """

    def find_engine(self, name: str, version: str) -> Engine:
        """Return a version of an engine in service.

        Args:
            name: name of the engine.
            version: the version, and maybe a variant of it, such as ``2.int8``; empty for the one
                that requests without a version get.

        Raises:
            NotFound: there is no such engine, or not this version of it.
            Unavailable: it cannot run now.
            EngineUnusable: it is faulty or unloaded.
        """

    def versions_in_service(self, name: str) -> Sequence[str]:
        """Return the versions of an engine that accept requests, each before its variants."""

    def engines_in_service(self) -> Iterable[EngineName]:
        """Return the engines that accept requests, sorted by name and version."""

    def known_engines(self) -> Iterable[EngineName]:
        """Return all engines, sorted by name and version, whether in service or not."""

    def state_out_of_service(self, name: EngineName) -> str:
        """Return Triton's state of an engine that is not in service, such as ``UNAVAILABLE``."""

    def statistics(self, name: EngineName, variant: str = "") -> EngineStatistics:
        """Return the statistics of an engine, or of one of its variants."""

    async def load(self, name: str, budget_s: float | None) -> None:
        """Load an engine ``NAME``, or a version ``NAME/N``, and put it in service.

        Raises:
            SynergaiError: it cannot be loaded within the budget.
        """

    async def unload(self, name: str) -> None:
        """Take an engine ``NAME``, or ``NAME/N``, out of service, and unload it once idle.

        Raises:
            NotFound: there is no such engine.
        """

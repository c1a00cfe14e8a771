"""The gateway behind the Open Inference Protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gateway.access.caller import current_caller
from gateway.access.engines import READERS, visible_engines
from gateway.access.roles import Role
from gateway.audit.calls import REFUSALS, record_refusal
from gateway.requests.shared_tensors import SharedMemoryRequest, SharedTensors
from synergai.errors import EnginePending
from synergai.protocol.oip_server.variants import of_variant, with_variants
from synergai.protocol.request_codec import names_regions
from synergai.versions import parse_version, versioned

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gateway.admission.limits import Admission
    from gateway.fleet.versions import Versions
    from gateway.hub.model_control import ModelControl
    from gateway.monitoring.metrics import Metrics
    from gateway.requests.held import HeldRequests
    from gateway.requests.inference import Inference
    from gateway.requests.shared_memory import SharedMemoryRegions
    from synergai.domain import Engine, EngineName
    from synergai.protocol.oip_server.backend import PendingRequest
    from synergai.protocol.oip_server.statistics import EngineStatistics
    from synergai.protocol.request_codec import RequestHeader
    from synergai.protocol.rpc import RawRequest

EXTENSIONS: Final = (
    "binary_tensor_data",
    "parameters",
    "schedule_policy",
    "synergai_min_accuracy",
    "synergai_tenant",
    "synergai_timings",
    "system_shared_memory",
)
"""Protocol extensions of the gateway beside those of every server."""


class GatewayBackend:
    """Runs requests on the fleet; implements ``InferenceBackend``."""

    def __init__(
        self,
        inference: Inference,
        held: HeldRequests,
        versions: Versions,
        admission: Admission,
        metrics: Metrics,
        model_control: ModelControl,
        regions: SharedMemoryRegions,
    ) -> None:
        self._inference = inference
        self._held = held
        self._versions = versions
        self._catalogue = versions.catalogue
        self._admission = admission
        self._metrics = metrics
        self._model_control = model_control
        self._regions = regions

    def is_ready(self) -> bool:
        """Return whether requests are accepted."""
        return self._admission.open

    def begin(
        self, raw: RawRequest[RequestHeader], budget_s: float | None, tenant: str
    ) -> PendingRequest:
        """Accept and enqueue a request, or hold it while its engine is being inspected."""
        caller, tensors = current_caller(), None
        request: PendingRequest
        try:
            if names_regions(raw.parsed):
                tensors = SharedTensors(self._regions, caller.tenant, raw)
                raw = tensors.request
            try:
                request = self._inference.begin(caller, raw, budget_s, tenant)
            except EnginePending:
                request = self._held.hold(caller, raw, budget_s, tenant)
        except REFUSALS as error:
            record_refusal(error, raw.parsed.message.model_name)
            raise
        return request if tensors is None else SharedMemoryRequest(request, tensors)

    async def wait_inspected(self, name: str, version: str, budget_s: float | None) -> None:
        """Wait until an engine has been inspected; see `Versions.wait_inspected`."""
        current_caller().check(*READERS, engine=name)
        await self._versions.wait_inspected(name, version, budget_s)

    def find_engine(self, name: str, version: str) -> Engine:
        """Return a version of an engine in service, or a variant of it; see `Versions.find`."""
        current_caller().check(*READERS, engine=name)
        engine = self._versions.find(name, version)
        return of_variant(engine, parse_version(version)[1]) if "." in version else engine

    def versions_in_service(self, name: str) -> Sequence[str]:
        """Return the versions of an engine that accept requests, each before its variants."""
        return with_variants(
            (version, self._catalogue.variants_of(versioned(name, version)))
            for version in self._versions.in_service(name)
        )

    def engines_in_service(self) -> Iterable[EngineName]:
        """Return the engines that accept requests and the caller may see, sorted."""
        return visible_engines(current_caller(), self._catalogue.in_service())

    def known_engines(self) -> Iterable[EngineName]:
        """Return all engines ever known that the caller may see, sorted."""
        return visible_engines(current_caller(), self._catalogue.known_engines())

    def state_out_of_service(self, name: EngineName) -> str:
        """Return whether the engine is being loaded or unloaded, or else unavailable."""
        if self._model_control.is_loading(name):
            return "LOADING"
        if name in self._catalogue.unloaded and self._model_control.is_resident(name):
            return "UNLOADING"
        return "UNAVAILABLE"

    def statistics(self, name: EngineName, variant: str = "") -> EngineStatistics:
        """Return the statistics of an engine, or of one of its variants."""
        metrics = self._metrics.engine(name)
        return metrics.variant(variant).statistics if variant else metrics.statistics

    async def load(self, name: str, budget_s: float | None) -> None:
        """Load an engine on the workers that have it; see `ModelControl.load`."""
        current_caller().check(Role.OPERATE, engine=name)
        await self._model_control.load_any(self._versions.selected(name), budget_s)

    async def unload(self, name: str) -> None:
        """Take an engine out of service; see `ModelControl.unload`."""
        current_caller().check(Role.OPERATE, engine=name)
        for engine in self._versions.selected(name):
            await self._model_control.unload(engine)

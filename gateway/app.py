"""A gateway without its servers: its parts, built one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.calls.requests.held import HeldRequests
from gateway.calls.requests.inference import Inference
from gateway.calls.requests.staged import StagedRequests
from gateway.calls.servicers.inference_calls import InferenceCalls
from gateway.monitoring.tracing import Tracing
from gateway.parts.agents import AgentParts, build_agents
from gateway.parts.entry import EntryParts, build_entry
from gateway.parts.fleet import FleetParts, build_fleet
from gateway.parts.foundation import Foundation, lay_foundation
from gateway.parts.jobs import JobParts, build_jobs
from gateway.parts.storage import StorageParts, open_storage

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from gateway.gateway_settings import GatewaySettings


@dataclass(frozen=True)
class App:
    """The parts of a gateway."""

    base: Foundation
    entry: EntryParts
    storage: StorageParts
    fleet: FleetParts
    jobs: JobParts
    agents: AgentParts
    held: HeldRequests
    calls: InferenceCalls


async def build_app(config: GatewaySettings, stack: AsyncExitStack) -> App:
    """Build the parts of a gateway; closing `stack` closes them."""
    base = lay_foundation(config, stack)
    try:
        entry = build_entry(base)
        storage = await open_storage(base)
        fleet = await build_fleet(base, storage)
        jobs = await build_jobs(base, storage, entry, fleet)
        agents = await build_agents(base, storage, fleet, entry.access)
        admission, versions = entry.admission, fleet.versions
        inference = Inference(
            fleet.dispatcher,
            versions,
            fleet.variants,
            admission,
            base.metrics,
            base.clock,
            storage.journal.epoch,
        )
        held = HeldRequests(inference, versions, admission)
        base.metrics.add_gauge(
            "queue_depth",
            "Jobs and requests that wait for a worker.",
            lambda: fleet.dispatcher.queued + held.count,
        )
        calls = InferenceCalls(
            inference,
            held,
            StagedRequests(inference, versions, admission),
            versions,
            admission,
            base.metrics,
            fleet.model_control,
            base.clock,
            _make_tracing(base),
        )
        return App(base, entry, storage, fleet, jobs, agents, held, calls)
    finally:
        stack.push_async_callback(base.tasks.close)  # before what they use


def _make_tracing(base: Foundation) -> Tracing | None:
    """Return the tracing of requests, if it is configured."""
    config = base.config
    if not config.traces:
        return None
    tracing = Tracing(config.traces, config.trace_share, base.clock)
    base.stack.push_async_callback(tracing.close)
    return tracing

"""Agents: their connections, the engines that are placed on them, and rollouts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.dispatch.report_intake import ReportIntake
from gateway.entry.access.worker_rules import WorkerRules
from gateway.hub.hub import Hub
from gateway.hub.placements import Placements
from gateway.hub.rollouts import Rollouts
from gateway.hub.store.pacer import BUSY_BYTES_PER_S, BYTES_PER_S, Pacer
from gateway.hub.work_streams import WorkStreams
from synergai.wire.tls import server_context
from synergai.wire.work_socket_server import WorkSocketServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gateway.entry.access.table import LiveTable
    from gateway.fleet.version_policy import VersionPolicy
    from gateway.parts.fleet import FleetParts
    from gateway.parts.foundation import Foundation
    from gateway.parts.storage import StorageParts


@dataclass(frozen=True)
class AgentParts:
    """What agents connect to."""

    hub: Hub
    work_streams: WorkStreams
    placements: Placements
    pacer: Pacer
    rollouts: Rollouts


async def build_agents(
    base: Foundation, storage: StorageParts, fleet: FleetParts, access: LiveTable | None
) -> AgentParts:
    """Return what agents connect to, and listen for their work sockets."""
    config, stack, store = base.config, base.stack, storage.store
    connections, dispatcher = fleet.connections, fleet.dispatcher

    async def write_policies(policies: Mapping[str, VersionPolicy]) -> None:
        """Write the policies, unless another gateway has taken over."""
        await storage.journal.confirm()
        await fleet.policies.write(policies)
        await storage.save_state()

    rollouts = Rollouts(fleet.versions, fleet.model_control.load, write_policies)
    stack.push_async_callback(rollouts.close)
    rules = WorkerRules(config.state, storage.save_state)
    stack.push_async_callback(rules.close)
    pacer = Pacer(BYTES_PER_S, BUSY_BYTES_PER_S, lambda: dispatcher.busy, base.clock.now)
    placements = Placements(store, connections, rules, pacer)
    work_streams = WorkStreams(
        connections,
        dispatcher,
        ReportIntake(dispatcher, base.clock, base.metrics),
        base.clock,
        max_message_bytes=config.max_message_bytes,
    )
    hub = Hub(
        connections,
        work_streams,
        dispatcher,
        fleet.catalogue,
        fleet.served_profiles,
        fleet.model_control,
        base.clock,
        rules=rules,
        placements=placements,
        journal=storage.journal,
        heartbeat_s=config.heartbeat_s,
        work_port=await _listen_for_work(base, work_streams),
    )
    # In case the start fails; a started gateway closes the hub before its servers stop.
    stack.push_async_callback(hub.close)
    if access is not None:
        await rules.load()
        access.follow(lambda table: hub.set_rules(table.workers))
    base.tasks.start(rules.watch(hub.review))
    store.follow(hub.follow_store)
    return AgentParts(hub, work_streams, placements, pacer, rollouts)


async def _listen_for_work(base: Foundation, streams: WorkStreams) -> int:
    """Start the server of work sockets, with the hub's TLS; return its port."""
    config = base.config
    tls = server_context(config.tls_cert, config.tls_key, config.tls_client_ca)
    sockets = WorkSocketServer(streams.serve, tls)
    port = await sockets.start(config.hub.rpartition(":")[0], config.work_port)
    base.stack.push_async_callback(sockets.close)
    return port

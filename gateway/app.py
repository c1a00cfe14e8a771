"""A gateway without its servers: its components, built one after the other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, get_args

from gateway.calls.requests.held import HeldRequests
from gateway.calls.requests.inference import Inference
from gateway.calls.requests.staged import StagedRequests
from gateway.calls.servicers.engines import EngineCalls
from gateway.calls.servicers.inference import InferenceCalls
from gateway.calls.servicers.jobs import JobResults
from gateway.components import (
    EntryComponents,
    FleetComponents,
    SharedComponents,
    StorageComponents,
    build_entry,
    build_fleet,
    build_shared,
    open_storage,
)
from gateway.deployment.controller import DeploymentController
from gateway.deployment.folders import FolderEngines
from gateway.deployment.planning import Planning
from gateway.deployment.workshop import Workshop
from gateway.dispatch.job_routes import JobRoutes
from gateway.dispatch.report_intake import ReportIntake
from gateway.entry.access.workers import WorkerRules
from gateway.hub.control_reports import ControlReports, OfferedEngines
from gateway.hub.copies import EngineCopies
from gateway.hub.hub import Hub
from gateway.hub.placements import Placements
from gateway.hub.rollouts import Rollouts
from gateway.hub.store.transfers import BUSY_BYTES_PER_S, BYTES_PER_S, Pacer
from gateway.hub.work_streams import WorkStreams
from gateway.jobs.own_inputs import OwnInputs, Retention
from gateway.jobs.submitted import SubmittedJobs
from gateway.jobs.uploads import InputUploads
from gateway.monitoring.metrics import gauge
from gateway.monitoring.tracing import Tracing
from synergai.core.routes.deployment import DeploymentState
from synergai.v1 import hub_pb2
from synergai.wire.credentials import server_context
from synergai.wire.work_socket import WorkSocketServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AsyncExitStack

    from gateway.entry.access.table import LiveTable
    from gateway.fleet.versions import VersionPolicy
    from gateway.gateway_settings import GatewaySettings
    from synergai.core.routes.deployment import EngineDeployment


@dataclass(frozen=True)
class JobComponents:
    """Jobs of a gateway; `restored` of them had not ended when it started."""

    submitted: SubmittedJobs
    uploads: InputUploads
    results: JobResults
    restored: int


async def build_jobs(
    base: SharedComponents,
    storage: StorageComponents,
    entry: EntryComponents,
    fleet: FleetComponents,
) -> JobComponents:
    """Return the jobs of a gateway, and continue those that have not ended."""
    config, stack, tasks, metrics = base.config, base.stack, base.tasks, base.metrics
    journal, data = storage.journal, storage.data
    routes = JobRoutes(
        fleet.dispatcher.workers,
        fleet.dispatcher.core.profiles,
        fleet.versions.routes,
        fleet.model_control.load,
    )
    stack.push_async_callback(routes.close)
    uploads = InputUploads(
        data,
        journal,
        entry.admission,
        memory_bytes=config.max_request_bytes // 2,
    )
    own_inputs = OwnInputs(data, uploads, journal)
    submitted = SubmittedJobs(
        fleet.dispatcher,
        fleet.versions,
        journal,
        entry.admission,
        metrics,
        base.clock,
        own_inputs=own_inputs,
        routes=routes,
    )
    stack.push_async_callback(submitted.close)
    metrics.add_gauge(
        "paused_jobs",
        "Unfinished jobs that wait for room on the journal's disk.",
        lambda: len(submitted.pauses),
    )
    restored = await submitted.restore()
    tasks.start(submitted.pauses.follow_store())
    retention = Retention(
        data,
        journal,
        base.clock.unix_now,
        results_kept_s=config.results_kept_s,
    )
    tasks.start(retention.run())
    tasks.start(fleet.profiles.watch(fleet.tell_changes))
    tasks.start(routes.run())
    results = JobResults(submitted, data, journal.confirm)
    return JobComponents(submitted, uploads, results, restored)


@dataclass(frozen=True)
class AgentComponents:
    """What agents connect to."""

    hub: Hub
    engines: OfferedEngines
    work_streams: WorkStreams
    placements: Placements
    copies: EngineCopies
    pacer: Pacer
    rollouts: Rollouts


async def build_agents(
    base: SharedComponents,
    storage: StorageComponents,
    fleet: FleetComponents,
    access: LiveTable | None,
) -> AgentComponents:
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
    rules = WorkerRules()
    stages = fleet.catalogue.stages
    pacer = Pacer(
        BYTES_PER_S,
        BUSY_BYTES_PER_S,
        lambda: dispatcher.busy and not stages.degraded,  # those that replace stages are urgent
        base.clock.now,
    )
    placements = Placements(store, connections, rules, pacer)
    copies = EngineCopies(store, connections, rules, pacer)
    work_streams = WorkStreams(
        connections,
        dispatcher,
        ReportIntake(dispatcher, base.clock, base.metrics),
        base.clock,
        max_message_bytes=config.max_message_bytes,
    )
    engines = OfferedEngines(
        connections, fleet.catalogue, fleet.served_profiles, dispatcher, storage.journal, rules
    )
    registered = hub_pb2.Registered(
        heartbeat_s=config.heartbeat_s,
        work_port=await _listen_for_work(base, work_streams),
        cluster=storage.journal.cluster,
        epoch=storage.journal.epoch,
    )
    hub = Hub(
        connections,
        work_streams,
        engines,
        placements,
        copies,
        ControlReports(dispatcher, engines, fleet.model_control, placements),
        rules,
        base.clock,
        registered,
    )
    # In case the start fails; a started gateway closes the hub before its servers stop.
    stack.push_async_callback(hub.close)
    if access is not None:
        access.follow(lambda table: hub.set_rules(table.workers))
    store.follow(engines.follow_store)
    return AgentComponents(hub, engines, work_streams, placements, copies, pacer, rollouts)


async def _listen_for_work(base: SharedComponents, streams: WorkStreams) -> int:
    """Start the server of work sockets, with the hub's TLS; return its port."""
    config = base.config
    tls = server_context(config.tls_cert, config.tls_key, config.tls_client_ca)
    sockets = WorkSocketServer(streams.serve, tls)
    port = await sockets.start(config.hub.rpartition(":")[0], config.work_port)
    base.stack.push_async_callback(sockets.close)
    return port


def build_deployment(
    base: SharedComponents,
    storage: StorageComponents,
    fleet: FleetComponents,
    agents: AgentComponents,
    jobs: JobComponents,
) -> DeploymentController | None:
    """Deploy engines in stages from now on; return None if that is not allowed."""
    config, store, workers = base.config, storage.store, fleet.dispatcher.workers
    if config.routes == "never":
        return None
    workshop = Workshop(store, config.state / "workshop")
    planning = Planning(
        store,
        agents.placements,
        fleet.versions,
        workers,
        workshop,
        base.dictionary,
        cutting=config.routes,
        planner=config.route_planner,
        objective=config.route_objective,
        clock=base.clock.now,
    )
    controller = DeploymentController(
        store,
        planning,
        agents.placements,
        workshop,
        FolderEngines(store, fleet.catalogue, workers, agents.copies.bring, base.clock.now),
        fleet.versions,
        workers,
        fleet.model_control.load,
        lambda worker: fleet.dispatcher.post(worker.engines_changed(), source=worker),
        fleet.dispatcher.core.queued_engines,
        jobs.submitted.engines,
        base.clock.now,
    )
    base.tasks.start(controller.run())
    base.metrics.add(
        gauge(
            "deployments",
            "Engines that are deployed in stages, by state.",
            lambda: _by_state(controller.deployments()),
            "state",
        )
    )
    base.metrics.add_counter(
        "plans", "Plans of engines in stages that were computed.", lambda: planning.plans
    )
    return controller


def _by_state(deployments: Iterable[EngineDeployment]) -> Iterator[tuple[list[str], float]]:
    found = Counter(each.state for each in deployments)
    for state in get_args(DeploymentState):
        yield [state], found[state]


@dataclass(frozen=True)
class App:
    """The parts of a gateway. Without `deployment`, it deploys no stages."""

    base: SharedComponents
    entry: EntryComponents
    storage: StorageComponents
    fleet: FleetComponents
    jobs: JobComponents
    agents: AgentComponents
    deployment: DeploymentController | None
    held: HeldRequests
    calls: InferenceCalls
    engines: EngineCalls

    def deployments(self) -> Sequence[EngineDeployment]:
        return () if self.deployment is None else self.deployment.deployments()


async def build_app(config: GatewaySettings, stack: AsyncExitStack) -> App:
    """Build the parts of a gateway; closing `stack` closes them."""
    base = build_shared(config, stack)
    try:
        entry = build_entry(base)
        storage = await open_storage(base)
        fleet = await build_fleet(base, storage)
        jobs = await build_jobs(base, storage, entry, fleet)
        agents = await build_agents(base, storage, fleet, entry.access)
        deployment = build_deployment(base, storage, fleet, agents, jobs)
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
        staged = StagedRequests(inference, versions, admission)
        begin_staged = partial(staged.begin_staged, charged=True)
        held = HeldRequests(inference, begin_staged, versions, admission)
        base.metrics.add_gauge(
            "queue_depth",
            "Jobs and requests that wait for a worker.",
            lambda: fleet.dispatcher.core.queued + held.count,
        )
        calls = InferenceCalls(
            inference,
            held,
            staged,
            fleet.catalogue.stages,
            _make_tracing(base),
        )
        engines = EngineCalls(versions, admission, base.metrics, fleet.model_control, base.clock)
        return App(base, entry, storage, fleet, jobs, agents, deployment, held, calls, engines)
    finally:
        stack.push_async_callback(base.tasks.close)  # before what they use


def _make_tracing(base: SharedComponents) -> Tracing | None:
    config = base.config
    if not config.traces:
        return None
    tracing = Tracing(config.traces, config.trace_share, base.clock)
    base.stack.push_async_callback(tracing.close)
    return tracing

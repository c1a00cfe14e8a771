"""Builds the components of a gateway and connects them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.access.authenticator import Authenticator
from gateway.access.caller import current_caller
from gateway.access.engines import is_visible
from gateway.access.live_table import LiveTable
from gateway.access.worker_rules import WorkerRules
from gateway.admission.admission import Admission
from gateway.app import App
from gateway.app_metrics import register_metrics
from gateway.audit.file import AuditFile
from gateway.audit.log import AuditLog
from gateway.dispatch.dispatcher import Dispatcher
from gateway.dispatch.report_intake import ReportIntake
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.served_profiles import ServedProfiles
from gateway.fleet.variants import FleetVariants
from gateway.fleet.version_policy import PolicyFile
from gateway.fleet.versions import Versions
from gateway.hub.connections import AgentConnections
from gateway.hub.hub import Hub
from gateway.hub.model_control import ModelControl
from gateway.hub.placements import Placements
from gateway.hub.rollouts import Rollouts
from gateway.hub.work_streams import WorkStreams
from gateway.jobs.own_inputs import OwnInputs
from gateway.jobs.results import JobResults
from gateway.jobs.retention import UPLOADS_KEPT_S, Retention
from gateway.jobs.streamed import StreamedJobs
from gateway.jobs.submitted import SubmittedJobs
from gateway.jobs.uploads import InputUploads
from gateway.journal.journal import Journal
from gateway.monitoring.metrics import Metrics
from gateway.passage.passage import Passage
from gateway.records.store import DIRECTORY, DataStore
from gateway.requests.held import HeldRequests
from gateway.requests.inference import Inference
from gateway.requests.shared_memory import SharedMemoryRegions
from gateway.servicers.inference_calls import InferenceCalls
from gateway.store.files import open_files
from gateway.store.pacer import BUSY_BYTES_PER_S, Pacer
from gateway.store.store import EngineStore
from synergai.profiles.service import ProfileService
from synergai.protocol.unread import UnreadResponses
from synergai.runtime.clock import Clock
from synergai.runtime.paths import dictionary_path
from synergai.runtime.tasks import TaskBag
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.event_log import EventLog
from synergai.scheduling.events import ProfilesRemoved

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from gateway.gateway_settings import GatewaySettings
    from synergai.profiles.service import DictionaryChanges

_WINDOW_BYTES: Final = 16 * 1024 * 1024


async def build_app(config: GatewaySettings, stack: AsyncExitStack) -> App:
    """Build a gateway's components; closing `stack` closes them."""
    clock, metrics, tasks = Clock(), Metrics(), TaskBag()
    stack.push_async_callback(tasks.close)
    access, authenticator = _access(config, metrics, tasks, stack)
    admission = Admission(config.max_requests, config.max_request_bytes, clock)
    audit = _audit(config, metrics, stack)
    if access is not None:
        access.follow(admission.use_table)
    journal = Journal(config.state, kept_jobs=config.kept_jobs, clock=clock)
    stack.push_async_callback(journal.close)
    profiles = ProfileService(config.dictionary or dictionary_path(config.state))
    stack.push_async_callback(profiles.close)
    core = SchedulerCore(config.scheduling, profiles.dictionary, journal.epoch)
    recorder = None
    if config.event_log is not None:
        recorder = stack.enter_context(
            EventLog(config.event_log, config.scheduling, profiles.dictionary, journal.epoch)
        )
    profiled = {entry.engine for entry in profiles.dictionary}
    store = _store(config, tasks, stack)
    catalogue = Catalogue(
        await journal.engines() | (profiled - await journal.forgotten_engines()),
        await journal.unloaded_engines(),
        await journal.descriptions(),
        journal.set_description,
        suggests=lambda engine: is_visible(current_caller(), engine),
        stored=store.files_of,
    )
    data = DataStore(config.state / DIRECTORY, lambda: clock.to_unix(clock.now()))
    await data.load()
    stack.push_async_callback(data.close)
    connections = AgentConnections(metrics)
    served_profiles = ServedProfiles(
        profiles, lambda: (worker for _, worker in connections.registered())
    )
    dispatcher = Dispatcher(
        core, journal, clock, on_learned=served_profiles.learned, recorder=recorder
    )
    stack.callback(dispatcher.close)
    budget_bytes = config.data_budget or None
    input_uploads = InputUploads(
        data,
        journal,
        admission,
        budget_bytes=budget_bytes,
        memory_bytes=config.max_request_bytes // 2,
    )
    own_inputs = OwnInputs(data, input_uploads, journal)
    variants = FleetVariants(profiles.dictionary, dispatcher.workers)
    policies = PolicyFile(config.state)
    versions = Versions(
        catalogue, policies.read(), stored=store.versions_of, check_floor=variants.check_floor
    )
    store.follow(versions.on_stored_changed)
    jobs = SubmittedJobs(
        dispatcher,
        versions,
        journal,
        admission,
        metrics,
        clock,
        max_jobs=config.max_jobs,
        own_inputs=own_inputs,
    )
    stack.push_async_callback(jobs.close)
    restored = await jobs.restore()
    tasks.start(jobs.pauses.follow_store())
    retention = Retention(
        data,
        journal,
        lambda: clock.to_unix(clock.now()),
        uploads_kept_s=UPLOADS_KEPT_S,
        results_kept_s=config.results_kept_s,
        budget_bytes=budget_bytes,
    )
    tasks.start(retention.run())
    tasks.start(profiles.watch(partial(_tell_changes, dispatcher, served_profiles)))
    model_control = ModelControl(dispatcher, catalogue, profiles.dictionary, journal)
    rollouts = Rollouts(versions, model_control.load, policies.write)
    stack.push_async_callback(rollouts.close)
    rules = WorkerRules(config.state)
    stack.push_async_callback(rules.close)
    pacer = Pacer(config.store_rate, BUSY_BYTES_PER_S, lambda: dispatcher.busy, clock.now)
    placements = Placements(store, connections, rules, pacer)
    intake = ReportIntake(dispatcher, clock, metrics)
    work_streams = WorkStreams(
        connections, dispatcher, intake, clock, max_message_bytes=config.max_message_bytes
    )
    hub = Hub(
        connections,
        work_streams,
        dispatcher,
        catalogue,
        served_profiles,
        model_control,
        clock,
        rules=rules,
        placements=placements,
        on_new_engines=journal.add_engines,
        on_forgotten_engines=journal.remove_engines,
        heartbeat_s=config.heartbeat_s,
    )
    if access is not None:
        await rules.load()
        access.follow(lambda table: hub.set_rules(table.workers))
    tasks.start(rules.watch(hub.review))
    store.follow(hub.follow_store)
    # In case a port cannot be opened; a started gateway closes the hub before its servers stop.
    stack.push_async_callback(hub.close)
    stack.push_async_callback(tasks.close)  # before what they use
    unread = UnreadResponses(config.max_response_bytes)
    inference = Inference(dispatcher, versions, variants, admission, metrics, clock, journal.epoch)
    held = HeldRequests(inference, versions, admission)
    regions = SharedMemoryRegions(config.max_client_bytes)
    app = App(
        clock=clock,
        metrics=metrics,
        access=access,
        passage=Passage(authenticator, admission, audit),
        agent_passage=Passage(None, admission, audit),
        admission=admission,
        journal=journal,
        profiles=profiles,
        served_profiles=served_profiles,
        catalogue=catalogue,
        versions=versions,
        rollouts=rollouts,
        model_control=model_control,
        dispatcher=dispatcher,
        jobs=jobs,
        streamed=StreamedJobs(
            dispatcher,
            versions,
            admission,
            metrics,
            clock,
            window_bytes=_WINDOW_BYTES,
            unread=unread,
        ),
        input_uploads=input_uploads,
        own_inputs=own_inputs,
        data=data,
        results=JobResults(jobs, data),
        calls=InferenceCalls(
            inference, held, versions, admission, metrics, model_control, regions, clock
        ),
        unread=unread,
        held=held,
        regions=regions,
        work_streams=work_streams,
        store=store,
        placements=placements,
        pacer=pacer,
        hub=hub,
        restored=restored,
    )
    register_metrics(app)
    return app


def _store(config: GatewaySettings, tasks: TaskBag, stack: AsyncExitStack) -> EngineStore:
    """Return the store of engines, which loads its versions in the background."""
    store = EngineStore(
        open_files(config.store, config.state),
        config.state / "uploads",
        location=config.store or str(config.state / "store"),
        remembered=config.state / "store-id",
        budget_bytes=config.store_budget,
    )
    stack.push_async_callback(store.close)
    tasks.start(store.run())
    return store


def _access(
    config: GatewaySettings,
    metrics: Metrics,
    tasks: TaskBag,
    stack: AsyncExitStack,
) -> tuple[LiveTable, Authenticator] | tuple[None, None]:
    """Return the access table and the authentication against it, if one is configured."""
    if config.access is None:
        return None, None
    table = LiveTable(config.access)
    tasks.start(table.watch())
    authenticator = Authenticator(table, stack)
    metrics.add_counter(
        "access_table_rejected",
        "Changes of the access table that were not applied, because it was invalid.",
        lambda: table.rejected,
    )
    metrics.add_counter(
        "authentication_failures",
        "Calls with invalid credentials.",
        lambda: authenticator.failures,
    )
    return table, authenticator


def _audit(config: GatewaySettings, metrics: Metrics, stack: AsyncExitStack) -> AuditLog | None:
    """Return the audit log, if one is configured."""
    if config.audit_log is None:
        return None
    file = AuditFile(config.audit_log)
    stack.push_async_callback(asyncio.to_thread, file.close)
    log = AuditLog(file.append)
    stack.callback(log.close)
    metrics.add_counter(
        "audit_dropped",
        "Lines of the audit log that could not be written.",
        lambda: file.dropped,
    )
    return log


def _tell_changes(
    dispatcher: Dispatcher, served_profiles: ServedProfiles, changes: DictionaryChanges
) -> None:
    """Pass changes of the dictionary's file to the core."""
    if changes.removed:
        dispatcher.post(ProfilesRemoved(tuple(changes.removed)))
    for event in served_profiles.put(changes.put):
        dispatcher.post(event)

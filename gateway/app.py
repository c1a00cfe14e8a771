"""The components of a gateway: how they are built and connected."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.access.authenticator import Authenticator
from gateway.access.caller import current_caller
from gateway.access.engines import is_visible
from gateway.access.table import LiveTable
from gateway.access.worker_rules import WorkerRules
from gateway.admission.admission import Admission
from gateway.audit.file import AuditFile
from gateway.audit.log import AuditLog
from gateway.dispatch.chains import Chains
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
from gateway.journal.shared_state import SharedState
from gateway.monitoring.fleet_feed import FleetFeed
from gateway.monitoring.metrics import Metrics
from gateway.monitoring.tracing import Tracing
from gateway.passage.passage import Passage
from gateway.records.store import DIRECTORY, DataStore
from gateway.requests.held import HeldRequests
from gateway.requests.inference import Inference
from gateway.requests.staged import StagedRequests
from gateway.servicers.inference_calls import InferenceCalls
from gateway.store.files import open_files
from gateway.store.pacer import BUSY_BYTES_PER_S, BYTES_PER_S, Pacer
from gateway.store.store import EngineStore
from synergai.fleet_page.view import View
from synergai.profiles.service import ProfileService
from synergai.protocol.unread import UnreadResponses
from synergai.runtime.clock import Clock
from synergai.runtime.paths import dictionary_path
from synergai.runtime.tasks import TaskBag
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.event_log import EventLog
from synergai.scheduling.events import ProfilesRemoved

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path

    from gateway.fleet.version_policy import VersionPolicy
    from gateway.gateway_settings import GatewaySettings
    from synergai.profiles.service import DictionaryChanges

_WINDOW_BYTES: Final = 16 * 1024 * 1024


class App:
    """The components of a gateway, without its servers; closing `stack` closes them."""

    def __init__(self, config: GatewaySettings, stack: AsyncExitStack) -> None:
        self._config = config
        self._stack = stack
        self._tasks = TaskBag()
        stack.push_async_callback(self._tasks.close)
        self.clock = Clock()
        self.metrics = Metrics()
        self.unread = UnreadResponses(config.max_response_bytes)

    async def open(self) -> None:
        """Build the components."""
        self._build_entry()
        self.journal = await self._open_journal()
        self._stack.push_async_callback(self.journal.close)
        self._shared = await self._open_shared_state()
        self._build_store()
        await self._build_fleet()
        await self._build_jobs()
        await self._build_hub()
        self._build_requests()
        self._stack.push_async_callback(self._tasks.close)  # before what they use

    async def _open_journal(self) -> Journal:
        config, store = self._config, None
        if config.journal:
            # Imported on demand: it costs memory.
            from gateway.journal.postgresql.leading import keep_leading, lead
            from gateway.standby import standing_by

            store = await lead(config, self.clock, partial(standing_by, config))
        journal = Journal(config.state, kept_jobs=config.kept_jobs, clock=self.clock, store=store)
        if config.journal:
            self._tasks.start(keep_leading(journal))
        return journal

    async def _open_shared_state(self) -> SharedState | None:
        """Continue with the state of the last leader, if gateways share the journal."""
        config = self._config
        if not self.journal.cluster:
            return None
        shared = SharedState(self.journal, config.state, self._dictionary)
        self._stack.push_async_callback(shared.close)
        await shared.restore()
        self._tasks.start(shared.follow())
        return shared

    async def save_state(self) -> None:
        """Let the next leader have what has changed in the state directory, if there can be one."""
        if self._shared is not None:
            await self._shared.save()

    @property
    def _dictionary(self) -> Path:
        return self._config.dictionary or dictionary_path(self._config.state)

    # --- entry: what calls pass -------------------------------------------------------------

    def _build_entry(self) -> None:
        config = self._config
        self.admission = Admission(config.max_requests, config.max_request_bytes, self.clock)
        self.access = None if config.access is None else LiveTable(config.access)
        authenticator = None if self.access is None else self._authenticator(self.access)
        audit = self._audit()
        self.passage = Passage(authenticator, self.admission, audit)
        self.agent_passage = Passage(None, self.admission, audit)

    def _authenticator(self, table: LiveTable) -> Authenticator:
        """Return the authentication against the access table, and follow the table."""
        self._tasks.start(table.watch())
        authenticator = Authenticator(table, self._stack)
        self.metrics.add_counter(
            "access_table_rejected",
            "Changes of the access table that were not applied, because it was invalid.",
            lambda: table.rejected,
        )
        self.metrics.add_counter(
            "authentication_failures",
            "Calls with invalid credentials.",
            lambda: authenticator.failures,
        )
        table.follow(self.admission.use_table)
        return authenticator

    def _audit(self) -> AuditLog | None:
        """Return the audit log, if one is configured."""
        if self._config.audit_log is None:
            return None
        file = AuditFile(self._config.audit_log)
        self._stack.push_async_callback(asyncio.to_thread, file.close)
        log = AuditLog(file.append)
        self._stack.callback(log.close)
        self.metrics.add_counter(
            "audit_dropped",
            "Lines of the audit log that could not be written.",
            lambda: file.dropped,
        )
        return log

    # --- store of engines, which loads its versions in the background -----------------------

    def _build_store(self) -> None:
        config = self._config
        self.store = EngineStore(
            open_files(config.store, config.state),
            config.state / "uploads",
            location=config.store or str(config.state / "store"),
            remembered=config.state / "store-id",
            budget_bytes=config.store_budget,
        )
        self._stack.push_async_callback(self.store.close)
        self._tasks.start(self.store.run())

    # --- fleet: engines, profiles, scheduling -----------------------------------------------

    async def _build_fleet(self) -> None:
        config, journal, stack = self._config, self.journal, self._stack
        self.profiles = ProfileService(self._dictionary)
        stack.push_async_callback(self.profiles.close)
        dictionary = self.profiles.dictionary
        core = SchedulerCore(config.scheduling, dictionary, journal.epoch)
        self.fleet_view = View()
        recorders = [self.fleet_view.record]
        if config.event_log is not None:
            log = EventLog(config.event_log, config.scheduling, dictionary, journal.epoch)
            recorders.append(stack.enter_context(log).record)
        profiled = {entry.engine for entry in dictionary}
        self.catalogue = Catalogue(
            await journal.engines() | (profiled - await journal.forgotten_engines()),
            await journal.unloaded_engines(),
            await journal.descriptions(),
            journal.set_description,
            suggests=lambda engine: is_visible(current_caller(), engine),
            stored=self.store.files_of,
        )
        self._connections = AgentConnections(self.metrics)
        self.served_profiles = ServedProfiles(
            self.profiles, lambda: (worker for _, worker in self._connections.registered())
        )
        self.dispatcher = Dispatcher(
            core, journal, self.clock, on_learned=self.served_profiles.learned, recorders=recorders
        )
        self.fleet_feed = FleetFeed(self.fleet_view, self.dispatcher.workers, self.clock.now)
        stack.callback(self.dispatcher.close)
        self._variants = FleetVariants(dictionary, self.dispatcher.workers)
        self._policies = PolicyFile(config.state)
        self.versions = Versions(
            self.catalogue,
            self._policies.read(),
            stored=self.store.versions_of,
            check_floor=self._variants.check_floor,
        )
        self.store.follow(self.versions.on_stored_changed)

    def _tell_changes(self, changes: DictionaryChanges) -> None:
        """Pass changes of the dictionary's file to the core."""
        if changes.removed:
            self.dispatcher.post(ProfilesRemoved(tuple(changes.removed)))
        for event in self.served_profiles.put(changes.put):
            self.dispatcher.post(event)

    # --- jobs -------------------------------------------------------------------------------

    async def _build_jobs(self) -> None:
        config, clock = self._config, self.clock
        self.chains = Chains(self.dispatcher, self.catalogue)
        self._stack.push_async_callback(self.chains.close)
        self.data = DataStore(
            config.state / DIRECTORY,
            clock.unix_now,
            self.journal.epoch if self.journal.cluster else 0,
        )
        await self.data.load()
        self._stack.push_async_callback(self.data.close)
        budget_bytes = config.data_budget or None
        self.input_uploads = InputUploads(
            self.data,
            self.journal,
            self.admission,
            budget_bytes=budget_bytes,
            memory_bytes=config.max_request_bytes // 2,
        )
        self.own_inputs = OwnInputs(self.data, self.input_uploads, self.journal)
        self.jobs = SubmittedJobs(
            self.dispatcher,
            self.versions,
            self.journal,
            self.admission,
            self.metrics,
            clock,
            own_inputs=self.own_inputs,
            chains=self.chains,
        )
        self._stack.push_async_callback(self.jobs.close)
        self.restored = await self.jobs.restore()
        self._tasks.start(self.jobs.pauses.follow_store())
        retention = Retention(
            self.data,
            self.journal,
            clock.unix_now,
            uploads_kept_s=UPLOADS_KEPT_S,
            results_kept_s=config.results_kept_s,
            budget_bytes=budget_bytes,
        )
        self._tasks.start(retention.run())
        self._tasks.start(self.profiles.watch(self._tell_changes))
        self.results = JobResults(self.jobs, self.data, self.journal.confirm)
        self.streamed = StreamedJobs(
            self.dispatcher,
            self.versions,
            self.admission,
            self.metrics,
            clock,
            window_bytes=_WINDOW_BYTES,
            unread=self.unread,
        )

    # --- hub: agents ------------------------------------------------------------------------

    async def _build_hub(self) -> None:
        config, dispatcher = self._config, self.dispatcher
        self.model_control = ModelControl(
            dispatcher, self.catalogue, self.profiles.dictionary, self.journal
        )
        self.chains.load = self.model_control.load
        self._tasks.start(self.chains.run())
        self.rollouts = Rollouts(self.versions, self.model_control.load, self._write_policies)
        self._stack.push_async_callback(self.rollouts.close)
        rules = WorkerRules(config.state, self.save_state)
        self._stack.push_async_callback(rules.close)
        self.pacer = Pacer(BYTES_PER_S, BUSY_BYTES_PER_S, lambda: dispatcher.busy, self.clock.now)
        self.placements = Placements(self.store, self._connections, rules, self.pacer)
        self.work_streams = WorkStreams(
            self._connections,
            dispatcher,
            ReportIntake(dispatcher, self.clock, self.metrics),
            self.clock,
            max_message_bytes=config.max_message_bytes,
        )
        self.hub = Hub(
            self._connections,
            self.work_streams,
            dispatcher,
            self.catalogue,
            self.served_profiles,
            self.model_control,
            self.clock,
            rules=rules,
            placements=self.placements,
            journal=self.journal,
            heartbeat_s=config.heartbeat_s,
        )
        if self.access is not None:
            await rules.load()
            self.access.follow(lambda table: self.hub.set_rules(table.workers))
        self._tasks.start(rules.watch(self.hub.review))
        self.store.follow(self.hub.follow_store)
        # In case a port cannot be opened; a started gateway closes the hub before its servers stop.
        self._stack.push_async_callback(self.hub.close)

    async def _write_policies(self, policies: Mapping[str, VersionPolicy]) -> None:
        """Write the policies, unless another gateway has taken over."""
        await self.journal.confirm()
        await self._policies.write(policies)
        await self.save_state()

    def _tracing(self) -> Tracing | None:
        """Return the tracing of requests, if it is configured."""
        config = self._config
        if not config.traces:
            return None
        tracing = Tracing(config.traces, config.trace_share, self.clock)
        self._stack.push_async_callback(tracing.close)
        return tracing

    # --- requests ---------------------------------------------------------------------------

    def _build_requests(self) -> None:
        inference = Inference(
            self.dispatcher,
            self.versions,
            self._variants,
            self.admission,
            self.metrics,
            self.clock,
            self.journal.epoch,
        )
        self.held = HeldRequests(inference, self.versions, self.admission)
        self.calls = InferenceCalls(
            inference,
            self.held,
            StagedRequests(inference, self.versions, self.admission),
            self.versions,
            self.admission,
            self.metrics,
            self.model_control,
            self.clock,
            self._tracing(),
        )

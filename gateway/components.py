"""The components below the calls of a gateway, and their metrics.

What is shared comes first, then the entry that every call passes, the storage, and the fleet.
Everything is complete when it is built, and knows what was built before it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from gateway.dispatch.dispatcher import Dispatcher
from gateway.entry.access.authenticator import Authenticator
from gateway.entry.access.caller import current_caller, is_visible
from gateway.entry.access.exposure import check_exposure
from gateway.entry.access.table import LiveTable
from gateway.entry.admission import Admission
from gateway.entry.audit import AuditFile, AuditLog
from gateway.entry.call_guard import CallGuard
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.served_profiles import ServedProfiles
from gateway.fleet.variants import FleetVariants
from gateway.fleet.versions import PolicyFile, Versions
from gateway.hub.connections import AgentConnections
from gateway.hub.model_control import ModelControl
from gateway.hub.store.files import open_files
from gateway.hub.store.store import EngineStore
from gateway.journal.data_store import DIRECTORY, DataStore
from gateway.journal.files import StateInUse
from gateway.journal.journal import Journal
from gateway.journal.shared_state import SharedState
from gateway.monitoring.metrics import Metrics, conflict_family, counter, worker_families
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.events import ProfilesRemoved
from synergai.fleet_page.page_state import PageState
from synergai.profiles.service import DictionaryChanges, ProfileService
from synergai.runtime.clock import Clock
from synergai.runtime.paths import dictionary_path
from synergai.runtime.tasks import TaskBag
from synergai.wire.memory_bounds import UnreadResponses

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack
    from pathlib import Path

    from gateway.gateway_settings import GatewaySettings


@dataclass(frozen=True)
class SharedComponents:
    """What all parts share. `tasks` runs their tasks, and closing `stack` closes them."""

    config: GatewaySettings
    stack: AsyncExitStack
    clock: Clock
    metrics: Metrics
    tasks: TaskBag
    unread: UnreadResponses

    @property
    def dictionary(self) -> Path:
        return self.config.dictionary or dictionary_path(self.config.state)


def build_shared(config: GatewaySettings, stack: AsyncExitStack) -> SharedComponents:
    tasks, unread = TaskBag(), UnreadResponses(config.max_response_bytes)
    metrics = Metrics()
    metrics.add_gauge(
        "unread_response_bytes",
        "Bytes of responses that clients have not read yet.",
        lambda: unread.bytes,
    )
    return SharedComponents(config, stack, Clock(), metrics, tasks, unread)


@dataclass(frozen=True)
class EntryComponents:
    """What calls pass; without an access table, everyone may call everything."""

    admission: Admission
    access: LiveTable | None
    call_guard: CallGuard
    agent_call_guard: CallGuard


def build_entry(base: SharedComponents) -> EntryComponents:
    config, metrics = base.config, base.metrics
    admission = Admission(config.max_requests, config.max_request_bytes, base.clock)
    metrics.add_gauge(
        "requests_in_flight", "Accepted requests that have not ended.", lambda: admission.requests
    )
    metrics.add(
        counter(
            "quota_rejections",
            "Refusals by tenant and quota.",
            admission.rejections.items,
            *("tenant", "quota"),
        )
    )
    table = None if config.access is None else LiveTable(config.access)
    check_exposure(config, warns=True)
    authenticator = None if table is None else _make_authenticator(base, table, admission)
    audit = _open_audit_log(base)
    return EntryComponents(
        admission,
        table,
        call_guard=CallGuard(authenticator, audit),
        agent_call_guard=CallGuard(None, audit),
    )


def _make_authenticator(
    base: SharedComponents, table: LiveTable, admission: Admission
) -> Authenticator:
    base.tasks.start(table.watch())
    authenticator = Authenticator(table, base.stack)
    base.metrics.add_counter(
        "access_table_rejected",
        "Changes of the access table that were not applied, because it was invalid.",
        lambda: table.rejected,
    )
    base.metrics.add_counter(
        "authentication_failures",
        "Calls with invalid credentials.",
        lambda: authenticator.failures,
    )
    table.follow(admission.use_table)
    return authenticator


def _open_audit_log(base: SharedComponents) -> AuditLog | None:
    if base.config.audit_log is None:
        return None
    file = AuditFile(base.config.audit_log)
    base.stack.push_async_callback(asyncio.to_thread, file.close)
    log = AuditLog(file.append)
    base.stack.callback(log.close)
    base.metrics.add_counter(
        "audit_dropped",
        "Lines of the audit log that could not be written.",
        lambda: file.dropped,
    )
    return log


_RETRY_S: Final = 0.2

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StorageComponents:
    """What a gateway keeps."""

    journal: Journal
    data: DataStore
    store: EngineStore
    shared: SharedState | None

    async def save_state(self) -> None:
        """Let the next leader have what has changed in the state directory, if there can be one."""
        if self.shared is not None:
            await self.shared.save()


async def open_storage(base: SharedComponents) -> StorageComponents:
    """Open what a gateway keeps; if it shares the journal with others, wait until it leads."""
    config, stack, metrics = base.config, base.stack, base.metrics
    journal = await _open_journal(base)
    stack.push_async_callback(journal.close)
    metrics.add_gauge(
        "journal_writable",
        "Whether the journal's disk has room for new jobs.",
        lambda: journal.accepting,
    )
    shared = await _open_shared_state(base, journal) if journal.cluster else None
    store = EngineStore(
        open_files(config.store, config.state),
        config.state / "uploads",
        location=config.store or str(config.state / "store"),
        remembered=config.state / "store-id",
        confirm=journal.confirm,
    )
    stack.push_async_callback(store.close)
    base.tasks.start(store.run())  # loads its versions in the background
    metrics.add_gauge("store_bytes", "Size of the store of engines.", lambda: store.used_bytes)
    metrics.add_gauge(
        "store_available", "Whether the store of engines can be used.", lambda: not store.fault
    )
    epoch = journal.epoch if journal.cluster else 0
    data = DataStore(config.state / DIRECTORY, base.clock.unix_now, epoch)
    await data.load()
    stack.push_async_callback(data.close)
    metrics.add_gauge(
        "stored_upload_bytes", "Bytes of uploads on disk.", lambda: data.bytes_in("uploads")
    )
    metrics.add_gauge(
        "stored_result_bytes",
        "Bytes of results of jobs over uploads on disk.",
        lambda: data.bytes_in("results"),
    )
    return StorageComponents(journal, data, store, shared)


async def _open_journal(base: SharedComponents) -> Journal:
    config, store = base.config, None
    if config.journal:
        # Imported on demand: it costs memory.
        from gateway.journal.postgresql.leadership import keep_leading, lead
        from gateway.standby import standing_by

        store = await lead(config, base.clock, partial(standing_by, config))
    open_journal = partial(
        Journal, config.state, kept_jobs=config.kept_jobs, clock=base.clock, store=store
    )
    journal = await _when_free(open_journal, config.state_wait_s)
    if config.journal:
        base.tasks.start(keep_leading(journal))
    return journal


async def _when_free(open_journal: Callable[[], Journal], wait_s: float) -> Journal:
    """Open the journal once no other gateway uses the state directory.

    In a restart, a service manager may start a gateway before the former one has ended.
    """
    deadline = time.monotonic() + wait_s
    waits = False
    while True:
        try:
            return open_journal()
        except StateInUse as error:
            if time.monotonic() >= deadline:
                raise
            if not waits:
                _log.warning("%s; waiting up to %g s for its end", error, wait_s)
            waits = True
        await asyncio.sleep(_RETRY_S)


async def _open_shared_state(base: SharedComponents, journal: Journal) -> SharedState:
    shared = SharedState(journal, base.config.state, base.dictionary)
    base.stack.push_async_callback(shared.close)
    await shared.restore()
    base.tasks.start(shared.follow())
    return shared


@dataclass(frozen=True)
class FleetComponents:
    """Engines, profiles and the scheduling of work over the connected workers."""

    connections: AgentConnections
    catalogue: Catalogue
    profiles: ProfileService
    served_profiles: ServedProfiles
    dispatcher: Dispatcher
    model_control: ModelControl
    variants: FleetVariants
    policies: PolicyFile
    versions: Versions
    page: PageState

    def tell_changes(self, changes: DictionaryChanges) -> None:
        """Pass changes of the dictionary's file to the core."""
        if changes.removed:
            self.dispatcher.post(ProfilesRemoved(tuple(changes.removed)))
        self.catalogue.add_known({entry.engine for entry in changes.put})
        for event in self.served_profiles.put(changes.put):
            self.dispatcher.post(event)


async def build_fleet(base: SharedComponents, storage: StorageComponents) -> FleetComponents:
    """Return the fleet of a gateway, which has no workers yet."""
    config, stack = base.config, base.stack
    journal, store = storage.journal, storage.store
    profiles = ProfileService(base.dictionary)
    stack.push_async_callback(profiles.close)
    dictionary = profiles.dictionary
    core = SchedulerCore(config.scheduling, dictionary, journal.epoch)
    page = PageState()
    recorders = [page.record]
    if config.event_log is not None:
        log = EventLog(config.event_log, config.scheduling, dictionary, journal.epoch)
        recorders.append(stack.enter_context(log).record)
    profiled = {entry.engine for entry in dictionary}
    catalogue = Catalogue(
        await journal.engines() | (profiled - await journal.forgotten_engines()),
        await journal.unloaded_engines(),
        await journal.descriptions(),
        journal.set_description,
        suggests=lambda engine: is_visible(current_caller(), engine),
        stored=store.files_of,
        model=store.model_of,
        worker_wait_s=config.worker_wait_s,
    )
    connections = AgentConnections(base.metrics)
    served = ServedProfiles(profiles, lambda: (worker for _, worker in connections.registered()))
    dispatcher = Dispatcher(
        core,
        journal,
        base.clock,
        on_learned=served.learned,
        recorders=recorders,
        unloaded=catalogue.unloaded,
    )
    stack.callback(dispatcher.close)
    variants = FleetVariants(dictionary, dispatcher.workers.values)
    policies = PolicyFile(config.state)
    versions = Versions(
        catalogue, policies.read(), stored=store.versions_of, check_floor=variants.check_floor
    )
    store.follow(versions.on_stored_changed)
    if config.worker_wait_s:  # requests wait for workers that have never had these
        store.follow(lambda: catalogue.add_known(store.engines()))
    _register_metrics(base, dispatcher, catalogue)
    return FleetComponents(
        connections,
        catalogue,
        profiles,
        served,
        dispatcher,
        ModelControl(dispatcher.workers, catalogue, dictionary, journal),
        variants,
        policies,
        versions,
        page,
    )


def _register_metrics(base: SharedComponents, dispatcher: Dispatcher, catalogue: Catalogue) -> None:
    metrics = base.metrics
    metrics.add_gauge("workers", "Connected workers.", lambda: len(dispatcher.workers))
    metrics.add_gauge(
        "workers_ejected",
        "Workers that get no work for a while, as they made no progress.",
        lambda: sum(map(dispatcher.core.ejected, dispatcher.workers)),
    )
    metrics.add_counter(
        "ejections",
        "Times that a worker was ejected because it made no progress.",
        lambda: dispatcher.ejections,
    )
    metrics.add_counter(
        "variant_crashes",
        "Times that a variant crashed its engine host, and paused on the worker.",
        lambda: dispatcher.variant_crashes,
    )
    metrics.add(
        *worker_families(dispatcher.workers.values, lambda: dispatcher.core.paces),
        conflict_family(lambda: catalogue.conflicts),
    )

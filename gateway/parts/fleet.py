"""The fleet: engines and their versions, profiles, and the scheduling of work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.dispatch.dispatcher import Dispatcher
from gateway.entry.access.caller import current_caller, is_visible
from gateway.fleet.catalogue import Catalogue
from gateway.fleet.served_profiles import ServedProfiles
from gateway.fleet.variants import FleetVariants
from gateway.fleet.version_policy import PolicyFile
from gateway.fleet.versions import Versions
from gateway.hub.connections import AgentConnections
from gateway.hub.model_control import ModelControl
from gateway.monitoring.fleet_feed import FleetFeed
from gateway.monitoring.worker_metrics import conflict_family, worker_families
from synergai.core.scheduling.core import SchedulerCore
from synergai.core.scheduling.event_log import EventLog
from synergai.core.scheduling.events import ProfilesRemoved
from synergai.fleet_page.page_state import PageState
from synergai.profiles.service import ProfileService

if TYPE_CHECKING:
    from gateway.parts.foundation import Foundation
    from gateway.parts.storage import StorageParts
    from synergai.profiles.service import DictionaryChanges


@dataclass(frozen=True)
class FleetParts:
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
    feed: FleetFeed

    def tell_changes(self, changes: DictionaryChanges) -> None:
        """Pass changes of the dictionary's file to the core."""
        if changes.removed:
            self.dispatcher.post(ProfilesRemoved(tuple(changes.removed)))
        for event in self.served_profiles.put(changes.put):
            self.dispatcher.post(event)


async def build_fleet(base: Foundation, storage: StorageParts) -> FleetParts:
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
        worker_wait_s=config.worker_wait_s,
    )
    connections = AgentConnections(base.metrics)
    served = ServedProfiles(profiles, lambda: (worker for _, worker in connections.registered()))
    dispatcher = Dispatcher(
        core, journal, base.clock, on_learned=served.learned, recorders=recorders
    )
    stack.callback(dispatcher.close)
    variants = FleetVariants(dictionary, dispatcher.workers)
    policies = PolicyFile(config.state)
    versions = Versions(
        catalogue, policies.read(), stored=store.versions_of, check_floor=variants.check_floor
    )
    store.follow(versions.on_stored_changed)
    if config.worker_wait_s:  # requests wait for workers that have never had these
        store.follow(lambda: catalogue.add_known(store.engines()))
    _register_metrics(base, dispatcher, catalogue)
    return FleetParts(
        connections,
        catalogue,
        profiles,
        served,
        dispatcher,
        ModelControl(dispatcher, catalogue, dictionary, journal),
        variants,
        policies,
        versions,
        page,
        FleetFeed(page, dispatcher.workers, base.clock.now),
    )


def _register_metrics(base: Foundation, dispatcher: Dispatcher, catalogue: Catalogue) -> None:
    metrics, preloads = base.metrics, dispatcher.preloads
    metrics.add_gauge("workers", "Connected workers.", lambda: dispatcher.worker_count)
    metrics.add_gauge(
        "workers_ejected",
        "Workers that get no work for a while, as they made no progress.",
        lambda: sum(map(dispatcher.is_ejected, dispatcher.workers())),
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
    metrics.add_counter(
        "preloads", "Sessions loaded before they were needed.", lambda: preloads.loads
    )
    metrics.add_counter("preload_seconds", "Time that these loads took.", lambda: preloads.total_s)
    metrics.add_gauge(
        "preload_unused_seconds",
        "Time of the preloads that no query has used so far.",
        lambda: preloads.unused_s,
    )
    metrics.add(
        *worker_families(dispatcher.workers, dispatcher.paces),
        conflict_family(lambda: catalogue.conflicts),
    )

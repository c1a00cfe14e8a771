"""The components of a gateway, which its servers expose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.access.live_table import LiveTable
    from gateway.admission.admission import Admission
    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.fleet.catalogue import Catalogue
    from gateway.fleet.served_profiles import ServedProfiles
    from gateway.fleet.versions import Versions
    from gateway.hub.hub import Hub
    from gateway.hub.model_control import ModelControl
    from gateway.hub.placements import Placements
    from gateway.hub.rollouts import Rollouts
    from gateway.hub.work_streams import WorkStreams
    from gateway.jobs.own_inputs import OwnInputs
    from gateway.jobs.results import JobResults
    from gateway.jobs.streamed import StreamedJobs
    from gateway.jobs.submitted import SubmittedJobs
    from gateway.jobs.uploads import InputUploads
    from gateway.journal.journal import Journal
    from gateway.monitoring.metrics import Metrics
    from gateway.passage.passage import Passage
    from gateway.records.store import DataStore
    from gateway.requests.held import HeldRequests
    from gateway.requests.shared_memory import SharedMemoryRegions
    from gateway.servicers.inference_calls import InferenceCalls
    from gateway.store.pacer import Pacer
    from gateway.store.store import EngineStore
    from synergai.profiles.service import ProfileService
    from synergai.protocol.unread import UnreadResponses
    from synergai.runtime.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """The components of a gateway, without its servers.

    Attributes:
        access: the access table; None allows every caller everything.
        passage: what the calls of clients pass.
        agent_passage: what the calls of agents pass.
        restored: number of unfinished jobs restored from the journal.
    """

    clock: Clock
    metrics: Metrics
    access: LiveTable | None
    passage: Passage
    agent_passage: Passage
    admission: Admission
    journal: Journal
    profiles: ProfileService
    served_profiles: ServedProfiles
    catalogue: Catalogue
    versions: Versions
    rollouts: Rollouts
    model_control: ModelControl
    dispatcher: Dispatcher
    jobs: SubmittedJobs
    streamed: StreamedJobs
    input_uploads: InputUploads
    own_inputs: OwnInputs
    data: DataStore
    results: JobResults
    calls: InferenceCalls
    unread: UnreadResponses
    held: HeldRequests
    regions: SharedMemoryRegions
    work_streams: WorkStreams
    store: EngineStore
    placements: Placements
    pacer: Pacer
    hub: Hub
    restored: int

"""A worker with a connected agent, its power, and the assignments it has in flight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from synergai.core.scheduling.events import Assignment, EnginesChanged, SessionSize, Worker
from synergai.domain import (
    AssignmentId,
    Configuration,
    Engine,
    EngineName,
    Session,
    Variant,
    WorkerClass,
    WorkerId,
)
from synergai.runtime.send_queue import SendQueue
from synergai.wire.agent_messages import PowerDraw, ProtocolViolation
from synergai.wire.work_messages import RelayedTensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from synergai.core.pipeline import HeldTensors
    from synergai.v1 import common_pb2, hub_pb2
    from synergai.wire.request_codec import Buffer
    from synergai.wire.work_transport import SentOver


@dataclass(slots=True, eq=False, kw_only=True)
class WorkerPower:
    """Power of a worker's machine, as reported by its agent.

    Attributes:
        joules: energy since the agent started; None if not measured.
    """

    mode: str = ""
    switch_s: float = 0.0
    meter: str = ""
    watts: float | None = None
    joules: float | None = None

    def update(self, draw: PowerDraw) -> None:
        if draw.joules < (self.joules or 0.0):
            raise ProtocolViolation("energy must not decrease")
        self.watts, self.joules = draw.watts, draw.joules


class RunAssignment(Struct, frozen=True):
    """Order to run an assignment, with its serialized requests unless it draws on samples.

    Attributes:
        holds_outputs: the worker holds larger outputs for the next stage.
        pull: the tensors of its single request.
    """

    assignment: Assignment
    requests: Sequence[Buffer]
    inputs_follow: bool = False
    holds_outputs: bool = False
    pull: HeldTensors | None = None


class StopAssignment(Struct, frozen=True):
    """Order to stop an assignment before its next query, or to abort it."""

    assignment_id: AssignmentId
    abort: bool = False


class SendInputs(Struct, frozen=True):
    """Order with the next inputs of an assignment.

    Attributes:
        suspects: queries among them that have to run alone, counted from the assignment's first.
        pulls: the tensors of queries among them.
    """

    assignment_id: AssignmentId
    inputs: Sequence[bytes]
    suspects: Sequence[int] = ()
    pulls: Sequence[tuple[int, HeldTensors]] = ()


class SendTensors(Struct, frozen=True):
    """Order to send held tensors to the gateway, which relays them."""

    token: str


class DropTensors(Struct, frozen=True):
    """Order to hold tensors no longer."""

    token: str


class ProbeLink(Struct, frozen=True):
    """Order to hold zeros, or to pull those that another worker holds, if they have an address."""

    held: HeldTensors


Order: TypeAlias = (
    RunAssignment
    | StopAssignment
    | SendInputs
    | SendTensors
    | DropTensors
    | RelayedTensors
    | ProbeLink
)


class CompletedQueries(Struct, frozen=True):
    """Queries of one assignment that a report has newly completed.

    Attributes:
        compute_s: seconds that they took inside the engine; each counts with its whole batch.
        batch: size of the batches that they were computed in.
    """

    engine: EngineName
    queries: int
    compute_s: float
    batch: int
    at: float
    variant: str = ""


class AssignmentProgress(Struct, eq=False):
    """An assignment in flight, and the progress its worker has reported.

    Reported is not recorded: the core's ``Lease`` of the assignment counts the queries of a durable
    job only once the journal has them, and lasts until then.

    Attributes:
        labelled: completed queries with a known label.
        correct: labelled queries that were answered correctly.
        failed: why inputs failed, by query from the assignment's first, of the last report.
        lost: failed inputs whose tensors could not be pulled.
        held: outputs that the worker holds, by query like `failed`, of the last report.
        holds_outputs: the worker was told to hold outputs.
        input_bytes: bytes of the inputs that the worker has, of a job over its client's own data.
        stopping: the worker was told to stop it.
    """

    assignment: Assignment
    dispatched_at: float
    holds_outputs: bool = False
    done: int = 0
    labelled: int = 0
    correct: int = 0
    compute_s: float = 0.0
    batch: int = 1
    failed: Mapping[int, str] = {}
    lost: frozenset[int] = frozenset()
    held: Mapping[int, HeldTensors] = {}
    input_bytes: int = 0
    stopping: bool = False


@dataclass(slots=True, eq=False, kw_only=True)
class ConnectedWorker:
    """A worker with a connected agent, as its agent reports it.

    These are the network's facts, from registration to the end of the connection. The core's
    ``WorkerRecord`` exists while the worker is in the fleet and holds what scheduling derives from
    them: sessions and power mode once its assignments have run, engines without those that failed.

    Attributes:
        instance: id of the agent's process; empty from an agent that sends none.
        local: whether that is the gateway's own.
        unusable: sessions that it cannot run, and why, although it has engine and configuration.
        session_budget_bytes: memory for its sessions; 0 if its agent does not report it.
        session_bytes: memory of sessions that it had loaded when it registered.
        engine_cores: CPU cores for its engines; 0 if it runs one thing at a time.
        offered: engines by name, as the agent describes them.
        engines: the same engines as this gateway treats them; those not to be used have a fault.
        forgotten: engines that an operator removed from both, until its agent describes them again.
        closed: stages that it has, and in which nothing is to run there now.
        placed: engine versions of the store that are placed on it, as last reported.
        being_removed: engines that were placed on it until then, whose removal was asked for.
        fetchable: digests of their manifests and files.
        fetches: calls in which its agent fetches them.
        peer_address: HOST:PORT at which agents pull tensors from it; empty without one. Without a
            host, it is on the gateway's machine.
        peer_certificate: SHA-256 of the certificate that it presents there.
        peer_links: links from the workers that it has pulled tensors from.
        measure_link: returns what is known of the link to it.
        measure_received: returns the rate at which large messages of it arrive; 0 if unknown.
        sent_bytes_per_s: rate at which large messages arrive there; 0 if unknown.
        received_bytes_per_s: rate of the last larger transfers from it; 0 if unknown.
        computed: compute time and number of completed queries, by engine.
        run_s: time from dispatch to completion of completed assignments that had an estimate.
        estimate_error_s: sum of the absolute errors of these estimates.
    """

    id: WorkerId
    worker_class: WorkerClass
    agent_version: str
    cores: int
    memory_bytes: int
    configurations: tuple[Configuration, ...]
    orders: SendQueue[Order]
    last_seen_at: float
    instance: str = ""
    local: bool = False
    backends: frozenset[str] = frozenset()
    labels: tuple[str, ...] = ()
    memory_limit_bytes: int = 0
    memory_enforcement: str = ""
    engines_rss_bytes: int = 0
    power: WorkerPower = field(default_factory=WorkerPower)
    control: SendQueue[hub_pb2.GatewayControl] = field(default_factory=lambda: SendQueue(0))
    offered: dict[EngineName, Engine] = field(default_factory=dict)
    engines: dict[EngineName, Engine] = field(default_factory=dict)
    sessions: set[Session] = field(default_factory=set)
    unusable: dict[Session, str] = field(default_factory=dict)
    session_budget_bytes: int = 0
    session_bytes: dict[Session, int] = field(default_factory=dict)
    pinned: frozenset[Session] = frozenset()
    engine_cores: int = 0
    draining: bool = False
    placed: dict[tuple[str, int], common_pb2.Placed] = field(default_factory=dict)
    being_removed: set[EngineName] = field(default_factory=set)
    forgotten: set[EngineName] = field(default_factory=set)
    closed: frozenset[EngineName] = frozenset()
    placements_sent: bool = False
    fetchable: frozenset[str] = frozenset()
    fetches: int = 0
    peer_address: str = ""
    peer_certificate: bytes = b""
    peer_links: Mapping[str, SentOver] = field(default_factory=dict)
    measure_link: Callable[[], SentOver | None] = lambda: None
    measure_received: Callable[[], float] = lambda: 0.0
    sent_bytes_per_s: float = 0.0
    received_bytes_per_s: float = 0.0
    in_flight: dict[AssignmentId, AssignmentProgress] = field(default_factory=dict)
    free_since: float = 0.0
    queries_done: int = 0
    busy_s: float = 0.0
    computed: dict[EngineName, tuple[float, int]] = field(default_factory=dict)
    run_s: float = 0.0
    estimated_run_s: float = 0.0
    estimate_error_s: float = 0.0

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs that it has, of jobs over their clients' own data."""
        return sum(progress.input_bytes for progress in self.in_flight.values())

    @property
    def usable_engines(self) -> frozenset[EngineName]:
        """Names of the engines without a fault."""
        return frozenset(name for name, engine in self.engines.items() if not engine.fault)

    @property
    def open_engines(self) -> frozenset[EngineName]:
        """Names of the engines that may run."""
        return self.usable_engines - self.closed

    @property
    def variants(self) -> dict[EngineName, tuple[Variant, ...]]:
        """Variants of the engines without a fault that have any."""
        return {
            name: engine.variants
            for name, engine in self.engines.items()
            if engine.variants and not engine.fault
        }

    @property
    def query_s(self) -> dict[EngineName, float]:
        """Seconds of the fastest query with one thread, by engine, as far as they are known."""
        return {name: engine.query_s for name, engine in self.engines.items() if engine.query_s}

    def usable(self, engine: EngineName) -> list[Configuration]:
        """Return the configurations that it can run `engine` in, with each of its variants."""
        every: Iterable[Configuration] = self.configurations
        described = self.engines.get(engine)
        if described is not None and described.variants:
            every = (
                replace(configuration, variant=variant.name)
                for configuration in self.configurations
                for variant in described.variants
            )
        return [c for c in every if Session(engine, c) not in self.unusable]

    def to_scheduling(self) -> Worker:
        return Worker(
            id=self.id,
            worker_class=self.worker_class,
            engines=self.open_engines,
            configurations=self.configurations,
            sessions=frozenset(self.sessions),
            power_mode=self.power.mode,
            unusable=frozenset(self.unusable),
            variants=self.variants,
            query_s=self.query_s,
            memory_bytes=self.session_budget_bytes,
            session_sizes=tuple(SessionSize(*item) for item in sorted(self.session_bytes.items())),
            pinned=self.pinned,
            cores=self.engine_cores,
        )

    def engines_changed(self) -> EnginesChanged:
        return EnginesChanged(self.id, self.open_engines, self.variants, self.query_s)

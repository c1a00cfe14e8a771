"""A worker while its agent is connected, and what it has been told to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from gateway.fleet.power import WorkerPower
from gateway.send_queue import Outbox
from synergai.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.domain import (
        AssignmentId,
        Configuration,
        Engine,
        EngineName,
        Session,
        WorkerClass,
        WorkerId,
    )
    from synergai.scheduling.events import Assignment
    from synergai.v1 import hub_pb2


@value()
class Run:
    """Tell the worker to run an assignment; with its queries' requests, unless it has samples."""

    assignment: Assignment
    requests: Sequence[bytes]


@value()
class Halt:
    """Tell the worker to stop an assignment at its next query."""

    assignment_id: AssignmentId


Order: TypeAlias = Run | Halt


@dataclass(slots=True, eq=False)
class Outstanding:
    """An assignment that a worker has, and what it reported of it so far.

    Attributes:
        dispatched_at: when it was sent.
        compute_s: how long its queries that are done took inside the engine.
        batch: how many queries were computed together with its only one, it included.
    """

    assignment: Assignment
    dispatched_at: float
    done: int = 0
    labelled: int = 0
    correct: int = 0
    compute_s: float = 0.0
    batch: int = 1


@dataclass(slots=True, eq=False, kw_only=True)
class ConnectedWorker:
    """A worker while its agent is connected.

    Attributes:
        orders: what waits to be sent to it; closed while it has no work stream.
        control: what waits to be sent to it on the control stream.
        power: its power mode, and what its machine draws.
        engines: what it has, usable or not, by name.
        outstanding: what it has to do, by assignment.
        free_since: when it last ended an assignment.
        heard_at: when it last said anything.
    """

    id: WorkerId
    worker_class: WorkerClass
    agent_version: str
    cores: int
    memory_bytes: int
    configurations: tuple[Configuration, ...]
    orders: Outbox[Order]
    heard_at: float
    power: WorkerPower = field(default_factory=WorkerPower)
    control: Outbox[hub_pb2.GatewayControl] = field(default_factory=lambda: Outbox(0))
    engines: dict[EngineName, Engine] = field(default_factory=dict)
    sessions: set[Session] = field(default_factory=set)
    draining: bool = False
    outstanding: dict[AssignmentId, Outstanding] = field(default_factory=dict)
    free_since: float = 0.0
    queries_done: int = 0

    @property
    def usable_engines(self) -> frozenset[EngineName]:
        """The engines that it can run."""
        return frozenset(name for name, engine in self.engines.items() if not engine.fault)

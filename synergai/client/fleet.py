"""Workers as a client sees them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from synergai.domain import Configuration, Engine, EngineName, Session, WorkerClass, WorkerId
from synergai.protocol.converters import (
    configuration_from_proto,
    engine_from_proto,
    session_from_proto,
)

if TYPE_CHECKING:
    from synergai.v1 import fleet_pb2


class WorkerState(enum.Enum):
    """What a worker is doing; values are those of ``synergai.v1.WorkerState``."""

    UNKNOWN = 0
    IDLE = 1
    BUSY = 2
    DRAINING = 3

    @classmethod
    def _missing_(cls, value: object) -> WorkerState:  # noqa: ARG003 - a newer gateway's word
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStatus:
    """A worker at one moment.

    Attributes:
        memory_bytes: what its machine has.
        configurations: what it can be switched to.
        sessions: what is resident in its memory.
        queries_done: since it joined.
        last_heard_s: seconds since the last sign of life.
        unprofiled: engines that the dictionary lacks on this worker's class.
        power_mode: in force; empty if there is none, or none is known.
        switch_s: what the last switch of it took; 0 before the first.
        meter: what measures its power; empty if nothing does.
        watts: of the whole machine, over the last heartbeat; None where it is not measured.
        joules: since its agent started; None likewise.
    """

    id: WorkerId
    worker_class: WorkerClass
    state: WorkerState
    cores: int
    memory_bytes: int
    configurations: tuple[Configuration, ...]
    engines: tuple[Engine, ...]
    sessions: tuple[Session, ...]
    queries_done: int
    last_heard_s: float
    unprofiled: tuple[EngineName, ...]
    power_mode: str = ""
    switch_s: float = 0.0
    meter: str = ""
    watts: float | None = None
    joules: float | None = None


def worker_from_proto(message: fleet_pb2.Worker) -> WorkerStatus:
    """The worker in `message`.

    Raises:
        InvalidInput: the server sent a worker that cannot be.
    """
    return WorkerStatus(
        id=WorkerId(message.id),
        worker_class=WorkerClass(message.worker_class),
        state=WorkerState(message.state),
        cores=message.cores,
        memory_bytes=message.memory_bytes,
        configurations=tuple(map(configuration_from_proto, message.configurations)),
        engines=tuple(map(engine_from_proto, message.engines)),
        sessions=tuple(map(session_from_proto, message.sessions)),
        queries_done=message.queries_done,
        last_heard_s=message.last_heard_s,
        unprofiled=tuple(map(EngineName, message.unprofiled)),
        power_mode=message.power_mode,
        switch_s=message.switch_s,
        meter=message.meter,
        watts=message.watts if message.HasField("watts") else None,
        joules=message.joules if message.HasField("joules") else None,
    )

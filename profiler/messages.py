"""What a measuring process tells the profiler: one JSON object per line of a pipe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from synergai.runtime.report_pipe import MessageCodec


@dataclass(frozen=True, slots=True)
class Progressed:
    """This share of the work is done, 0 to 1."""

    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The measurement is over.

    Attributes:
        backend_start_s: as the engine host reports it, like the two that follow.
        service_queries: how many queries were run as ranges.
        service_s: how long they took together.
        watts: mean power of the machine meanwhile; 0 where it is not measured.
        batch_qps: queries per second in batches of 2, 4, 8, …, of an engine that has them.
    """

    backend_start_s: float
    model_load_s: float
    data_preparation_s: float
    service_queries: int
    service_s: float
    watts: float = 0.0
    batch_qps: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Failed:
    """There will be no measurement, and why."""

    reason: str


Message: TypeAlias = Progressed | Measured | Failed

MESSAGES: Final = MessageCodec[Message](Progressed, Measured, Failed)

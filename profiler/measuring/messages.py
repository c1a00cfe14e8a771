"""What a measuring process is asked for, and its messages: one JSON object per line of a pipe."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.json import Decoder

from profiler.measuring.conditions import Conditions  # noqa: TC001 - msgspec reads it
from profiler.measuring.single_stream import SingleStreamResult  # noqa: TC001 - as above
from synergai.domain import MAX_BATCH, Session
from synergai.profiles.dictionary import LOADGEN
from worker_agent.providers import ProviderChoice  # noqa: TC001 - msgspec reads it


class MeasurementTask(Struct, frozen=True, kw_only=True):
    """A session to measure in a process of its own.

    Attributes:
        cores: cores to pin the engine to; empty for all.
        queries: minimum number of queries one at a time.
        max_batch: largest batch to measure; 1 for none.
        accuracy: whether to measure the accuracy, if there are labels.
        output: folder for log files; created if missing.
        timer: timer of the queries, `LOADGEN` or `BUILT_IN`.
        root: root of the power interface's files.
    """

    models: Path
    session: Session
    cores: tuple[int, ...] = ()
    provider: ProviderChoice | None = None
    queries: int
    min_duration_s: float
    max_batch: int = MAX_BATCH
    accuracy: bool = True
    output: Path
    timer: str = LOADGEN
    root: Path = Path("/")


class Progress(Struct, frozen=True, tag=True):
    """Completed share of the measurement, 0 to 1."""

    share: float


class Measured(Struct, frozen=True, kw_only=True, tag=True):
    """Result of a measurement.

    Attributes:
        backend_start_s: seconds to start the backend, as reported by the engine host.
        model_load_s: seconds to load the model, as reported by the engine host.
        watts: mean power of the machine during the ranges; 0 without a meter.
        background: share of the machine's CPU time that other processes took, 0 to 1.
        batch_qps: queries per second in batches of 2, 4, 8, …, if the engine supports batches.
        fallback_share: share of the model's nodes that its execution provider does not run, 0 to 1;
            None if it is not known, or runs on the CPU anyway.
        first_load_s: seconds of the load before, which compiled the model and filled the cache of
            its execution provider; None if there is no such cache.
        error: standard error of the logarithm of the QPS of the ranges; 0 if it is not known.
        cpus: see `ProfileEntry`; 0 if it is not known.
        labelled: number of labelled samples that were run for the accuracy; 0 without any.
        correct: number of these that were answered correctly.
    """

    single_stream: SingleStreamResult
    conditions: Conditions
    backend_start_s: float
    model_load_s: float
    data_preparation_s: float
    service_queries: int
    service_s: float
    watts: float = 0.0
    background: float = 0.0
    batch_qps: list[float] = []
    fallback_share: float | None = None
    first_load_s: float | None = None
    error: float = 0.0
    cpus: float = 0.0
    labelled: int = 0
    correct: int = 0


class MeasurementFailed(Struct, frozen=True, tag=True):
    """The measurement was aborted."""

    reason: str


Message: TypeAlias = Progress | Measured | MeasurementFailed

DECODER: Final[Decoder[Message]] = Decoder(Message)

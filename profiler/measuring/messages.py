"""What a measuring process is asked for, and its messages: one JSON object per line of a pipe."""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeAlias

from msgspec import Struct
from msgspec.json import Decoder

from profiler.measuring.single_stream import SingleStreamResult  # noqa: TC001 - msgspec reads it
from synergai.domain import MAX_BATCH, Session, WorkerClass
from synergai.profiles.dictionary import DISTURBED, LOADGEN, ProfileEntry
from worker_agent.providers import ProviderChoice  # noqa: TC001 - as above


class MeasurementOrigin(Struct, frozen=True, kw_only=True):
    """What an entry records in addition to what is measured.

    Attributes:
        digest: SHA-256 of the model file.
        agent: version of SynergAI.
        idle_watts: power of the idle machine in the same power mode.
        samples_digest: SHA-256 of the sample set; empty if there is none.
        accuracy: accuracy that is known already, with its number of samples; None to measure it.
    """

    digest: str = ""
    runtime: str = ""
    agent: str = ""
    idle_watts: float = 0.0
    samples_digest: str = ""
    accuracy: tuple[float, int] | None = None


class MeasurementTask(Struct, frozen=True, kw_only=True):
    """A session to measure in a process of its own.

    Attributes:
        cores: cores to pin the engine to; empty for all.
        queries: minimum number of queries one at a time.
        max_batch: largest batch to measure; 1 for none.
        output: folder for log files; created if missing.
        timer: timer of the queries, `LOADGEN` or `BUILT_IN`.
        root: root of the power interface's files.
    """

    models: Path
    session: Session
    worker_class: WorkerClass
    origin: MeasurementOrigin = MeasurementOrigin()
    cores: tuple[int, ...] = ()
    provider: ProviderChoice | None = None
    queries: int
    min_duration_s: float
    max_batch: int = MAX_BATCH
    output: Path
    timer: str = LOADGEN
    root: Path = Path("/")


class Measurement(Struct, frozen=True, kw_only=True, tag=True):
    """A profile entry with the result of queries one at a time.

    Attributes:
        logs: folder of the log files.
        background: share of the machine's CPU time that other processes took, 0 to 1.
    """

    entry: ProfileEntry
    single_stream: SingleStreamResult
    logs: str
    background: float

    @property
    def name(self) -> str:
        """The engine and its configuration."""
        return f"{self.entry.engine}, {self.entry.configuration}"

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes took so much CPU time that the figures are too low."""
        return self.entry.label == DISTURBED


class MeasurementFailed(Struct, frozen=True, tag=True):
    """The measurement was aborted."""

    reason: str


Message: TypeAlias = Measurement | MeasurementFailed

DECODER: Final[Decoder[Message]] = Decoder(Message)

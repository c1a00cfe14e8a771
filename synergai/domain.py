"""The words everybody shares: engines, configurations, jobs and their states.

Bare floats are seconds on the monotonic clock of the process that holds them; other units
carry a suffix. Everything here is immutable and knows neither transport nor storage.
"""

from __future__ import annotations

import enum
import math
import re
from typing import Final, NewType

from synergai.errors import InvalidInput
from synergai.values import value

EngineName = NewType("EngineName", str)
"""Backend, model and version, as the catalogue names it: ``onnx_mobilenet_op11``."""
WorkerId = NewType("WorkerId", str)
WorkerClass = NewType("WorkerClass", str)
"""What identical machines share a profile under: ``x86``, ``agx-xavier``."""
JobId = NewType("JobId", str)
AssignmentId = NewType("AssignmentId", int)
"""A fencing token: rises over all restarts of the gateway, so that a late result is known."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def validate_name(text: str, what: str) -> str:
    """Return `text` if it can safely name a `what`, in a path and on a screen as well.

    Raises:
        InvalidInput: it is empty, too long, or has characters beyond letters, digits, ``._-``.
    """
    if not _NAME.fullmatch(text):
        raise InvalidInput(
            f"{text!r} is not a valid {what}: use letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit, at most 128 characters"
        )
    return text


@value(order=True)
class Configuration:
    """How a worker runs an engine.

    Attributes:
        threads: intra-op threads; 0 leaves the choice to the backend.
        power_mode: the board's name or number of the mode; empty where there are none.
        execution_provider: empty means the backend's default, the CPU.
    """

    threads: int = 0
    power_mode: str = ""
    execution_provider: str = ""

    def __str__(self) -> str:
        parts = [f"threads={self.threads}"] if self.threads else []
        if self.power_mode:
            parts.append(f"mode={self.power_mode}")
        if self.execution_provider:
            parts.append(f"provider={self.execution_provider}")
        return ",".join(parts) or "default"

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """Read what ``str`` writes: ``threads=4,mode=MAXN``.

        Raises:
            InvalidInput: a key is unknown or a number is not one.
        """
        if text == "default":
            return cls()
        fields: dict[str, str] = {}
        for part in text.split(","):
            key, separator, value = part.strip().partition("=")
            if not separator or key not in {"threads", "mode", "provider"} or not value:
                raise InvalidInput(
                    f"{text!r} is not a configuration: write threads=N, mode=NAME and "
                    "provider=NAME, separated by commas"
                )
            fields[key] = value
        threads = fields.get("threads", "0")
        if not threads.isdecimal() or int(threads) > 1024:
            raise InvalidInput(f"{text!r}: threads must be a number from 0 to 1024")
        return cls(int(threads), fields.get("mode", ""), fields.get("provider", ""))


MAX_BATCH: Final = 64
"""The largest `Engine.max_batch`."""


@value()
class BatchTimes:
    """How long batches take: what dictionary, gateway and worker tell each other of them.

    Attributes:
        by_size: seconds for a batch of 1, 2, 4, 8, … rows, in this order; at least one.
    """

    by_size: tuple[float, ...]

    @property
    def most(self) -> int:
        """The largest batch that is known of, in rows."""
        return 1 << len(self.by_size) - 1

    def seconds(self, rows: int) -> float:
        """Time of a batch of `rows`, 1 to `most`, on the line between its neighbours' times."""
        power = rows.bit_length() - 1
        known, low = self.by_size[power], 1 << power
        if rows == low:
            return known
        return known + (rows - low) / low * (self.by_size[power + 1] - known)


@value()
class TensorSpec:
    """A tensor that an engine takes or gives.

    Attributes:
        name: as in the model file.
        datatype: the Open Inference Protocol's name, such as ``FP32``.
        shape: dimensions; -1 marks a dynamic one.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@value(kw_only=True)
class Engine:
    """An engine as a worker serves it.

    Attributes:
        samples: size of the sample set that jobs draw their queries from.
        digest: sha256 of the model file, hexadecimal.
        fault: why it is present but cannot be used; empty when it can.
        preprocess: how its worker makes its first input from encoded images, which may then be
            sent in the tensor's place; empty: only tensors are taken.
        postprocess: name of the output that its worker derives from the model's when a request
            asks for it, ``classes`` or ``boxes``; empty: none.
        max_batch: how many queries of different requests its worker may compute together; 1:
            each by itself.
    """

    name: EngineName
    version: str
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    digest: str = ""
    samples: int = 0
    fault: str = ""
    preprocess: str = ""
    postprocess: str = ""
    max_batch: int = 1


@value(order=True)
class Session:
    """An engine resident in a worker's memory in a configuration."""

    engine: EngineName
    configuration: Configuration


class JobState(enum.Enum):
    """Where a job is in its life; values are those of ``synergai.v1.JobState``."""

    QUEUED = 1
    RUNNING = 2
    SUCCEEDED = 3
    FAILED = 4
    CANCELLED = 5
    REJECTED = 6
    EXPIRED = 7

    @property
    def ended(self) -> bool:
        """Nothing more will happen to the job."""
        return self not in (JobState.QUEUED, JobState.RUNNING)


MAX_PRIORITY: Final = 9
MAX_QUERIES: Final = 1_000_000_000


@value(kw_only=True)
class JobSpec:
    """What a client asks for: `queries` of `engine`, to be done within `qos` seconds.

    Attributes:
        qos: seconds from acceptance; infinite means no deadline.
        priority: 0 (default) to 9 (first).
        tenant: whom the work is for, for fair shares; empty is a tenant too.

    Raises:
        InvalidInput: on construction, if a field is out of its range.
    """

    engine: EngineName
    queries: int = 1
    qos: float = math.inf
    priority: int = 0
    tenant: str = ""

    def __post_init__(self) -> None:
        validate_name(self.engine, "engine name")
        if not 1 <= self.queries <= MAX_QUERIES:
            raise InvalidInput(f"queries must be from 1 to {MAX_QUERIES:,}, not {self.queries}")
        if not self.qos > 0:
            raise InvalidInput(f"the QoS time must be positive, not {self.qos} s")
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise InvalidInput(f"priority must be from 0 to {MAX_PRIORITY}, not {self.priority}")
        if self.tenant:
            validate_name(self.tenant, "tenant name")


@value(kw_only=True)
class Job:
    """Work that the gateway has accepted. Times are seconds on its monotonic clock.

    Attributes:
        arrival: when it was accepted.
        deadline: the instant at which its QoS time is over; infinite if it has none.
        perishable: somebody waits on the line, and a late answer is worth nothing to them:
            the job leaves at its deadline instead of running late.
        divisible: its queries may be spread over several workers at once.
        with_tensors: its queries' tensors travel with it, instead of being drawn from the
            engine's sample set on the worker.
    """

    id: JobId
    engine: EngineName
    queries: int
    arrival: float
    deadline: float = math.inf
    priority: int = 0
    tenant: str = ""
    perishable: bool = False
    divisible: bool = True
    with_tensors: bool = False


class Outcome(enum.Enum):
    """How an assignment ended; values are those of ``synergai.v1.Outcome``."""

    COMPLETED = 1
    STOPPED = 2
    FAILED = 3


class Fault(enum.Enum):
    """Why an assignment failed; values are those of ``synergai.v1.Fault``."""

    UNSPECIFIED = 0
    BAD_INPUT = 1
    ENGINE_BROKEN = 2
    HOST_DIED = 3
    UNKNOWN_ENGINE = 4

    @property
    def is_client_error(self) -> bool:
        """Another try would fail the same way: the query itself is at fault."""
        return self is Fault.BAD_INPUT

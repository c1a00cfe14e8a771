"""Domain model shared by all packages: engines, configurations and accepted jobs.

Bare floats are seconds on the monotonic clock of the process; other units carry a suffix. All
types are immutable and independent of transport and storage.
"""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING, Annotated, Final, NewType

from msgspec import Meta, Struct

from synergai.errors import InvalidInput
from synergai.names import EngineName as EngineName  # part of the model
from synergai.names import is_number, validate_variant

if TYPE_CHECKING:
    from collections.abc import Iterable

WorkerId = NewType("WorkerId", str)
WorkerClass = NewType("WorkerClass", str)
"""Class of identical machines, which share profiles: ``x86``, ``agx-xavier``."""
JobId = NewType("JobId", str)
AssignmentId = NewType("AssignmentId", int)
"""Fencing token: increases across restarts of the gateway, so that stale results are detected."""

MAX_THREADS: Final = 1024
"""Upper bound of `Configuration.threads`."""
_KEYS: Final = ("threads", "mode", "provider", "variant")
"""Keys of a configuration's text, in the order of its fields."""


class Configuration(Struct, frozen=True, order=True, cache_hash=True):
    """Configuration in which a worker runs an engine.

    Attributes:
        threads: number of intra-op threads; 0 is the backend's default, or that the execution
            provider computes without threads of the CPU.
        power_mode: name or number of the board's power mode; empty on machines without any.
        execution_provider: empty is the backend's default, the CPU.
        variant: variant of the engine; empty if it has none.
    """

    threads: int = 0
    power_mode: str = ""
    execution_provider: str = ""
    variant: str = ""

    def __str__(self) -> str:
        parts = [f"threads={self.threads}"] if self.threads else []
        if self.power_mode:
            parts.append(f"mode={self.power_mode}")
        if self.execution_provider:
            parts.append(f"provider={self.execution_provider}")
        if self.variant:
            parts.append(f"variant={self.variant}")
        return ",".join(parts) or "default"

    @property
    def base(self) -> Configuration:
        """The configuration without the variant."""
        if not self.variant:
            return self
        return Configuration(self.threads, self.power_mode, self.execution_provider)

    @classmethod
    def parse(cls, text: str) -> Configuration:
        """Parse the format of ``str``: ``threads=4,mode=MAXN``.

        Raises:
            InvalidInput: a key is unknown or a value is invalid.
        """
        if text == "default":
            return cls()
        fields: dict[str, str] = {}
        for part in text.split(","):
            key, separator, value = part.strip().partition("=")
            if not separator or key not in _KEYS or not value:
                raise InvalidInput(
                    f"{text!r} is not a configuration: write threads=N, mode=NAME, provider=NAME "
                    "and variant=NAME, separated by commas"
                )
            fields[key] = value
        threads = fields.get("threads", "0")
        if not is_number(threads, MAX_THREADS):
            raise InvalidInput(f"{text!r}: threads must be a number from 0 to {MAX_THREADS}")
        return cls(int(threads), *(fields.get(key, "") for key in _KEYS[1:]))


def largest_configuration(configurations: Iterable[Configuration]) -> Configuration:
    """Return the configuration in which to run an engine without a profile.

    That is the one with most threads, and of these the last one. Every engine runs on the CPU, so
    another execution provider is chosen only if there is no such configuration.
    """
    keys = (
        (not one.execution_provider, one.threads, number, one)
        for number, one in enumerate(configurations)
    )
    return max(keys)[-1]


MAX_BATCH: Final = 256
"""Upper bound of `Engine.max_batch`."""


class BatchTimes(Struct, frozen=True):
    """Compute times of batches.

    Attributes:
        by_size: seconds for a batch of 1, 2, 4, 8, … rows, in this order; not empty.
    """

    by_size: Annotated[tuple[float, ...], Meta(min_length=1)]

    @property
    def max_rows(self) -> int:
        """Size of the largest batch with a known time, in rows."""
        return 1 << len(self.by_size) - 1

    def seconds(self, rows: int) -> float:
        """Return the time of a batch of `rows`, linearly interpolated; 1 <= rows <= `max_rows`."""
        power = rows.bit_length() - 1
        known, low = self.by_size[power], 1 << power
        if rows == low:
            return known
        return known + (rows - low) / low * (self.by_size[power + 1] - known)

    def share(self, queries: int) -> float:
        """Return the time of one of many queries in batches, relative to that of one alone."""
        rows = min(queries, self.max_rows)
        return self.seconds(rows) / rows / self.seconds(1)


UNKNOWN_RANK: Final[tuple[int, ...]] = (-2,)
"""The shape of a tensor whose number of dimensions the model leaves open."""


class TensorSpec(Struct, frozen=True):
    """Input or output tensor of an engine.

    Attributes:
        name: name in the model file.
        datatype: name of the Open Inference Protocol, such as ``FP32``.
        shape: dimensions; -1 marks a dynamic one. `UNKNOWN_RANK` stands for any number of them.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """Datatype and shape, for people."""
        rank = "of any rank" if self.shape == UNKNOWN_RANK else list(self.shape)
        return f"{self.datatype} {rank}"


MAX_VARIANTS: Final = 32
"""Largest number of variants of an engine."""


class Origin(enum.Enum):
    """Origin of the accuracy of a variant, other than the dictionary."""

    MEASURED = "measured"
    """Computed on labelled samples when the variant was made."""
    PUBLISHED = "published"
    """Printed by those who trained the model."""
    DECLARED = "declared"
    """Written by hand."""


class Variant(Struct, frozen=True, kw_only=True):
    """One of several model files of an engine, with the same inputs and outputs.

    Variants differ in accuracy and speed. The accuracy here is what the engine's folder says; the
    dictionary has the one that was measured on a worker class.

    Attributes:
        digest: sha256 of the model file, hexadecimal; empty if it is not known.
        accuracy: share of right answers, 0 to 1; 0 if it is not known.
        origin: where `accuracy` comes from.
    """

    name: str
    digest: str = ""
    accuracy: float = 0.0
    origin: Origin = Origin.DECLARED

    def __post_init__(self) -> None:
        validate_variant(self.name)
        validate_accuracy(self.accuracy, f"the accuracy of variant {self.name!r}")


def validate_accuracy(accuracy: float, what: str) -> float:
    """Return `accuracy` if it is a share from 0 to 1; `what` names it in the error."""
    if not 0 <= accuracy <= 1:
        raise InvalidInput(f"{what} must be from 0 to 1, not {accuracy}")
    return accuracy


class UnusedVariant(Struct, frozen=True):
    """Files of an engine that a worker does not use, and why.

    Attributes:
        variant: the variant; empty for changed files of the whole engine, whose former ones serve.
    """

    variant: str
    reason: str

    def __post_init__(self) -> None:
        if self.variant:
            validate_variant(self.variant)


class Exit(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An early exit: an output of a stage that answers for the whole engine if it is sure enough.

    Attributes:
        output: probabilities of classes, [rows, classes], under the name of the engine's output.
        threshold: a query leaves if the likeliest class of each row has this probability.
        rate: share that left of the calibration samples which got here, 0 to 1. A gateway that
            lists its workers gives the one that it has learned.
        accuracy: share of right answers to all of these samples, of those that left here or at an
            exit before and of the whole engine's to the others; 0 if it is not known.
        whole_accuracy: share of the whole engine's right answers to them; 0 if it is not known.
    """

    output: Annotated[str, Meta(min_length=1)]
    threshold: float
    rate: float = 0.0
    accuracy: float = 0.0
    whole_accuracy: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__[1:]:
            validate_accuracy(getattr(self, name), f"the {name} of an early exit")


REMOVED: Final = "it was removed from the worker"
"""Fault of an engine whose files a worker has no more."""


class Engine(Struct, frozen=True, kw_only=True):
    """One version of an engine as served by a worker.

    Attributes:
        samples: size of the sample set that jobs draw their queries from.
        samples_digest: sha256 of its file, labels included, hexadecimal; empty if there is
            none.
        query_s: seconds of its fastest query, with one thread, when the worker inspected it; 0 if
            none was computed.
        digest: sha256 of the model file, hexadecimal.
        fault: reason why the engine cannot be used; empty if it can.
        unverified: reason why the engine is served although no input is known that it accepts;
            empty if its samples, or synthetic inputs, were computed when it was loaded.
        pending: whether the worker is still inspecting the engine; its fault says so as well.
        too_large: whether the worker has not the memory for it; its fault says so as well.
        routes: when it may be cut, by its ``engine.toml``; empty if that does not say.
        preprocess: name of the pre-processing with which the worker converts encoded images to
            the first input; empty if the engine accepts tensors only.
        postprocess: name of the output that the worker derives on request, ``classes`` or
            ``boxes``; empty if there is none.
        max_batch: largest number of queries of different requests computed in one batch; 1
            disables batching.
        variants: the variants that the worker has, in the order of the engine's folder; empty if
            the engine has a single model file. With variants, the other fields are those of the
            first one.
        unused_variants: files in the worker's folder that are not used there, and why.
        stage_of: of a stage, sha256 of the whole model, hexadecimal; otherwise empty.
        stage_end: of a stage, number of the last position in the whole model, its outputs.
        exit: the early exit of a stage, at its end; None without any.
    """

    name: EngineName
    version: str
    backend: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    digest: str = ""
    samples: int = 0
    fault: str = ""
    unverified: str = ""
    preprocess: str = ""
    postprocess: str = ""
    max_batch: int = 1
    pending: bool = False
    variants: tuple[Variant, ...] = ()
    unused_variants: tuple[UnusedVariant, ...] = ()
    samples_digest: str = ""
    query_s: float = 0.0
    stage_of: str = ""
    stage_end: int = 0
    exit: Exit | None = None
    too_large: bool = False
    routes: str = ""

    @property
    def digests(self) -> frozenset[str]:
        """Digests of its model files, as far as they are known."""
        found = {variant.digest for variant in self.variants} or {self.digest}
        return frozenset(found - {""})

    def has_variant(self, name: str) -> bool:
        """Return whether it has this variant."""
        return any(each.name == name for each in self.variants)


class Session(Struct, frozen=True, order=True, cache_hash=True):
    """Engine resident in a worker's memory, in a configuration."""

    engine: EngineName
    configuration: Configuration

    def __str__(self) -> str:
        return f"{self.engine} with {self.configuration}"


class UnusableSession(Struct, frozen=True, order=True):
    """Engine that a worker cannot run in one of its configurations, and why.

    Other configurations of the engine, and other engines in this one, are not affected.
    """

    session: Session
    reason: str


class Job(Struct, frozen=True, kw_only=True):
    """Job or request accepted by the gateway. Times are seconds on its monotonic clock.

    Attributes:
        arrival: time of acceptance.
        deadline: time at which the QoS budget ends; infinite if there is none.
        perishable: the deadline is firm: a client waits for the response, and the job is dropped
            at its deadline instead of running late.
        with_tensors: the queries carry their tensors instead of referring to the worker's sample
            set.
        variant: variant of the engine that all queries use; empty for any.
        min_accuracy: lowest accuracy, 0 to 1, of the variants that may be used.
        client_id: id that the client of a request gave it; not unique, and empty without one.
    """

    id: JobId
    engine: EngineName
    queries: int
    arrival: float
    deadline: float = math.inf
    priority: int = 0
    tenant: str = ""
    perishable: bool = False
    with_tensors: bool = False
    variant: str = ""
    min_accuracy: float = 0.0
    client_id: str = ""


class Outcome(enum.IntEnum):
    """Outcome of an assignment, with the values of ``synergai.v1.Outcome``."""

    COMPLETED = 1
    STOPPED = 2
    FAILED = 3


class Fault(enum.IntEnum):
    """Cause of an assignment's failure, with the values of ``synergai.v1.Fault``."""

    UNSPECIFIED = 0
    BAD_INPUT = 1
    ENGINE_BROKEN = 2
    HOST_DIED = 3
    UNKNOWN_ENGINE = 4
    RESPONSE_TOO_LARGE = 5
    DIED_AT_INPUT = 6
    TENSORS_LOST = 7
    CONFIGURATION_UNUSABLE = 20
    CRASHED = 21
    OUT_OF_MEMORY = 22

    @property
    def is_of_query(self) -> bool:
        """Whether the query itself is the cause, so that retrying is pointless."""
        return self in (Fault.BAD_INPUT, Fault.RESPONSE_TOO_LARGE, Fault.TENSORS_LOST)

"""Configuration dictionary: measured performance of engines by worker class and configuration.

The profiler writes one entry per engine, worker class and configuration; the estimator reads them
(thesis, chapter 6, "Configuration Dictionary").
"""

from __future__ import annotations

import math
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, ValidationError, convert, structs

from synergai.domain import (
    MAX_BATCH,
    MAX_THREADS,
    BatchTimes,
    Configuration,
    EngineName,
    WorkerClass,
    validate_accuracy,
)
from synergai.errors import InvalidInput
from synergai.names import validate_engine, validate_name
from synergai.runtime.toml_file import sentence

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import apsw


MAX_FIGURE: Final = 2.0**53
"""Upper bound of all figures (JSON integers are exact up to it); its inverse bounds rates below."""
MEASURED: Final = "measured"
"""Label of an entry of the profiler."""
DISTURBED: Final = "disturbed"
"""Label of an entry of the profiler during which other processes took CPU time."""
OBSERVED: Final = "observed"
"""Label of an entry measured on queries in service."""
PREDICTED: Final = "predicted"
"""Label of an entry that was not measured, but follows from the measurements of others."""
LOADGEN: Final = "loadgen"
"""Timer of an entry whose latencies are MLPerf LoadGen's."""
BUILT_IN: Final = "built-in"
"""Timer of an entry whose latencies the profiler measured itself, for want of LoadGen."""
_EMPTY: Mapping[Configuration, ProfileEntry] = MappingProxyType({})


class ProfileEntry(Struct, frozen=True, kw_only=True):
    """Performance of an engine on a worker class in a configuration.

    Attributes:
        qps: throughput in queries per second, one query at a time (MLPerf Single Stream).
        error: standard error of the logarithm of `qps`, nearly a share of it: of the mean of
            several measurements, or of a prediction; 0 if not known.
        repeats: number of measurements that `qps` is the mean of; 0 if not known.
        backend_start_s: time to start the engine's process and runtime.
        model_load_s: time to load and warm up the model.
        data_preparation_s: time to load the sample set into memory.
        latency_p50_s: median latency of a query; 0 if not measured, as for the figures below.
        latency_p90_s: 90th percentile of the latency.
        latency_p99_s: 99th percentile of the latency.
        watts: mean power of the machine while the engine ran.
        idle_watts: its power before the engine was started.
        clock_mhz: mean clock of its fastest core while the engine ran.
        lowest_clock_mhz: lowest clock of its fastest core within that time.
        temperature_c: highest temperature of its processor within that time, in degrees Celsius.
        cpus: CPU time per second that the engine could use: cores, or the limit of a container or
            unit, such as 0.5.
        throttled: share of that time in which the machine limited its clocks because of heat or
            power, 0 to 1.
        background: share of the machine's CPU time that other processes took, 0 to 1.
        label: origin: ``measured``, ``disturbed`` (measured while the machine was busy),
            ``observed`` in service, ``predicted`` from other measurements, ``reconstructed`` or
            ``emulated``.
        measured_at: ISO 8601, UTC.
        digest: SHA-256 of the model file, hexadecimal; empty if not known, as below.
        runtime: inference runtime and its version, such as ``onnxruntime 1.31.1``.
        agent: version of SynergAI whose engine host ran the engine.
        batch_qps: throughput with batches of 2, 4, 8, … queries, in this order; empty if not
            measured, which disables batching.
        accuracy: share of the labelled samples that the engine answered correctly on this worker
            class, 0 to 1.
        accuracy_samples: number of these samples; 0 if the accuracy was not measured.
        timer: what measured the latencies, ``loadgen`` or ``built-in``.
        samples_digest: SHA-256 of the samples that `accuracy` was measured on; empty if not known.
    """

    engine: EngineName
    worker_class: WorkerClass
    configuration: Configuration
    qps: float
    backend_start_s: float = 0.0
    model_load_s: float = 0.0
    data_preparation_s: float = 0.0
    latency_p50_s: float = 0.0
    latency_p90_s: float = 0.0
    latency_p99_s: float = 0.0
    watts: float = 0.0
    queries: int = 0
    label: str = MEASURED
    measured_at: str = ""
    batch_qps: tuple[float, ...] = ()
    error: float = 0.0
    repeats: int = 0
    idle_watts: float = 0.0
    clock_mhz: float = 0.0
    lowest_clock_mhz: float = 0.0
    temperature_c: float = 0.0
    throttled: float = 0.0
    background: float = 0.0
    digest: str = ""
    runtime: str = ""
    agent: str = ""
    accuracy: float = 0.0
    accuracy_samples: int = 0
    timer: str = ""
    samples_digest: str = ""
    cpus: float = 0.0

    def __post_init__(self) -> None:
        if self.engine != (engine := validate_engine(self.engine)):
            raise InvalidInput(f"version 1 of an engine is written {engine}, not {self.engine}")
        validate_name(self.worker_class, "worker class")
        if self.configuration.variant:
            validate_name(self.configuration.variant, "variant name")
        where = f"{self.engine} on {self.worker_class} with {self.configuration}"
        if not 0 <= self.configuration.threads <= MAX_THREADS:
            raise InvalidInput(
                f"{where}: threads must be from 0 to {MAX_THREADS}, not "
                f"{self.configuration.threads}"
            )
        for name, rates in (("qps", (self.qps,)), ("batch_qps", self.batch_qps)):
            for rate in rates:
                if not 1 / MAX_FIGURE <= rate <= MAX_FIGURE:
                    raise InvalidInput(
                        f"{where}: {name} must be positive, at most {MAX_FIGURE:g}, not {rate}"
                    )
        if 1 << len(self.batch_qps) > MAX_BATCH:
            raise InvalidInput(f"{where}: batch_qps has batches larger than {MAX_BATCH}")
        for name in _FIGURES:
            value = getattr(self, name)
            most = 1.0 if name in {"throttled", "background"} else MAX_FIGURE
            if not 0 <= value <= most:
                raise InvalidInput(
                    f"{where}: {name} must be 0 or more, at most {most:g}, not {value}"
                )
        validate_accuracy(self.accuracy, f"{where}: accuracy")
        if self.accuracy and not self.accuracy_samples:
            raise InvalidInput(
                f"{where}: an accuracy of {self.accuracy:g} without accuracy_samples, the number "
                "of samples that it was measured on"
            )

    def is_stale(self, digest: str, runtime: str) -> bool:
        """Return whether it is of another model file or inference runtime than these.

        A value that is unknown on either side does not differ.
        """
        pairs = ((self.digest, digest), (self.runtime, runtime))
        return any(mine and theirs and mine != theirs for mine, theirs in pairs)

    @property
    def t_pre_s(self) -> float:
        """Pre-processing time T_pre of the thesis: seconds before a cold engine's first query."""
        return self.backend_start_s + self.model_load_s + self.data_preparation_s

    @property
    def batch_times(self) -> BatchTimes | None:
        """Compute times of batches; None if they were not measured."""
        if not self.batch_qps:
            return None
        rates = (self.qps, *self.batch_qps)
        return BatchTimes(tuple((1 << power) / rate for power, rate in enumerate(rates)))

    @property
    def planned_qps(self) -> float:
        """The QPS to plan with: that of a prediction is one standard error lower."""
        return self.qps * math.exp(-self.error) if self.label == PREDICTED else self.qps

    @property
    def accuracy_error(self) -> float:
        """Standard error of `accuracy`; 0 if it was not measured.

        That of the Agresti-Coull estimate, which is not 0 if all answers are right.
        """
        if not self.accuracy_samples:
            return 0.0
        trials = self.accuracy_samples + 4
        share = (self.accuracy * self.accuracy_samples + 2) / trials
        return math.sqrt(share * (1 - share) / trials)

    def is_accurate_on(self, samples: str) -> bool:
        """Return whether its accuracy was measured, on these samples as far as is known."""
        known = self.samples_digest and samples
        return self.accuracy_samples > 0 and (not known or self.samples_digest == samples)

    @property
    def joules(self) -> float:
        """Energy of the machine per query; 0 if not measured."""
        return self.watts / self.qps


_FIGURES: Final = tuple(
    field.name
    for field in structs.fields(ProfileEntry)
    if field.type in (int, float) and field.name not in {"qps", "accuracy"}
)
"""Numbers that are 0 if they are not known."""


def common_samples(entries: Iterable[ProfileEntry]) -> str:
    """Return the samples that most accuracies of an engine on a worker class were measured on.

    Accuracies on different samples cannot be compared. Of equally many, the latest count.

    Returns:
        The SHA-256 of the sample set; empty if it is not known.
    """
    counts: Counter[str] = Counter()
    latest: dict[str, str] = {}
    for entry in entries:
        if entry.accuracy_samples and (samples := entry.samples_digest):
            counts[samples] += 1
            latest[samples] = max(latest.get(samples, ""), entry.measured_at)
    return max(counts, key=lambda each: (counts[each], latest[each], each), default="")


class ConfigurationDictionary:
    """Table of profile entries.

    Attributes:
        rows: the entries by engine and worker class, then by configuration; not to be changed.
    """

    def __init__(self, entries: Iterable[ProfileEntry] = ()) -> None:
        self.rows: dict[tuple[EngineName, WorkerClass], dict[Configuration, ProfileEntry]] = {}
        self._samples: dict[tuple[EngineName, WorkerClass], str] = {}
        for entry in entries:
            self.put(entry)

    def put(self, entry: ProfileEntry) -> None:
        """Add `entry`, replacing one with the same engine, class and configuration."""
        row = self.rows.setdefault((entry.engine, entry.worker_class), {})
        row[entry.configuration] = entry
        self._samples.pop((entry.engine, entry.worker_class), None)

    def remove(self, entry: ProfileEntry) -> None:
        """Remove the entry with the same engine, class and configuration, if there is one."""
        key = entry.engine, entry.worker_class
        if (row := self.rows.get(key)) is not None:
            row.pop(entry.configuration, None)
            self._samples.pop(key, None)
            if not row:
                del self.rows[key]

    def row(
        self, engine: EngineName, worker_class: WorkerClass
    ) -> Mapping[Configuration, ProfileEntry]:
        return self.rows.get((engine, worker_class), _EMPTY)

    def samples(self, engine: EngineName, worker_class: WorkerClass) -> str:
        """Return the samples that accuracies of a row are compared on; see `common_samples`."""
        key = engine, worker_class
        found = self._samples.get(key)
        if found is None:
            found = common_samples(self.row(engine, worker_class).values())
            if key in self.rows:
                self._samples[key] = found
        return found

    def __iter__(self) -> Iterator[ProfileEntry]:
        for row in self.rows.values():
            yield from row.values()

    def __len__(self) -> int:
        return sum(map(len, self.rows.values()))


# An absurd entry, such as 1e-6 queries per second, makes the scheduler refuse work that the worker
# could do. Files may contain one; the gateway and the commands that add entries accept none.

MAX_ENTRIES: Final = 20_000
"""Entries of a dictionary: 100 engines on 10 worker classes in 20 configurations."""
_QPS: Final = (1e-3, 1e8)
_MAX_SECONDS: Final = 86_400.0
_MAX_WATTS: Final = 1e5
_MEDIAN: Final = (1e-3, 2.1)
"""Median over mean of a latency: at most 2 for any distribution, and some rounding."""
_MAX_OVERHEAD_S: Final = 0.1
"""Of a query issued from outside its host, which the median latency has and the QPS has not."""


def find_implausible(entry: ProfileEntry) -> str:
    """Return why an entry is implausible; empty if it is not."""
    fastest = max((entry.qps, *entry.batch_qps))
    slowest = min((entry.qps, *entry.batch_qps))
    if not _QPS[0] <= slowest <= fastest <= _QPS[1]:
        rate = slowest if slowest < _QPS[0] else fastest
        return f"{rate:g} queries per second (expected {_QPS[0]:g} to {_QPS[1]:g})"
    if entry.t_pre_s > _MAX_SECONDS:
        return f"a T_pre of {entry.t_pre_s:g} s (expected at most {_MAX_SECONDS:g})"
    if entry.watts > _MAX_WATTS:
        return f"{entry.watts:g} W (expected at most {_MAX_WATTS:g})"
    shortest, longest = (ratio / entry.qps for ratio in _MEDIAN)
    if entry.latency_p50_s and not shortest <= entry.latency_p50_s <= longest + _MAX_OVERHEAD_S:
        return f"a median latency of {entry.latency_p50_s:g} s at {entry.qps:g} queries per second"
    return ""


def check_plausible(entries: Iterable[ProfileEntry]) -> None:
    for entry in entries:
        if fault := find_implausible(entry):
            raise InvalidInput(
                f"{entry.engine} on {entry.worker_class} with {entry.configuration}: implausible: "
                f"{fault}"
            )


def check_size(before: int, after: int, max_entries: int | None, where: object) -> None:
    """Check that a dictionary does not grow beyond a number of entries."""
    if max_entries is not None and after > max(before, max_entries):
        raise InvalidInput(
            f"{where} would have {after:,} entries, but {max_entries:,} is the most; delete some "
            "with 'synergai dictionary delete'"
        )


CONFIGURATION: Final = Configuration.__struct_fields__
COLUMNS: Final = tuple(
    name
    for field in ProfileEntry.__struct_fields__
    for name in (CONFIGURATION if field == "configuration" else (field,))
)
"""Column names: the fields of `ProfileEntry`, with ``configuration`` expanded to its fields."""
KEY: Final = ("engine", "worker_class", *CONFIGURATION)
"""Columns of the primary key."""
KINDS: Final = {
    field.name: "REAL" if field.type is float else "INTEGER" if field.type is int else "TEXT"
    for struct in (ProfileEntry, Configuration)
    for field in structs.fields(struct)
}
"""SQLite's types of the columns."""


def to_record(entry: ProfileEntry) -> dict[str, Any]:
    """Convert an entry to values by column; ``batch_qps`` becomes a space-separated string."""
    record = structs.asdict(entry)
    record.update(structs.asdict(record.pop("configuration")))
    record["batch_qps"] = " ".join(map(repr, entry.batch_qps))
    return {name: record[name] for name in COLUMNS}


def from_record(record: Mapping[str, Any], *, strict: bool = True) -> ProfileEntry:
    """Convert values by column to an entry; missing columns take their defaults.

    Unless `strict`, numbers may be texts.
    """
    values = dict(record)
    configuration = {name: values.pop(name) for name in CONFIGURATION if name in values}
    if "batch_qps" in values:
        values["batch_qps"] = _parse_rates(values["batch_qps"])
    values["configuration"] = configuration
    try:
        return convert(values, ProfileEntry, strict=strict)
    except ValidationError as error:
        if isinstance(error.__cause__, InvalidInput):  # of the entry, which names what is wrong
            raise error.__cause__ from None
        raise InvalidInput(sentence(error, ProfileEntry)) from None


def read_rows(rows: apsw.Cursor) -> Iterator[dict[str, Any]]:
    """Yield rows of a database as values by column, of the columns that it has."""
    names: list[str] | None = None
    for row in rows:
        names = names or [name for name, _ in rows.get_description()]
        yield dict(zip(names, row, strict=True))


def _parse_rates(text: object) -> tuple[float, ...]:
    try:
        return tuple(map(float, str(text).split()))
    except ValueError as error:
        raise InvalidInput(
            f"batch_qps must be numbers separated by spaces, not {text!r}"
        ) from error

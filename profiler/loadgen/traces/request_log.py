"""Log of a run's requests, and the figures that follow, also by variant of the engine.

Latency counts from a request's due time, not from when it was sent. Otherwise a stalled generator
would omit the waiting time of its users (coordinated omission).
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from profiler.loadgen.outcome import RequestOutcome, outcome_of
from synergai.names import split_variant, split_version, versioned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from synergai.client.client import Client
    from synergai.errors import SynergaiError


PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
_ANSWERED: Final = (RequestOutcome.MET, RequestOutcome.LATE)


@dataclass(slots=True)
class RequestLog:
    """Columns of all requests of a run, in order of completion.

    Attributes:
        due: due times in seconds from the start.
        delays: seconds between due and send time.
        latencies: seconds between due and end time.
        versions: versions that answered, such as ``1`` or ``1.int8``; empty without an answer.
        first_failure: error of the first request that failed; empty if there is none.
    """

    due: array[float] = field(default_factory=lambda: array("d"))
    delays: array[float] = field(default_factory=lambda: array("d"))
    latencies: array[float] = field(default_factory=lambda: array("d"))
    outcomes: list[RequestOutcome] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    first_failure: str = ""

    def record(
        self,
        *,
        due: float,
        sent: float,
        ended: float,
        deadline_s: float,
        error: SynergaiError | None,
        version: str = "",
    ) -> None:
        """Record an ended request; times are in seconds from the start of the run."""
        outcome = outcome_of(error, ended - due, deadline_s)
        self.due.append(due)
        self.delays.append(max(0.0, sent - due))
        self.latencies.append(ended - due)
        self.outcomes.append(outcome)
        self.versions.append(version)
        if outcome is RequestOutcome.FAILED and not self.first_failure:
            self.first_failure = str(error)

    def __len__(self) -> int:
        return len(self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDelay:
    """Delays between due and send times: how well the generator kept to the trace.

    Attributes:
        late: number of requests sent later than tolerated.
        max_s: largest delay in seconds.
        is_valid: whether the run measures the gateway rather than the generator.
    """

    late: int
    share: float
    max_s: float
    is_valid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """Statistics of a run.

    Attributes:
        goodput_window_s: time until the last response in time, at least `seconds`.
        met, late, expired, rejected, failed: requests by outcome; all but met are violations.
        offered: offered load in requests per second.
        latency_s: latency of completed requests by percentile.
        rejection_s: latency of rejections by percentile.
        first_failure: error of the first failed request; empty if there is none.
    """

    requests: int
    seconds: float
    goodput_window_s: float
    met: int
    late: int
    expired: int
    rejected: int
    failed: int
    offered: float
    goodput: float
    latency_s: dict[float, float]
    mean_s: float
    max_s: float
    rejection_s: dict[float, float]
    send_delay: SendDelay
    first_failure: str

    @property
    def violations(self) -> int:
        """Requests without a response in time, for any reason."""
        return self.requests - self.met

    @property
    def attainment(self) -> float:
        """Share of requests with a response in time."""
        return self.met / self.requests if self.requests else 0.0


def summarise(log: RequestLog, seconds: float, late_s: float, late_share: float) -> RunSummary:
    counts = Counter(log.outcomes)
    completed = _latencies(log, range(len(log)), *_ANSWERED)
    rejected = _latencies(log, range(len(log)), RequestOutcome.REJECTED)
    late = sum(delay > late_s for delay in log.delays)
    share = late / len(log) if len(log) else 0.0
    goodput_window_s = max(seconds, _last_met(log))
    return RunSummary(
        requests=len(log),
        seconds=seconds,
        goodput_window_s=goodput_window_s,
        met=counts[RequestOutcome.MET],
        late=counts[RequestOutcome.LATE],
        expired=counts[RequestOutcome.EXPIRED],
        rejected=counts[RequestOutcome.REJECTED],
        failed=counts[RequestOutcome.FAILED],
        offered=len(log) / seconds,
        goodput=counts[RequestOutcome.MET] / goodput_window_s,
        latency_s=_percentiles(completed, PERCENTILES),
        mean_s=float(completed.mean()) if completed.size else math.nan,
        max_s=float(completed.max()) if completed.size else math.nan,
        rejection_s=_percentiles(rejected, PERCENTILES),
        send_delay=SendDelay(
            late=late,
            share=share,
            max_s=max(log.delays, default=0.0),
            is_valid=share <= late_share,
        ),
        first_failure=log.first_failure,
    )


def _last_met(log: RequestLog) -> float:
    """Return the time of the last response in time; 0 if there was none."""
    rows = zip(log.due, log.latencies, log.outcomes, strict=True)
    ends = (due + latency for due, latency, outcome in rows if outcome is RequestOutcome.MET)
    return max(ends, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondCounts:
    """Statistics of the requests due in one second of a run.

    Attributes:
        met: number of responses in time.
        latency_s: 50th and 99th percentile of completed requests; empty if there were none.
        variants: completed requests by variant; empty if the engine has none.
    """

    at: int
    offered: int
    met: int
    latency_s: dict[float, float]
    variants: dict[str, int]


def by_second(log: RequestLog) -> list[SecondCounts]:
    if not len(log):
        return []
    rows: list[list[int]] = [[] for _ in range(int(max(log.due)) + 1)]
    for row, due in enumerate(log.due):
        rows[int(due)].append(row)
    return [_second(log, at, those) for at, those in enumerate(rows)]


def _second(log: RequestLog, at: int, rows: list[int]) -> SecondCounts:
    variants = Counter(split_variant(log.versions[row])[1] for row in rows)
    del variants[""]
    return SecondCounts(
        at=at,
        offered=len(rows),
        met=sum(log.outcomes[row] is RequestOutcome.MET for row in rows),
        latency_s=_percentiles(_latencies(log, rows, *_ANSWERED), (50.0, 99.0)),
        variants=dict(variants),
    )


def _latencies(
    log: RequestLog, rows: Iterable[int], *outcomes: RequestOutcome
) -> NDArray[np.float64]:
    return np.array([log.latencies[row] for row in rows if log.outcomes[row] in outcomes])


def _percentiles(seconds: NDArray[np.float64], wanted: tuple[float, ...]) -> dict[float, float]:
    """Return percentiles by nearest rank; none without values."""
    if not seconds.size:
        return {}
    found = np.percentile(seconds, wanted, method="inverted_cdf").tolist()
    return dict(zip(wanted, found, strict=True))


# The accuracy of a variant is that of the gateway's dictionary, over all worker classes, or else
# what the workers declare. Late and missing answers have none.


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantFigures:
    """Figures of a run on an engine with variants.

    Attributes:
        answers: completed requests by variant, the most frequent first.
        effective_accuracy: mean accuracy over all requests, 0 for those without a response in time.
        floor_violations: completed requests whose variant is below the floor.
    """

    answers: dict[str, int]
    accuracies: dict[str, float]
    effective_accuracy: float
    floor_violations: int


def variant_figures(
    log: RequestLog, accuracies: Mapping[str, float], floor: float = 0.0
) -> VariantFigures | None:
    """Return the figures of a run; None if its engine has no variants."""
    answers: Counter[str] = Counter()
    total, violations = 0.0, 0
    for version, outcome in zip(log.versions, log.outcomes, strict=True):
        variant = split_variant(version)[1]
        if not variant:
            continue
        answers[variant] += 1
        accuracy = accuracies.get(variant, 0.0)
        violations += accuracy < floor
        if outcome is RequestOutcome.MET:
            total += accuracy
    if not answers:
        return None
    return VariantFigures(
        answers=dict(answers.most_common()),
        accuracies=dict(accuracies),
        effective_accuracy=total / len(log),
        floor_violations=violations,
    )


async def read_accuracies(client: Client, engine: str) -> dict[str, float]:
    """Return the accuracy of each variant of an engine, as far as it is known."""
    name, version = split_version(engine)
    number = split_variant(version)[0]
    wanted = versioned(name, number)
    found: dict[str, float] = {}
    for worker in await client.workers():
        for described in worker.engines:
            if described.name == wanted:
                found |= {each.name: each.accuracy for each in described.variants if each.accuracy}
    right: Counter[str] = Counter()
    samples: Counter[str] = Counter()
    for entry in await client.dictionary():
        if entry.engine == wanted and entry.accuracy_samples:
            variant = entry.configuration.variant
            samples[variant] += entry.accuracy_samples
            right[variant] += round(entry.accuracy * entry.accuracy_samples)
    return found | {variant: right[variant] / samples[variant] for variant in samples if variant}

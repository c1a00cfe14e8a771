"""What became of each request of a run, and the figures that follow from it.

Latency runs from the instant at which the trace has the request sent, not from when it was really
sent: a generator that is held up would else leave out just the waiting that its users have.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hdrh.histogram import HdrHistogram

from synergai.loadgen.outcome import Outcome, outcome_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.errors import SynergaiError

PERCENTILES: Final = (50.0, 90.0, 95.0, 99.0, 99.9)
_LOWEST_US: Final = 1
_HIGHEST_US: Final = 3_600_000_000
_DIGITS: Final = 3


@dataclass(slots=True)
class RequestLog:
    """All requests of a run, a row for each, in the order of their ends.

    Attributes:
        due: instants at which they were to be sent, in seconds from the beginning.
        delays: by how much later they were sent, in seconds.
        latencies: from when they were to be sent to their ends, in seconds.
        outcomes: how they ended.
        first_failure: what the first error said that is neither a rejection nor an expiry.
    """

    due: array[float] = field(default_factory=lambda: array("d"))
    delays: array[float] = field(default_factory=lambda: array("d"))
    latencies: array[float] = field(default_factory=lambda: array("d"))
    outcomes: list[Outcome] = field(default_factory=list)
    first_failure: str = ""

    def add(
        self,
        *,
        due: float,
        sent: float,
        ended: float,
        deadline_s: float,
        error: SynergaiError | None,
    ) -> None:
        """Note the end of a request; instants are seconds from the beginning of the run."""
        outcome = outcome_of(error, ended - due, deadline_s)
        self.due.append(due)
        self.delays.append(max(0.0, sent - due))
        self.latencies.append(ended - due)
        self.outcomes.append(outcome)
        if outcome is Outcome.FAILED and not self.first_failure:
            self.first_failure = str(error)

    def __len__(self) -> int:
        return len(self.outcomes)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendDelay:
    """Whether the generator kept to the trace.

    Attributes:
        late: how many requests were sent later than allowed.
        share: how many that is of all.
        most_s: by how much the worst one was.
        is_valid: the run says something about the gateway, and not about its generator.
    """

    late: int
    share: float
    max_s: float
    is_valid: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A run in figures.

    Attributes:
        requests: how many were sent.
        seconds: for how long they were.
        answering_s: until the last answer in time, if that is longer.
        met, late, expired, rejected, failed: how many ended so; all but the met are violations.
        offered: requests per second.
        goodput: answers in time per second, until the last of them.
        latency_s: percentiles of the latency of those that were answered.
        mean_s: its mean.
        most_s: its maximum.
        rejection_s: percentiles of the time that rejections took.
        punctuality: of the generator.
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
        """Requests without an answer in time, whyever."""
        return self.requests - self.met

    @property
    def attainment(self) -> float:
        """Share of the requests that were answered in time."""
        return self.met / self.requests if self.requests else 0.0


def summarise(log: RequestLog, seconds: float, late_s: float, late_share: float) -> RunSummary:
    """The figures of a run.

    Args:
        log: all its requests.
        seconds: for how long they were sent.
        late_s: a request that is sent so much later than due is late.
        late_share: more late ones than this make the run invalid.
    """
    counts = Counter(log.outcomes)
    answered = _histogram(log, (Outcome.MET, Outcome.LATE))
    rejected = _histogram(log, (Outcome.REJECTED,))
    late = sum(delay > late_s for delay in log.delays)
    share = late / len(log) if len(log) else 0.0
    goodput_window_s = max(seconds, _last_met(log))
    return RunSummary(
        requests=len(log),
        seconds=seconds,
        goodput_window_s=goodput_window_s,
        met=counts[Outcome.MET],
        late=counts[Outcome.LATE],
        expired=counts[Outcome.EXPIRED],
        rejected=counts[Outcome.REJECTED],
        failed=counts[Outcome.FAILED],
        offered=len(log) / seconds,
        goodput=counts[Outcome.MET] / goodput_window_s,
        latency_s=_percentiles(answered),
        mean_s=answered.get_mean_value() / 1e6 if answered.total_count else math.nan,
        max_s=answered.get_max_value() / 1e6 if answered.total_count else math.nan,
        rejection_s=_percentiles(rejected),
        send_delay=SendDelay(
            late=late,
            share=share,
            max_s=max(log.delays, default=0.0),
            is_valid=share <= late_share,
        ),
        first_failure=log.first_failure,
    )


def _last_met(log: RequestLog) -> float:
    """When the last answer in time came; 0 without any."""
    rows = zip(log.due, log.latencies, log.outcomes, strict=True)
    ends = (due + latency for due, latency, outcome in rows if outcome is Outcome.MET)
    return max(ends, default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Second:
    """One second of a run, by when its requests were to be sent.

    Attributes:
        at: its number, from 0.
        offered: how many requests.
        met: how many were answered in time.
        latency_s: 50th and 99th percentile of those that were answered; none if nobody was.
    """

    at: int
    offered: int
    met: int
    latency_s: dict[float, float]


def by_second(log: RequestLog) -> list[Second]:
    """A run second by second."""
    if not len(log):
        return []
    rows: list[list[int]] = [[] for _ in range(int(max(log.due)) + 1)]
    for row, due in enumerate(log.due):
        rows[int(due)].append(row)
    return [_second(log, at, those) for at, those in enumerate(rows)]


def _second(log: RequestLog, at: int, rows: list[int]) -> Second:
    outcomes = [log.outcomes[row] for row in rows]
    latencies = sorted(
        log.latencies[row]
        for row, outcome in zip(rows, outcomes, strict=True)
        if outcome in (Outcome.MET, Outcome.LATE)
    )
    found = {p: latencies[_nearest(p, len(latencies))] for p in (50.0, 99.0)} if latencies else {}
    return Second(at=at, offered=len(rows), met=outcomes.count(Outcome.MET), latency_s=found)


def _nearest(percentile: float, count: int) -> int:
    """Index of the percentile in a sorted list, by nearest rank."""
    return max(0, math.ceil(percentile / 100 * count) - 1)


def _histogram(log: RequestLog, outcomes: Iterable[Outcome]) -> HdrHistogram:
    """Latencies in microseconds, to three digits."""
    wanted = frozenset(outcomes)
    histogram = HdrHistogram(_LOWEST_US, _HIGHEST_US, _DIGITS)
    for latency, outcome in zip(log.latencies, log.outcomes, strict=True):
        if outcome in wanted:
            histogram.record_value(min(_HIGHEST_US, max(_LOWEST_US, round(latency * 1e6))))
    return histogram


def _percentiles(histogram: HdrHistogram) -> dict[float, float]:
    if not histogram.total_count:
        return {}
    found = histogram.get_percentile_to_value_dict(list(PERCENTILES))
    return {percentile: value / 1e6 for percentile, value in found.items()}

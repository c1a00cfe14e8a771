"""What an engine is expected to cost on a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from synergai.domain import BatchTimes

if TYPE_CHECKING:
    from synergai.domain import Configuration, Session
    from synergai.profiles.dictionary import ProfileEntry


class Estimate(NamedTuple):
    """What an engine costs on a worker in a configuration.

    Attributes:
        setup_s: still to be paid before the first query.
        per_query_s: seconds per query, at the worker's observed pace.
        transfer_s: seconds per query on top, if its tensors travel with it.
        joules: energy per query; infinite if the profile does not know it.
        entry: the profile entry that this rests on.
        session: what has to be resident for it.
    """

    configuration: Configuration
    setup_s: float
    per_query_s: float
    transfer_s: float
    joules: float
    entry: ProfileEntry
    session: Session

    def at(self, pace: float, transfer_s: float) -> Estimate:
        """The same at another pace of the worker, and with another time for its transfers."""
        return Estimate(
            self.configuration,
            self.setup_s,
            pace / self.entry.qps,
            transfer_s,
            self.joules,
            self.entry,
            self.session,
        )

    @property
    def batch_times(self) -> BatchTimes | None:
        """How long batches take, at the worker's observed pace; None if there are none."""
        profiled = self.entry.batch_times
        if profiled is None:
            return None
        pace = self.per_query_s * self.entry.qps
        return BatchTimes(tuple(pace * seconds for seconds in profiled.by_size))

    def seconds(self, queries: int, *, with_tensors: bool = False) -> float:
        """Time for `queries` queries on an idle worker (thesis, Eq. 6.2)."""
        per_query_s = self.per_query_s + (self.transfer_s if with_tensors else 0.0)
        return self.setup_s + queries * per_query_s

    def dominates(self, other: Estimate) -> bool:
        """Whether `other` is no better for any number of queries."""
        return (
            self.setup_s <= other.setup_s
            and self.per_query_s <= other.per_query_s
            and self.per_query_s + self.transfer_s <= other.per_query_s + other.transfer_s
        )

"""Metrics of the comparison of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gateway.monitoring.collectors import SnapshotCollector, counter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.core import Metric

    from gateway.fleet.worker import ConnectedWorker
    from gateway.verification.verifier import Verifier


class VerificationState(NamedTuple):
    """Comparisons by outcome; compared and false answers by connected worker."""

    outcomes: dict[str, int]
    workers: dict[str, tuple[int, int]]


class VerificationCollector(SnapshotCollector[VerificationState]):
    """Collector of the outcomes of comparisons.

    Args:
        verifier: compares the answers.
        workers: returns the connected workers.
    """

    def __init__(
        self, verifier: Verifier, workers: Callable[[], Iterable[ConnectedWorker]]
    ) -> None:
        super().__init__()
        self._verifier = verifier
        self._workers = workers

    def read(self) -> VerificationState:
        """Return a snapshot."""
        standings = self._verifier.standings
        return VerificationState(
            dict(self._verifier.outcomes),
            {
                worker.id: (standing.compared, standing.false)
                for worker in self._workers()
                if (standing := standings.get(worker.id)) is not None
            },
        )

    def families(self, state: VerificationState) -> Iterator[Metric]:
        """Yield the families."""
        checks = counter("checks", "Comparisons of two workers' answers to one query.", "outcome")
        compared = counter(
            "worker_compared_answers", "Answers that were compared, with a clear outcome.", "worker"
        )
        false = counter("worker_false_answers", "Those of them that were false.", "worker")
        for outcome, count in state.outcomes.items():
            checks.add_metric([outcome], count)
        for worker_id, counts in state.workers.items():
            for family, count in zip((compared, false), counts, strict=True):
                family.add_metric([worker_id], count)
        yield from (checks, compared, false)

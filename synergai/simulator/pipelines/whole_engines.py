"""The scheduling core on the same streams: every place is a worker that holds whole engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.domain import Configuration, Job, JobId, WorkerClass
from synergai.profiles.dictionary import ProfileEntry
from synergai.simulator.audit import audit
from synergai.simulator.pipelines.widths import PLACES
from synergai.simulator.simulation import scheduling_settings, simulate
from synergai.simulator.workload import Profile, Workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.domain import EngineName
    from synergai.simulator.pipelines.streams import BatchQuery
    from synergai.simulator.pipelines.widths import Widths

_PLACE: Final = WorkerClass("place")


def as_workload(
    queries: Sequence[BatchQuery], tables: Mapping[EngineName, Widths], seed: int
) -> Workload:
    """Return a stream as jobs, whose queries are the samples of a batch; sessions are resident."""
    profile = Profile(
        ProfileEntry(
            engine=engine,
            worker_class=_PLACE,
            configuration=Configuration(threads=1),
            qps=1.0 / table.whole_s,
        )
        for engine, table in tables.items()
    )
    jobs = tuple(
        Job(
            id=JobId(f"{query.number:03d}"),
            engine=query.engine,
            queries=query.batch,
            arrival=query.arrival,
            deadline=query.deadline,
            priority=int(query.high),
        )
        for query in queries
    )
    return Workload(
        experiment="accordion",
        seed=seed,
        profile=profile,
        sessions="prewarmed",
        t_pre="fixed",
        jobs=jobs,
        factors={(job.id, _PLACE): 1.0 for job in jobs},
        fleet={_PLACE: PLACES},
    )


def run_whole_engines(workload: Workload) -> dict[int, float]:
    """Run a stream under the malleable policy and return when each query ended, by number."""
    run = simulate(workload, scheduling_settings("malleable"))
    audit(run)
    return {int(job_id): at for job_id, at in run.finished.items()}

"""Streams of Accordion's simulation on a gateway: ``python -m benchmarks.shared_stages [STAGES]``.

A query of a stream is a job, and a sample of its batch one of the job's queries. Eight emulated
workers have the two engines whole, or each of them one of so many stages, which its workers share.
How many of them run a job, in each of its stages, is up to the gateway at any time: that is its
width. Streams, deadlines and times are those of ``synergai simulate pipelines accordion``, all
times so many times as long. Violations and the mean latency in the time of the simulation stand
beside those of the simulated schedulers on the same streams.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import statistics
import tempfile
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.emulated_stages import write_stages
from demo.local_fleet import LocalFleet
from profiler.simulator.pipelines.comparison import (
    MALLEABLE,
    as_workload,
    run_schedulers,
    run_whole_engines,
)
from profiler.simulator.pipelines.places import (
    MEASURED_HEADS,
    PLACES,
    SLOS,
    STREAMS,
    Widths,
    draw_stream,
    measured_widths,
)
from profiler.simulator.simulation import LATE_S
from synergai import Client
from synergai.cli.output import print_table
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.names import stage_name
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.store import DictionaryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from profiler.simulator.pipelines.places import BatchQuery
    from synergai import JobHandle

LIVE: Final = "live"
CLASS: Final = WorkerClass("place")
CONFIGURATION: Final = Configuration(1)
TENSOR_BYTES: Final = 1_000


class Figures(NamedTuple):
    """What became of the queries of a stream.

    Attributes:
        late: share of them that ended after their deadlines.
        mean_s: time from arrival to end, as in the simulation.
    """

    late: float
    mean_s: float


def main() -> None:
    """Run streams, and print a table for each SLO."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stages", type=int, nargs="?", default=1, choices=(1, 2, 4, 8))
    parser.add_argument("--streams", default=",".join(STREAMS), help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=15.0, help="times are so many times as long")
    parser.add_argument("--slos", default=",".join(SLOS), help="default: all")
    options = parser.parse_args()
    streams: list[str] = options.streams.split(",")
    found: dict[tuple[str, str], dict[str, Figures]] = {}
    for slo in options.slos.split(","):
        with (
            tempfile.TemporaryDirectory(prefix="synergai-") as folder,
            LocalFleet(Path(folder) / "fleet") as fleet,
        ):
            start(fleet, options.stages, options.scale)
            runs = [
                compare(fleet, (stream, slo, options.seed), options.scale) for stream in streams
            ]
        found |= {(slo, stream): run for stream, run in zip(streams, runs, strict=True)}
        found[slo, "mean"] = {
            name: Figures(
                statistics.fmean(run[name].late for run in runs),
                statistics.fmean(run[name].mean_s for run in runs),
            )
            for name in runs[0]
        }
    names = [*found[next(iter(found))]]
    late = [
        [*run, *(f"{100 * figures[n].late:.1f}" for n in names)] for run, figures in found.items()
    ]
    print_table(("late (%)", "stream", *names), late)
    times = [
        [*run, *(f"{1e3 * figures[n].mean_s:.0f}" for n in names)] for run, figures in found.items()
    ]
    print_table(("mean latency (ms)", "stream", *names), times)


def stages_of(count: int) -> dict[EngineName, list[tuple[tuple[int, int], float]]]:
    """Return the stages of each engine and what a sample takes there.

    The slowest one takes as little time as it can.
    """
    heads: dict[EngineName, list[float]] = defaultdict(lambda: [0.0])
    with MEASURED_HEADS.open() as file:
        for row in csv.DictReader(file):
            heads[EngineName(row["engine"])].append(float(row["head_ms"]) / 1000)
    found = {}
    for engine, table in measured_widths().items():
        ends, limit_s = heads[engine], table.slowest_s[count - 1] + 1e-9
        cuts = [0]
        while cuts[-1] < len(ends) - 1:
            reached = (n for n in range(len(ends)) if ends[n] - ends[cuts[-1]] <= limit_s)
            cuts.append(max(reached))
        found[engine] = [
            ((number, number + 1), ends[last] - ends[first])
            for number, (first, last) in enumerate(pairwise(cuts))
        ]
    return found


def start(fleet: LocalFleet, count: int, scale: float) -> None:
    """Start a fleet with the engines in so many stages."""
    folder, entries = fleet.directory.parent, []
    for engine, stages in stages_of(count).items():
        end = len(stages)
        seconds = {stage: [scale * stage_s] for stage, stage_s in stages}
        seconds.setdefault((0, end), [scale * sum(stage_s for _, stage_s in stages)])
        for place in range(PLACES):
            here = [stages[place % end][0]]
            models = folder / f"place-{place}"
            write_stages(models, engine, [TENSOR_BYTES] * (end + 1), seconds, here)
        entries += [
            ProfileEntry(
                engine=engine if end == 1 else stage_name(engine, *stage),
                worker_class=CLASS,
                configuration=CONFIGURATION,
                qps=1 / (scale * stage_s),
            )
            for stage, stage_s in stages
        ]
    with DictionaryStore(folder / "dictionary.db") as store:
        store.put_all(entries)
    fleet.start_gateway(["--dictionary", str(folder / "dictionary.db")])
    for place in range(PLACES):
        models = folder / f"place-{place}"
        options = [
            "--threads",
            "1",
            "--pin",
            ",".join(f"{each.name}={CONFIGURATION}" for each in models.iterdir()),
        ]
        fleet.start_agent(models.name, models=models, worker_class=CLASS, options=options)
    fleet.wait_for_workers(PLACES)


def compare(fleet: LocalFleet, drawn: tuple[str, str, int], scale: float) -> dict[str, Figures]:
    """Run a stream live and simulated, given its name, SLO and seed; return the figures of both."""
    queries = draw_stream(*drawn, measured_widths())
    figures = {LIVE: asyncio.run(run(fleet, queries, scale)), **simulate(drawn, queries, scale)}
    late = ", ".join(f"{name} {100 * each.late:.1f} %" for name, each in figures.items())
    print(f"{drawn[1]}, {drawn[0]}: {late}", flush=True)
    return figures


async def run(fleet: LocalFleet, queries: Sequence[BatchQuery], scale: float) -> Figures:
    """Submit the queries of a stream when they are due; return what became of them."""
    loop = asyncio.get_running_loop()
    handles: list[JobHandle] = []
    async with Client(fleet.address) as client:
        begun = loop.time()
        for query in queries:
            await asyncio.sleep(begun + scale * query.arrival - loop.time())
            handle = await client.submit(
                query.engine,
                queries=query.batch,
                qos=scale * (query.deadline - query.arrival),
                priority=int(query.high),
            )
            handles.append(handle)
        statuses = [await handle.wait() for handle in handles]
    taken = []
    for status in statuses:
        status.raise_unless_succeeded()
        assert status.finished_at is not None
        taken.append((status.finished_at - status.submitted_at).total_seconds() / scale)
    return Figures(statistics.fmean(each.violated for each in statuses), statistics.fmean(taken))


def simulate(
    run: tuple[str, str, int], queries: Sequence[BatchQuery], scale: float
) -> dict[str, Figures]:
    """Return the figures of the simulated schedulers.

    Times are so many times as long for the policy, which has time constants of its own.
    """
    tables = measured_widths()
    found = {
        each.scheduler: Figures(each.violations / each.queries, each.mean_s)
        for each in run_schedulers(run, queries, tables)
    }
    longer = [
        replace(each, arrival=scale * each.arrival, deadline=scale * each.deadline)
        for each in queries
    ]
    slower = {
        engine: Widths(scale * each.whole_s, tuple(scale * width for width in each.slowest_s))
        for engine, each in tables.items()
    }
    ended = run_whole_engines(as_workload(longer, slower, run[2]))
    found[MALLEABLE] = Figures(
        statistics.fmean(ended[each.number] > each.deadline + LATE_S for each in longer),
        statistics.fmean(ended[each.number] - each.arrival for each in longer) / scale,
    )
    return found


if __name__ == "__main__":
    main()

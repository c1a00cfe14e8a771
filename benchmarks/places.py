"""Two jobs on the places of one machine: ``python -m benchmarks.places [CASES]``.

A gateway plans pairs of drawn jobs for an agent with two places, each with half of the cores. The
same pairs run without a gateway: at once, each on a place of its own, and one after the other in
both orders, each on both places. The better one has the lower mean completion time.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

import synergai
from demo.local_fleet import LocalFleet
from profiler.installation import stage_engine, write_definition
from profiler.measuring.host_client import HostClient
from profiler.zoo.recipes import build
from synergai.domain import Configuration, EngineName, Session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.jobs import JobStatus

PLACES: Final = 2
ENGINES: Final = ("onnx_mobilenet_op11", "onnx_ssd_op11", "streaming")
BOTH: Final = "both"
CHUNK: Final = 4
"""Queries that a place takes together."""


class Case(NamedTuple):
    """Two jobs: their engines and queries."""

    engines: tuple[str, str]
    queries: tuple[int, int]


class Bench:
    """An engine host of each engine on each place.

    Attributes:
        seconds: of a query of each engine alone.
    """

    def __init__(self, models: Path, context: ExitStack) -> None:
        self._hosts = {
            (engine, place): context.enter_context(
                HostClient(models, Session(EngineName(engine), Configuration(1)), cores=[place])
            )
            for engine in ENGINES
            for place in range(PLACES)
        }
        self.seconds: dict[str, float] = {}
        for engine in ENGINES:
            self._run(engine, 0, 5)
            self.seconds[engine] = self._run(engine, 0, 30) / 30

    def at_once(self, case: Case) -> float:
        """Run both jobs at once, each on its place; return the mean completion time."""
        ended = [0.0, 0.0]

        def run(job: int) -> None:
            ended[job] = self._run(case.engines[job], job, case.queries[job])

        threads = [threading.Thread(target=run, args=(job,)) for job in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return float(np.mean(ended))

    def in_turn(self, case: Case, order: Sequence[int]) -> float:
        """Run one job after the other, each on all places; return the mean completion time."""
        begin = time.perf_counter()
        ended = []
        for job in order:
            self._run_spread(case.engines[job], case.queries[job])
            ended.append(time.perf_counter() - begin)
        return float(np.mean(ended))

    def _run(self, engine: str, place: int, queries: int) -> float:
        begin = time.perf_counter()
        self._hosts[engine, place].run_samples(0, queries)
        return time.perf_counter() - begin

    def _run_spread(self, engine: str, queries: int) -> None:
        firsts = iter(range(0, queries, CHUNK))
        lock = threading.Lock()

        def run(place: int) -> None:
            while True:
                with lock:
                    first = next(firsts, None)
                if first is None:
                    return
                self._hosts[engine, place].run_samples(first, min(CHUNK, queries - first))

        threads = [threading.Thread(target=run, args=(place,)) for place in range(PLACES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main() -> None:
    """Compare what the gateway plans with both alternatives."""
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary, ExitStack() as context:
        folder = Path(temporary)
        models = folder / "models"
        for engine in ENGINES[:-1]:
            build(engine, models, lambda _: None)
        build_streaming(models)
        fleet = context.enter_context(LocalFleet(folder / "fleet"))
        fleet.start_gateway()
        fleet.start_agent("box", models=models, options=["--places", str(PLACES)])
        fleet.wait_for_workers(PLACES)
        client = context.enter_context(synergai.SyncClient(fleet.address))
        bench = Bench(models, context)
        for engine, seconds in bench.seconds.items():
            print(f"{engine}: {1e3 * seconds:.1f} ms alone on a place")
        draw = random.Random(5)
        learn(client, bench, draw)
        better = 0
        for number in range(cases):
            case = draw_case(bench, draw)
            planned_s, is_at_once = run_planned(client, case)
            at_once_s = bench.at_once(case)
            in_turn_s = min(bench.in_turn(case, order) for order in ((0, 1), (1, 0)))
            wins = at_once_s < in_turn_s
            better += wins == is_at_once
            print(
                f"{number + 1:3} {case.engines[0]} x {case.queries[0]}, {case.engines[1]} x "
                f"{case.queries[1]}: at once {at_once_s:.2f} s, in turn {in_turn_s:.2f} s; "
                f"planned {'at once' if is_at_once else 'in turn'}, {planned_s:.2f} s"
            )
    print(f"the better one was planned in {better} of {cases} cases")


def build_streaming(models: Path) -> None:
    """Add an engine that reads and writes more memory than caches hold."""
    elements = 4 << 20
    nodes, previous = [], "start"
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [elements])
    nodes.append(helper.make_node("Expand", ["x", "shape"], ["start"]))
    for number in range(6):
        nodes.append(helper.make_node("Neg" if number % 2 else "Abs", [previous], [f"t{number}"]))
        previous = f"t{number}"
    nodes.append(helper.make_node("ReduceMax", [previous], ["y"], axes=[0], keepdims=1))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "streaming", ends[:1], ends[1:], [shape])
    opsets = [helper.make_opsetid("", 13)]
    with stage_engine(models, ENGINES[-1]) as staged:
        onnx.save(
            helper.make_model(graph, opset_imports=opsets, ir_version=8), staged / "model.onnx"
        )
        write_definition(staged, {"file": "model.onnx"})


def draw_case(bench: Bench, draw: random.Random) -> Case:
    """Return two jobs of one or two engines, of 0.8 to 3 s on one place."""
    engines = draw.choice(ENGINES), draw.choice(ENGINES)
    first, second = (int(draw.uniform(0.8, 3) / bench.seconds[each]) for each in engines)
    return Case(engines, (first, second))


def learn(client: synergai.SyncClient, bench: Bench, draw: random.Random) -> None:
    """Let the gateway see each pair of engines side by side, as in service."""
    for engine in ENGINES:
        client.submit(engine, queries=20).wait().raise_unless_succeeded()
    for first in ENGINES:
        for second in ENGINES:
            run_planned(client, Case((first, second), draw_case(bench, draw).queries))


def run_planned(client: synergai.SyncClient, case: Case) -> tuple[float, bool]:
    """Submit two jobs; return their mean completion time, and whether each kept to a place."""
    jobs = [
        client.submit(engine, queries=queries)
        for engine, queries in zip(case.engines, case.queries, strict=True)
    ]
    statuses = [job.wait() for job in jobs]
    for status in statuses:
        status.raise_unless_succeeded()
    taken = [
        (each.finished_at - each.submitted_at).total_seconds()
        for each in statuses
        if each.finished_at is not None
    ]
    places = {main_place(each) for each in statuses}
    return float(np.mean(taken)), len(places) == 2 and BOTH not in places


def main_place(status: JobStatus) -> str:
    """Return the place that ran most of a job, or `BOTH` if they shared it."""
    counts: dict[str, int] = {}
    for each in status.executions:
        counts[each.worker_id] = counts.get(each.worker_id, 0) + each.count
    most = max(counts, key=counts.__getitem__)
    return most if counts[most] > 0.8 * sum(counts.values()) else BOTH


if __name__ == "__main__":
    main()

"""Jobs over stages under interference: ``python -m benchmarks.moving_chains [SCENARIOS]``.

Two workers have several cuts of an engine. In each scenario, other work slows one of them down, and
the rate of a long job is measured from two seconds after that. Four fleets run at the same time:
in one, the gateway chooses among the cuts. In the others, a client moves the job. One client knows
the best cut from the start. The other two use ODIN and least-loaded scheduling: once the time of a
stage has changed by more than 10 % three times in a row, they try cuts with real queries.
All stages are loaded, so moves cost nothing but the queries on their way. Engines take their time
without computing.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.emulated_stages import slow_down, write_stages
from demo.local_fleet import LocalFleet, reserved_port
from synergai import SyncClient
from synergai.core.routes.links import Hop, Link, Links
from synergai.core.routes.planner import ROUTE_PLANNERS, run_search
from synergai.core.routes.problem import Chain, Leg, Route, RouteProblem, RouteTimes, RouteWorker
from synergai.domain import EngineName
from synergai.names import stage_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from synergai.client.sync import SyncJobHandle

BLOCKS: Final = 12
BLOCK_S: Final = 0.008
CUTS: Final = (4, 5, 6, 7, 8)
WORKERS: Final = ("left", "right")
FACTORS: Final = (1.5, 2.0)
TENSOR_BYTES: Final = 100_000
QUERIES: Final = 1_000_000
SETTLED_S: Final = 2.0
MEASURED_S: Final = 5.0
PAUSE_S: Final = 4.0
LOOK_S: Final = 0.25
TRIAL_S: Final = 0.4
CHANGE: Final = 0.1
LOOKS: Final = 3
EVEN: Final = {"left": 1.0, "right": 1.0}


def stage_seconds(cut: int, slowdowns: Mapping[str, float]) -> tuple[float, float]:
    """Return the seconds of both stages."""
    left, right = (slowdowns[worker] * BLOCK_S for worker in WORKERS)
    return left * cut, right * (BLOCKS - cut)


def best_cut(slowdowns: Mapping[str, float]) -> int:
    """Return the cut whose slower stage is the fastest."""
    return min(CUTS, key=lambda cut: max(stage_seconds(cut, slowdowns)))


class Figures(NamedTuple):
    """What the workers have done so far."""

    busy_s: tuple[float, ...]
    queries: tuple[float, ...]

    def stages(self, before: Figures) -> tuple[float, ...]:
        """Return the mean time of each stage since then; 0 without queries."""
        spent = zip(self.busy_s, before.busy_s, self.queries, before.queries, strict=True)
        return tuple((s - s0) / (n - n0) if n > n0 else 0.0 for s, s0, n, n0 in spent)


class Pipeline:
    """A fleet that runs a job in the cuts of one engine; the gateway chooses."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._fleet = stack.enter_context(LocalFleet(folder / "fleet"))
        self._fleet.start_gateway()
        for place, name in enumerate(WORKERS):
            for engine, cuts in self.engines().items():
                ends = [(0, cut) if place == 0 else (cut, BLOCKS) for cut in cuts]
                all_s = {(0, BLOCKS): [BLOCKS * BLOCK_S]}
                all_s |= {(first, last): [BLOCK_S * (last - first)] for first, last in ends}
                sizes = [TENSOR_BYTES] * (BLOCKS + 1)
                write_stages(folder / name, engine, sizes, all_s, ends)
            port = stack.enter_context(reserved_port())
            options = ["--threads", "1", "--peer-port", str(port)]
            self._fleet.start_agent(name, models=folder / name, options=options)
        self._fleet.wait_for_workers(len(WORKERS))
        self._client = stack.enter_context(SyncClient(self._fleet.address))
        for engine, cuts in self.engines().items():
            for cut in cuts:
                self._client.load(stage_name(engine, 0, cut))
                self._client.load(stage_name(engine, cut, BLOCKS))
        self.job = self._submit(next(iter(self.engines())))

    def engines(self) -> dict[str, tuple[int, ...]]:
        """Return the cuts by engine."""
        return {"blocks": CUTS}

    def slow_down(self, slowdowns: Mapping[str, float]) -> None:
        """Slow the workers down from now on."""
        for worker, factor in slowdowns.items():
            slow_down(self._folder / worker, factor)

    def figures(self) -> Figures:
        """Return what the workers have done so far."""
        with urllib.request.urlopen(f"http://{self._fleet.http_address}/metrics") as response:
            text = response.read().decode()

        def of_workers(metric: str) -> tuple[float, ...]:
            found = dict(re.findall(rf'^{metric}{{worker="(.*)"}} (.*)$', text, re.MULTILINE))
            return tuple(float(found[worker]) for worker in WORKERS)

        return Figures(
            of_workers("synergai_worker_busy_seconds_total"),
            of_workers("synergai_worker_queries_total"),
        )

    def close(self) -> None:
        """End the job."""
        self.job.cancel()

    def _submit(self, engine: str) -> SyncJobHandle:
        return self._client.submit(engine, queries=QUERIES)


class MovedPipeline(Pipeline):
    """A fleet with an engine for each cut; a client that knows the best one moves the job."""

    def engines(self) -> dict[str, tuple[int, ...]]:
        return {f"cut{cut}": (cut,) for cut in (best_cut(EVEN), *CUTS)}

    def slow_down(self, slowdowns: Mapping[str, float]) -> None:
        super().slow_down(slowdowns)
        self.move(best_cut(slowdowns))

    def move(self, cut: int) -> None:
        """Run the job in other stages."""
        former, self.job = self.job, self._submit(f"cut{cut}")
        former.cancel()


class SearchedPipeline(MovedPipeline):
    """The same, but a planner searches by trials once the times of stages have changed."""

    def __init__(self, folder: Path, stack: ExitStack, planner: str) -> None:
        super().__init__(folder, stack)
        self._planner = ROUTE_PLANNERS.get(planner)
        self._cut = best_cut(EVEN)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def slow_down(self, slowdowns: Mapping[str, float]) -> None:
        Pipeline.slow_down(self, slowdowns)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        super().close()

    def _watch(self) -> None:
        before, changes = self.figures(), 0
        reference: tuple[float, ...] = stage_seconds(self._cut, EVEN)
        while not self._ended.wait(LOOK_S):
            figures = self.figures()
            now = figures.stages(before)
            before = figures
            changed = any(
                seen and abs(seen - known) > CHANGE * known
                for seen, known in zip(now, reference, strict=True)
            )
            changes = changes + 1 if changed else 0
            if changes >= LOOKS:
                reference = self._balance()
                before, changes = self.figures(), 0

    def _balance(self) -> tuple[float, ...]:
        """Search; return the times of the stages of the route."""
        tried: dict[int, RouteTimes] = {}

        def trial(route: Route) -> RouteTimes:
            self._cut = route.legs[0].last
            self.move(self._cut)
            time.sleep(TRIAL_S / 2)  # until queries have reached the last stage
            before = self.figures()
            time.sleep(TRIAL_S)
            tried[self._cut] = RouteTimes(self.figures().stages(before), (Hop(0.0, 0.0),) * 3)
            return tried[self._cut]

        route, _ = run_search(self._planner(self._problem()), trial)
        if route is not None and self._cut != route.legs[0].last:
            self._cut = route.legs[0].last
            self.move(self._cut)
        return tried[self._cut].stages

    def _problem(self) -> RouteProblem:
        zeros = (0,) * (BLOCKS + 1)
        chain = Chain(
            engine=EngineName("blocks"), sizes=zeros, weights_before=zeros, weights_after=zeros
        )
        possible = {(0, cut) for cut in CUTS}, {(cut, BLOCKS) for cut in CUTS}
        workers = (
            RouteWorker(
                name,
                tuple(
                    tuple(
                        BLOCK_S * (last - first) if (first, last) in stages else math.inf
                        for last in range(BLOCKS + 1)
                    )
                    for first in range(BLOCKS + 1)
                ),
            )
            for name, stages in zip(WORKERS, possible, strict=True)
        )
        ends = pairwise((0, self._cut, BLOCKS))
        current = Route(tuple(Leg(name, *stage) for name, stage in zip(WORKERS, ends, strict=True)))
        return RouteProblem(
            chain=chain,
            workers=tuple(workers),
            links=Links({}, Link(math.inf)),
            queries=QUERIES,
            current=current,
        )


def main() -> None:
    """Run drawn scenarios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenarios", type=int, nargs="?", default=12)
    count: int = parser.parse_args().scenarios
    draw = random.Random(28)
    kept: dict[str, list[float]] = {"gateway": [], "odin": [], "lls": []}
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        pipelines = {"gateway": Pipeline(folder / "gateway", stack)}
        for name in ("odin", "lls"):
            pipelines[name] = SearchedPipeline(folder / name, stack, name)
        pipelines["clairvoyant"] = MovedPipeline(folder / "clairvoyant", stack)
        for pipeline in pipelines.values():
            stack.callback(pipeline.close)
        for number in range(1, count + 1):
            slowdowns = EVEN | {draw.choice(WORKERS): draw.choice(FACTORS)}
            found = rates(pipelines, slowdowns)
            shares = {name: found[name] / found["clairvoyant"] for name in kept}
            for name, share in shares.items():
                kept[name].append(share)
            text = ", ".join(f"{name} {share:6.1%}" for name, share in shares.items())
            where = " and ".join(f"{each} {factor:g} x" for each, factor in slowdowns.items())
            print(f"{number:2}: {where}: {found['clairvoyant']:.2f}/s; {text}", flush=True)
    for name, found_shares in kept.items():
        print(
            f"{name}: mean {mean(found_shares):.1%} of the best cut, least {min(found_shares):.1%}"
        )


def rates(pipelines: Mapping[str, Pipeline], slowdowns: Mapping[str, float]) -> dict[str, float]:
    """Return the rates of fleets under an interference, which ends then."""
    for each in pipelines.values():
        each.slow_down(slowdowns)
    time.sleep(SETTLED_S)
    begin = {name: (time.monotonic(), each.figures()) for name, each in pipelines.items()}
    time.sleep(MEASURED_S)
    found = {}
    for name, each in pipelines.items():
        since, before = begin[name]
        done = each.figures().queries[-1] - before.queries[-1]
        found[name] = done / (time.monotonic() - since)
    for each in pipelines.values():
        each.slow_down(EVEN)
    time.sleep(PAUSE_S)
    return found


if __name__ == "__main__":
    main()

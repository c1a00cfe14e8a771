"""The chosen stages of drawn fleets against the alternatives: ``python -m benchmarks.live_grid``.

Takes the number of cells as an argument. As root: the agents have network namespaces. A cell is one
of the networks that were measured, an edge worker that is 1 to 8 times as slow as the cloud worker,
a link to the cloud of 5 to 1000 Mbit/s, inputs as 32-bit floats, bytes or JPEG, memory that may be
too little for the whole engine on either worker, and for each cut the worker that comes first.
Engines take their time without computing,
and all times and links of a cell are scaled alike, so that the best alternative takes 0.15 s for
each query of a job.

Each alternative is an engine of its own: whole on one worker or both, or in two stages. The engine
that all of these are candidates for runs last: the gateway chooses. Alternatives that are expected
to take much longer than the best one are left out.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, permutations, repeat
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from benchmarks.drawn_routes import MBIT
from benchmarks.emulated_stages import INPUT, write_stages
from benchmarks.namespaces import Namespaces
from benchmarks.splits import BYTES_PER_VALUE, FORMS, MBIT_S, SLOWNESS
from demo.local_fleet import LocalFleet, reserved_port
from profiler.simulator.pipelines.measured_chains import measured_chains
from synergai import SyncClient
from synergai.core.routes.links import GATEWAY, Link, Links
from synergai.core.routes.problem import HOST_BYTES, SESSION_PER_WEIGHT, Leg
from synergai.core.routes.ranking import RankedChain, rank_chains
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.names import stage_name
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.store import DictionaryStore

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from synergai.jobs import JobStatus

QUERY_S: Final = 0.15
QUERIES: Final = 25
SHARES: Final = (0.25, 0.5, 0.75)
"""Shares of the work at which the engine is cut."""
WORTH: Final = 1.4
"""Alternatives that are expected to take longer than so many times the best one are left out."""
NEAR: Final = 1.05
PAYLOAD: Final = 1448 / 1514
"""Share of an Ethernet frame that is payload of TCP. The rate of a link counts whole frames."""
EDGE, CLOUD = WORKERS = ("edge", "cloud")
CHOSEN: Final = "chosen"
CHAINS: Final = measured_chains()
END: Final = len(SHARES) + 1


class Cell(NamedTuple):
    """A drawn fleet and engine.

    Attributes:
        sizes: bytes of the tensors of a query by place.
        paces: seconds of a query by leg, as far as the stage fits on the worker.
        bytes_per_s: of the link to the cloud.
    """

    text: str
    sizes: tuple[int, ...]
    paces: dict[Leg, float]
    bytes_per_s: float

    def expected(self, legs: Collection[Leg]) -> RankedChain:
        """Return the chain that some legs make up."""
        slow = Link(self.bytes_per_s, 0.0005)
        links = Links(
            {pair: slow for pair in permutations((GATEWAY, *WORKERS), 2) if CLOUD in pair},
            default=Link(1e9, 0.0005),
        )
        sizes = dict(enumerate(self.sizes))
        paces = {leg: self.paces[leg] for leg in legs}
        return rank_chains(paces, sizes, links, queries=QUERIES)[0]

    def scaled(self, factor: float) -> Cell:
        """Return the cell with times so many times as long."""
        paces = {leg: factor * pace_s for leg, pace_s in self.paces.items()}
        return self._replace(paces=paces, bytes_per_s=self.bytes_per_s / factor)

    def alternatives(self) -> dict[str, list[Leg]]:
        """Return the legs of all alternatives."""
        found = {}
        for cut in range(1, END):
            for one, two in (WORKERS, WORKERS[::-1]):
                found[f"cut{cut}-{one}"] = [Leg(one, 0, cut), Leg(two, cut, END)]
        found |= {each: [Leg(each, 0, END)] for each in WORKERS}
        found["both"] = [Leg(each, 0, END) for each in WORKERS]
        return {name: legs for name, legs in found.items() if {*legs} <= self.paces.keys()}


def draw_cell(draw: random.Random) -> Cell:
    """Draw a cell in which the engine can run."""
    network, form = draw.choice(list(CHAINS)), draw.choice(list(FORMS))
    slowness, mbit_s = draw.choice(SLOWNESS), draw.choice(MBIT_S)
    chain, seconds = CHAINS[network]
    whole_s = seconds[0][-1]
    cuts = [
        min(range(1, chain.end), key=lambda place: abs(seconds[0][place] / whole_s - share))
        for share in SHARES
    ]
    places = [0, *cuts, chain.end]
    whole_bytes = HOST_BYTES + SESSION_PER_WEIGHT * chain.weights(0, chain.end)
    text = f"{network}, {form}, edge {slowness} x, {mbit_s} Mbit/s"
    paces = {}
    first_of = {cut: draw.choice(WORKERS) for cut in range(1, END)}
    for worker, slower in ((EDGE, slowness), (CLOUD, 1)):
        budget = float("inf")
        if draw.random() < 0.5:
            budget = draw.uniform(0.4, 1.2) * whole_bytes
            text += f", {budget / 1e6:.0f} MB at the {worker}"
        stages = [(0, END)]
        stages += ((0, cut) if first_of[cut] == worker else (cut, END) for cut in first_of)
        for first, last in stages:
            ends = places[first], places[last]
            if HOST_BYTES + SESSION_PER_WEIGHT * chain.weights(*ends) <= budget:
                paces[Leg(worker, first, last)] = slower * seconds[ends[0]][ends[1]]
    values = chain.sizes[0] / BYTES_PER_VALUE[network]
    sizes = (round(values * FORMS[form]), *(chain.sizes[place] for place in places[1:]))
    cell = Cell(text, sizes, paces, mbit_s * MBIT)
    expected = [cell.expected(legs).interval_s for legs in cell.alternatives().values()]
    return cell.scaled(QUERY_S / min(expected)) if expected else draw_cell(draw)


def main() -> None:
    """Run drawn cells."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", type=int, nargs="?", default=24)
    count: int = parser.parse_args().cells
    draw = random.Random(28)
    ratios, reached = [], []
    for number in range(1, count + 1):
        ratio, of_chains = run(number, draw_cell(draw))
        ratios.append(ratio)
        reached += of_chains
    within = sum(ratio <= NEAR for ratio in ratios)
    print(
        f"at most {NEAR} of the best alternative in {within} of {count} cells; "
        f"mean {mean(ratios):.3f}, most {max(ratios):.3f}"
    )
    if reached:
        print(f"chains reach {mean(reached):.1%} of what is predicted, at least {min(reached):.1%}")


def run(number: int, cell: Cell) -> tuple[float, list[float]]:
    """Return the time of the choice over the least one, and what chains reach of predictions."""
    expected = {name: cell.expected(legs) for name, legs in cell.alternatives().items()}
    names = [name for name, each in expected.items() if each.interval_s <= WORTH * QUERY_S]
    print(f"{number:2}: {cell.text}", flush=True)
    with tempfile.TemporaryDirectory(prefix="synergai-") as temporary, ExitStack() as stack:
        client = stack.enter_context(serve(cell, names, Path(temporary), stack))
        found = {name: submit(client, cell, name) for name in names}
        chosen = submit(client, cell, CHOSEN)
        best = min(found, key=lambda name: seconds(found[name]))
        if seconds(chosen) > NEAR * seconds(found[best]):  # maybe disturbed
            found[best] = min(found[best], submit(client, cell, best), key=seconds)
            chosen = min(chosen, submit(client, cell, CHOSEN), key=seconds)
    best = min(found, key=lambda name: seconds(found[name]))
    reached = []
    for name, status in found.items():
        if len(expected[name].stages) > 1:
            reached.append(expected[name].seconds(QUERIES) / seconds(status))
    ratio = seconds(chosen) / seconds(found[best])
    taken = ", ".join(f"{name} {seconds(status):.2f} s" for name, status in found.items())
    where = " ".join(chosen.stages) or "whole"
    print(f"    {taken}; chosen {seconds(chosen):.2f} s, {where}: {ratio:.3f}", flush=True)
    if ratio > NEAR:
        print(f"    {chosen.choice}", flush=True)
    return ratio, reached


def serve(cell: Cell, names: list[str], folder: Path, stack: ExitStack) -> SyncClient:
    """Start a fleet with an engine for each alternative, and one for all."""
    alternatives = cell.alternatives()
    engines: Mapping[str, Collection[Leg]] = {name: alternatives[name] for name in names}
    slower = {(leg.first, leg.last): [1.0, 1.0] for leg in cell.paces}
    for leg, pace_s in cell.paces.items():
        slower[leg.first, leg.last][WORKERS.index(leg.worker)] = pace_s
    slower.setdefault((0, END), [1.0, 1.0])
    for engine, legs in {**engines, CHOSEN: cell.paces}.items():
        for worker in WORKERS:
            stages = [(leg.first, leg.last) for leg in legs if leg.worker == worker]
            # A worker is known by its number of threads: all have the same file of an engine.
            write_stages(folder / worker, engine, cell.sizes, slower, stages)
    with DictionaryStore(folder / "dictionary.db") as store:
        store.put_all(
            profile_of(engine, leg, cell.paces[leg])
            for engine, legs in {**engines, CHOSEN: cell.paces}.items()
            for leg in legs
        )
    network = stack.enter_context(Namespaces(WORKERS, subnet=1))
    network.limit(CLOUD, cell.bytes_per_s / PAYLOAD / MBIT)
    fleet = stack.enter_context(LocalFleet(folder / "fleet"))
    hub = fleet.hub_address.replace("127.0.0.1", network.gateway)
    dictionary = str(folder / "dictionary.db")
    fleet.start_gateway(["--hub", hub, "--insecure", "--dictionary", dictionary])
    used = [worker for worker in WORKERS if any(leg.worker == worker for leg in cell.paces)]
    for worker in used:
        port = stack.enter_context(reserved_port())
        options = ["--gateway", hub, "--peer-port", str(port)]
        options += ["--threads", str(1 + WORKERS.index(worker))]
        fleet.start_agent(
            worker,
            models=folder / worker,
            worker_class=worker,
            options=options,
            prefix=network.prefix(worker),
        )
    fleet.wait_for_workers(len(used))
    return SyncClient(fleet.address)


def profile_of(engine: str, leg: Leg, pace_s: float) -> ProfileEntry:
    """Return the entry of a stage in the dictionary."""
    is_whole = (leg.first, leg.last) == (0, END)
    return ProfileEntry(
        engine=EngineName(engine) if is_whole else stage_name(engine, leg.first, leg.last),
        worker_class=WorkerClass(leg.worker),
        configuration=Configuration(1 + WORKERS.index(leg.worker)),
        qps=1 / pace_s,
    )


def submit(client: SyncClient, cell: Cell, engine: str) -> JobStatus:
    """Run short jobs, which teach links, and one that counts; return its status while it ran."""
    tensor = {INPUT: np.zeros((1, max(1, cell.sizes[0] // 4)), np.float32)}
    for _ in range(2):
        client.submit(engine, inputs=islice(repeat(tensor), 3)).wait().raise_unless_succeeded()
        time.sleep(0.5)  # so that the next job chooses again
    job = client.submit(engine, inputs=islice(repeat(tensor), QUERIES))
    time.sleep(1.0)
    running = job.status()
    status = job.wait()
    status.raise_unless_succeeded()
    return replace(status, stages=running.stages, choice=running.choice)


def seconds(status: JobStatus) -> float:
    """Return the time of a job from its first dispatch."""
    return status.actual_s or 0.0


if __name__ == "__main__":
    main()

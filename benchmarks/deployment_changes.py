"""Deployments after drawn changes of a fleet: ``python -m benchmarks.deployment_changes``.

As root: the agents have network namespaces. Each sequence is a fleet of three or four workers, one
or two engines that are asked all the time, and changes: workers join, leave, slow down or lose
memory, links change, the demand shifts from one engine to the other, or new versions are pushed.
From 10 s after each change on, the rate of answers is measured. Then, on the same machines in the
same states, it is measured with the best of all deployments by the true times, loaded beforehand.

The engines are real ONNX models, which the gateway cuts. Their stages are computed, and then wait
until the time of the emulated worker has passed: two cores compute for the whole fleet.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from benchmarks.changing_fleets import DEADLINE_S, Fleet, Load
from benchmarks.drawn_changes import best_deployment, draw_sequence
from benchmarks.drawn_networks import draw_network, seconds_by_cut, write_network
from benchmarks.namespaces import Namespaces
from profiler.cutting.stages import cut_engine, split_engine
from synergai import SyncClient
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.errors import SynergaiError
from synergai.models.manifest import pack
from synergai.names import stage_name, versioned
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.store import DictionaryStore
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.drawn_changes import Best, Machine, Network, State

SETTLED_S: Final = 10.0
MEASURED_S: Final = 10.0
WARM_S: Final = 3.0
DEPLOYED_WITHIN_S: Final = 60.0
NEAR: Final = 0.95


class Row(NamedTuple):
    """What was measured in a state, in queries per second.

    Attributes:
        predicted: by the gateway; 0 for several engines.
        failed: queries since the change.
    """

    change: str
    predicted: float
    observed: float
    clairvoyant: float
    expected: float
    failed: int
    where: str
    best: str

    @property
    def ratio(self) -> float:
        return self.observed / self.clairvoyant


def run_sequence(folder: Path, draw: random.Random, changes: int, *, settled_s: float) -> list[Row]:
    """Run a sequence with the gateway's deployments, and then with the best ones."""
    networks = [draw_network(draw, name) for name in ("one", "two")[: draw.choice((1, 1, 2))]]
    states = draw_sequence(draw, networks, 4 if len(networks) == 1 else 3, changes)
    best = [best for state in states if (best := best_deployment(networks, state)) is not None]
    for each in networks:
        for version in {state.version for state in states}:
            write_network(folder / "built" / str(version) / each.name, seed=version)
    hosts = sorted({name for state in states for name in state.machines})
    with Namespaces(hosts, subnet=7) as network:
        observed = run_deployed(folder / "own", network, networks, states, settled_s)
        rates = run_best(folder, network, networks, states, best)
    return [
        Row(state.change, predicted, rate, of_best, each.per_s, failed, where, text(each))
        for state, each, (rate, predicted, failed, where), of_best in zip(
            states, best, observed, rates, strict=True
        )
    ]


def text(best: Best) -> str:
    """Return the routes of a deployment, for people."""
    return "; ".join(
        f"{engine}: "
        + " | ".join(
            " ".join(f"{leg.worker}:{2 * leg.first}-{2 * leg.last}" for leg in route.legs)
            for route in routes
        )
        for engine, routes in best.routes.items()
    )


def run_deployed(
    folder: Path,
    network: Namespaces,
    networks: Sequence[Network],
    states: Sequence[State],
    settled_s: float,
) -> list[tuple[float, float, int, str]]:
    """Return the rate, its prediction and the failed queries in each state."""
    folder.mkdir()
    write_profile(folder / "dictionary.db", networks, states)
    engines = {each.name: each for each in networks}
    names = {each.name: each.name for each in networks}
    options = ["--dictionary", str(folder / "dictionary.db"), "--worker-wait-s", str(DEADLINE_S)]
    found = []
    with Fleet(folder, network, options, has_memory=True) as fleet:
        fleet.become(states[0], engines)
        client = SyncClient(fleet.address)
        push(client, folder.parent, networks, states[0])
        wait_until(lambda: all_deployed(client, len(networks)), DEPLOYED_WITHIN_S)
        with Load(fleet.address, names, states[0].mix) as load:
            for before, state in zip([states[0], *states], states, strict=False):
                failed = load.faults.total()
                begun = time.monotonic()
                fleet.become(state, engines)
                load.ask(names, state.mix)
                if before.version != state.version:
                    push(client, folder.parent, networks, state)
                time.sleep(max(0.0, begun + settled_s - time.monotonic()))
                rate = load.per_s(MEASURED_S)
                deployed = client.deployments()
                where = "; ".join(
                    f"{each.engine}: {each.where} ({each.state})" for each in deployed
                )
                predicted = deployed[0].predicted_per_s if len(networks) == 1 else 0.0
                found.append((rate, predicted, load.faults.total() - failed, where))
                print(f"  {state.change}: {rate:.2f}/s, {where}", flush=True)
                print("   ", by_second(load.answered, begun), flush=True)
        for fault, count in load.faults.items():
            print(f"  {count} failed: {fault}")
        client.close()
    return found


def by_second(answered: Sequence[float], begun: float) -> str:
    """Return the answers in each second since a time."""
    counts = Counter(int(at - begun) for at in answered if at >= begun)
    return " ".join(str(counts[second]) for second in range(max(counts, default=0) + 1))


def push(client: SyncClient, folder: Path, networks: Sequence[Network], state: State) -> None:
    """Push the version of the engines that a state has."""
    for each in networks:
        package = pack(folder / "built" / str(state.version) / each.name, each.name, state.version)
        client.push_engine(each.name, state.version, package.manifest.encode(), package.paths)


def all_deployed(client: SyncClient, count: int) -> bool:
    """Return whether so many engines are deployed."""
    with suppress(SynergaiError):
        states = [each.state for each in client.deployments()]
        return len(states) == count and {*states} <= {"deployed", "whole"}
    return False


def write_profile(path: Path, networks: Sequence[Network], states: Sequence[State]) -> None:
    """Write the profile of all machines as they are at first, each of a class of its own."""
    versions = {state.version for state in states}
    with DictionaryStore(path) as store:
        for network, version, (name, machine) in product(
            networks, versions, first_machines(states).items()
        ):
            heads = seconds_by_cut(network, machine)
            cuts, end = range(2, len(heads) - 1, 2), len(heads) - 1
            stages = [(0, end), *((0, cut) for cut in cuts), *((cut, end) for cut in cuts)]
            engine = versioned(network.name, str(version))
            store.put_all(
                ProfileEntry(
                    engine=engine_or_stage(engine, first, last, end),
                    worker_class=WorkerClass(name),
                    configuration=Configuration(1),
                    qps=1 / (heads[last] - heads[first]),
                )
                for first, last in stages
            )


def engine_or_stage(engine: str, first: int, last: int, end: int) -> EngineName:
    """Return the name of a stage, or of the engine if it is all of it."""
    is_whole = (first, last) == (0, end)
    return EngineName(engine) if is_whole else stage_name(engine, first, last)


def first_machines(states: Sequence[State]) -> dict[str, Machine]:
    """Return all machines, each as it is at first."""
    found: dict[str, Machine] = {}
    for state in states:
        found = {**state.machines, **found}
    return dict(sorted(found.items()))


def run_best(
    folder: Path,
    network: Namespaces,
    networks: Sequence[Network],
    states: Sequence[State],
    best: Sequence[Best],
) -> list[float]:
    """Return the rate of the best deployment of each state, all of which are loaded beforehand.

    Each of them is of engines of its own, which are copies. Workers that have left are not used.
    """
    own, rates = folder / "best", []
    own.mkdir()
    engines: dict[str, Network] = {}
    with Fleet(own, network, ["--routes", "never"], has_memory=False) as fleet:
        loaded: list[str] = []
        names: list[dict[str, str]] = []
        for number, (state, deployment) in enumerate(zip(states, best, strict=True)):
            names.append({each.name: f"{each.name}-{number}" for each in networks})
            for each in networks:
                copy = names[-1][each.name]
                engines[copy] = each
                built = folder / "built" / str(state.version)
                loaded += place(built, each.name, copy, deployment, fleet)
        machines = first_machines(states)
        used = {name: machines[name] for name in machines if fleet.models(name).exists()}
        fleet.become(replace(states[0], machines=used), engines)
        fleet.wait_for(len(used))
        with SyncClient(fleet.address) as client:
            for stage in loaded:
                client.load(stage)
        with Load(fleet.address, names[0], states[0].mix) as load:
            for state, asked in zip(states, names, strict=True):
                now = used | {n: m for n, m in state.machines.items() if n in used}
                fleet.become(replace(state, machines=now), engines)
                load.ask(asked, state.mix)
                time.sleep(WARM_S)
                rates.append(load.per_s(MEASURED_S))
            assert not load.faults, load.faults
    return rates


def place(built: Path, name: str, copy: str, best: Best, fleet: Fleet) -> list[str]:
    """Put the stages of an engine into the model directories of their workers, under another name.

    Returns:
        the stages under this name.
    """
    engine = cut_engine(built, name)
    end = len(engine.cuts) + 1
    found: list[str] = []
    for route in best.routes[name]:
        cuts = [2 * leg.last for leg in route.legs[:-1]]
        if cuts:
            split_engine(
                engine, built, [engine.cuts[n - 1].tensor for n in cuts], no_check, replace=True
            )
        for worker, first, last in route.legs:
            source = built / engine_or_stage(name, 2 * first, 2 * last, end)
            target = engine_or_stage(copy, 2 * first, 2 * last, end)
            shutil.copytree(source, fleet.models(worker) / target)
            found.append(target)
    return found


def no_check(*_: object) -> None:
    """Check no stage: the agents load them."""


def main() -> None:
    """Run drawn sequences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=12)
    parser.add_argument("--first", type=int, default=1, help="number of the first sequence")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--changes", type=int, default=3, help="in each sequence")
    parser.add_argument(
        "--settled", type=float, default=SETTLED_S, help="seconds until the rate counts"
    )
    parser.add_argument("--directory", type=Path, help="keep the logs there")
    given = parser.parse_args()
    rows = []
    for number in range(given.first, given.first + given.sequences):
        print(f"sequence {number}", flush=True)
        draw = random.Random(1000 * given.seed + number)
        with tempfile.TemporaryDirectory(prefix="synergai-") as temporary:
            folder = Path(temporary)
            try:
                found = run_sequence(folder, draw, given.changes, settled_s=given.settled)
            finally:
                if given.directory:
                    for log in folder.glob("*/fleet/*.log"):
                        kept = given.directory / f"{number}-{log.parts[-3]}-{log.name}"
                        kept.parent.mkdir(parents=True, exist_ok=True)
                        shutil.copy(log, kept)
        rows += found
        show(found)
    if len(rows) > len(found):
        show(rows)
    near = sum(row.ratio >= NEAR for row in rows)
    print(
        f"{near} of {len(rows)} at least {NEAR:.0%}, mean {mean(row.ratio for row in rows):.1%}, "
        f"least {min(row.ratio for row in rows):.1%}; {sum(row.failed for row in rows)} failed"
    )


def show(rows: Sequence[Row]) -> None:
    """Print what was measured."""
    print(f"{'change':36} predicted observed clairvoyant (expected) ratio failed")
    for row in rows:
        print(
            f"{row.change:36} {row.predicted:9.2f} {row.observed:8.2f} {row.clairvoyant:11.2f} "
            f"{row.expected:10.2f} {row.ratio:5.1%} {row.failed:6}"
        )
        if row.ratio < NEAR:
            print(f"    deployed {row.where}\n    best {row.best}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

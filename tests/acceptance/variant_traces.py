"""Engines with variants under changing load, live: the scenarios of ``benchmarks.variants``.

Emulated workers compute every answer, and take the time of the profile. The bounds are those of the
simulation::

    python tests/acceptance/variant_traces.py --scenarios single-server --seconds 60

Then a steady low load, which the best variant should answer, and a burst in it, within which no
request should be late and after which the best variant should be back.
"""

import argparse
import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace
from numpy.typing import NDArray

from benchmarks.variants.bounds import accuracy_at_most, relative_accuracy_at_most
from benchmarks.variants.demand import SHAPES, Shape, draw_arrivals
from benchmarks.variants.scenarios import SCENARIOS
from benchmarks.variants.simulation import Scenario, profile_entries
from benchmarks.variants.study import draw_requests
from synergai.client.client import Client
from synergai.domain import EngineName, WorkerClass
from synergai.loadgen.outcome import RequestOutcome
from synergai.loadgen.traces.driver import send_open_loop
from synergai.models.directory import ModelDirectory
from synergai.models.samples import load_samples
from synergai.profiles.store import DictionaryStore
from synergai.testing import LocalFleet
from synergai.versions import split_variant
from synergai.zoo.build import build
from tests.acceptance.scripts import verdict

Requests = Sequence[tuple[float, EngineName]]

MODEL: Final = "onnx_digits"
"""Computes the answers."""
LOAD_S: Final = 0.2
"""Emulated time to load a variant."""
SETTLE_S: Final = 5.0
"""Duration of the low load before a measurement."""
RATES: Final = {"single-server": 8.0, "three-servers": 24.0, "co-located": 9.0, "distributed": 27.0}
"""Requests per second, of all engines: about twice what the largest variants manage."""
LOW_SHARE: Final = 0.25
"""Low load in shares of what the most accurate variant manages."""
BURST_S: Final = 5.0
BACK_WITHIN_S: Final = 2.0
MAX_LATE: Final = 0.001
MAX_GAP: Final = 0.01
"""Largest distance of the accuracy to its bound."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a load got: due time, engine, and variant of each request; empty if it was late."""

    due: list[float]
    engines: list[EngineName]
    variants: list[str]

    @property
    def late(self) -> float:
        """Share of the requests without an answer in time."""
        return self.variants.count("") / len(self.variants)

    def accuracy(self, scenario: Scenario) -> float:
        """Return the mean accuracy, relative to each engine's best; late requests count 0."""
        total = 0.0
        for engine, variant in zip(self.engines, self.variants, strict=True):
            front = scenario.fronts[engine]
            best = max(accuracy for _, accuracy in front.values())
            total += front[variant][1] / best if variant else 0.0
        return total / len(self.variants)

    def shares(self) -> dict[str, float]:
        """Return the share of each variant in the requests."""
        counted = Counter(self.variants)
        return {variant or "late": n / len(self.variants) for variant, n in counted.most_common()}


class Fleet:
    """A gateway and the emulated workers of a scenario.

    Args:
        scenario: engines, variants and workers.
        model: folder of the model that computes the answers.
        directory: folder for all files.
    """

    def __init__(self, scenario: Scenario, model: Path, directory: Path) -> None:
        self._scenario = scenario
        self._model = model
        self._directory = directory
        [self._definition] = ModelDirectory(model.parent).engines()
        self._inputs: list[Mapping[str, NDArray[Any]]] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Start the fleet; yield the gateway's address."""
        self._directory.mkdir(parents=True)
        worker_class = WorkerClass("emulated")
        with DictionaryStore(self._directory / "dictionary.db") as store:
            store.put_all(
                replace(
                    entry,
                    configuration=replace(entry.configuration, threads=1),
                    model_load_s=LOAD_S,
                )
                for entry in profile_entries(self._scenario.fronts, worker_class)
            )
        with LocalFleet(self._directory / "fleet") as fleet:
            fleet.start_gateway(["--dictionary", str(self._directory / "dictionary.db")])
            for number, engines in enumerate(self._scenario.layout):
                models = self._directory / f"models-{number}"
                for engine in engines:
                    self._write(models / engine, engine)
                fleet.start_agent(
                    f"server-{number}",
                    models=models,
                    worker_class=worker_class,
                    options=["--threads", "1"],
                )
            fleet.wait_for_workers(len(self._scenario.layout))
            yield fleet.address

    def _write(self, folder: Path, engine: EngineName) -> None:
        """Write a folder of the model directory."""
        folder.mkdir(parents=True)
        file = self._definition.file
        for each in (file, self._model / "samples.npz"):
            shutil.copy(each, folder)
        lines = ['backend = "emulated"']
        for variant, (seconds, _) in self._scenario.fronts[engine].items():
            (folder / f"{variant}.toml").write_text(
                f'model = "{file.name}"\n\n[[configurations]]\nthreads = 1\n'
                f"query_s = {seconds!r}\nsetup_s = {LOAD_S}\n"
            )
            lines += ["", "[[variants]]", f'name = "{variant}"', f'file = "{variant}.toml"']
        (folder / "engine.toml").write_text("\n".join(lines) + "\n")

    async def send(self, address: str, requests: Requests) -> Answers:
        """Send requests when they are due; return what they got."""
        async with Client(address, attempts=1) as client:
            if not self._inputs:
                described = await client.engine(requests[0][1])
                samples = load_samples(self._definition, described.inputs)
                self._inputs = list(samples.inputs)

            async def send(number: int, deadline: float | None) -> str:
                inputs = self._inputs[number % len(self._inputs)]
                engine = requests[number][1]
                return (await client.infer(engine, inputs, deadline=deadline)).version

            log = await send_open_loop(
                send, [at for at, _ in requests], deadline_s=self._scenario.deadline_s
            )
        if log.first_failure:
            raise SystemExit(f"a request failed: {log.first_failure}")
        answered = {
            due: split_variant(version)[1] if outcome is RequestOutcome.MET else ""
            for due, version, outcome in zip(log.due, log.versions, log.outcomes, strict=True)
        }
        due, engines = [at for at, _ in requests], [engine for _, engine in requests]
        return Answers(due, engines, [answered[at] for at in due])


def low_load(scenario: Scenario, seconds: float) -> list[tuple[float, EngineName]]:
    """Return requests at equal distances that the most accurate variants manage easily."""
    slowest = max(query_s for front in scenario.fronts.values() for query_s, _ in front.values())
    distance = slowest / LOW_SHARE / len(scenario.layout)
    engines = sorted(scenario.fronts)
    return [
        (number * distance, engines[number % len(engines)])
        for number in range(max(1, int(seconds / distance)))
    ]


def bound(scenario: Scenario, requests: Requests) -> float:
    """Return the relative accuracy that no choice of variants exceeds."""
    if len(scenario.fronts) > 1:
        return relative_accuracy_at_most(scenario, requests)
    [(engine, front)] = scenario.fronts.items()
    best = max(accuracy for _, accuracy in front.values())
    return accuracy_at_most(scenario, engine, [at for at, _ in requests]) / best


async def trace(
    name: str, shapes: Sequence[str], seconds: int, seed: int, model: Path, directory: Path
) -> list[str]:
    """Send each shape of load; print the figures, and return the errors."""
    scenario, rate = SCENARIOS[name], RATES[name]
    loads = {
        shape: draw_requests(scenario, shape, rate, seconds, seed)
        for shape in SHAPES
        if shape in shapes
    }
    found: dict[Shape, Answers] = {}
    fleet = Fleet(scenario, model, directory / name)
    with fleet.running() as address:
        for shape, requests in loads.items():
            await fleet.send(address, low_load(scenario, SETTLE_S))
            found[shape] = await fleet.send(address, requests)
    errors = []
    for shape, answers in found.items():
        limit = bound(scenario, loads[shape])
        accuracy = answers.accuracy(scenario)
        record = {
            "scenario": name,
            "shape": shape,
            "requests": len(loads[shape]),
            "late": answers.late,
            "accuracy": accuracy,
            "bound": limit,
            "shares": answers.shares(),
        }
        print(json.dumps(record), flush=True)
        if answers.late > MAX_LATE:
            errors.append(f"{name}, {shape}: {answers.late:.2%} are late")
        if len(scenario.fronts) == 1 and accuracy < limit - MAX_GAP:
            errors.append(f"{name}, {shape}: more than {MAX_GAP:.0%} below the bound")
    return errors


async def burst(name: str, seed: int, model: Path, directory: Path) -> list[str]:
    """Send a low load with a burst in the middle; print the figures, and return the errors."""
    scenario = SCENARIOS[name]
    [engine] = scenario.fronts
    front = scenario.fronts[engine]
    best = max(front, key=lambda variant: front[variant][1])
    before = low_load(scenario, 2 * SETTLE_S)
    begin = before[-1][0] + 1.0
    end = begin + BURST_S
    high = [
        (begin + at, engine)
        for at in draw_arrivals("constant", 2 * RATES[name], int(BURST_S), seed)
    ]
    after = [(end + at, engine) for at, _ in before]
    fleet = Fleet(scenario, model, directory / f"{name}-burst")
    with fleet.running() as address:
        await fleet.send(address, low_load(scenario, SETTLE_S))
        answers = await fleet.send(address, [*before, *high, *after])
    steady = [
        variant
        for at, variant in zip(answers.due, answers.variants, strict=True)
        if at < begin or at >= end + BACK_WITHIN_S
    ]
    record = {
        "scenario": name,
        "shape": "burst",
        "requests": len(answers.variants),
        "late": answers.late,
        "best outside": steady.count(best) / len(steady),
        "shares": answers.shares(),
    }
    print(json.dumps(record), flush=True)
    errors = [] if steady.count(best) == len(steady) else [f"{name}: not the best at a low load"]
    if answers.late:
        errors.append(f"{name}: {answers.late:.2%} of a burst are late")
    return errors


async def run(options: argparse.Namespace, directory: Path) -> list[str]:
    """Run the scenarios; return the errors."""
    model = directory / "built" / MODEL
    errors = []
    for name in options.scenarios.split(","):
        if len(SCENARIOS[name].fronts) == 1:
            errors += await burst(name, options.seed, model, directory)
        shapes = options.shapes.split(",")
        errors += await trace(name, shapes, options.seconds, options.seed, model, directory)
    return errors


def main() -> int:
    """Run the scenarios; return 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--scenarios", default=",".join(RATES), help="names, separated by commas")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="names, separated by commas")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        build(MODEL, Path(temporary, "built"), lambda _: None)
        errors = asyncio.run(run(options, Path(temporary)))
    return verdict(errors)


if __name__ == "__main__":
    sys.exit(main())

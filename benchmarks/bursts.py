"""Bursts over engines that do not all fit on a worker: ``python -m benchmarks.bursts``.

Four workers have memory for one of four engines each, or for a quarter of each engine. Without
splits, the best placement is an engine per worker: any other one leaves an engine out. In stages,
all workers serve each engine (as in AlpaServe, OSDI 2023). Requests come in a burst of each engine
in turn, at random times. The highest rate at which 99 % of them are in time is searched for both
placements. Engines take their time without computing.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from benchmarks.emulated_stages import INPUT, write_stages
from demo.local_fleet import LocalFleet, reserved_port
from profiler.loadgen.traces.arrivals import arrivals, constant
from profiler.loadgen.traces.request_log import summarise
from profiler.loadgen.traces.run import RateTrial, find_goodput, send_open_loop
from synergai import Client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORKERS: Final = 4
ENGINES: Final = tuple(f"engine-{number}" for number in range(4))
WHOLE_S: Final = 0.1
DEADLINE_S: Final = 1.0
BURST_S: Final = 3.0
LATE_S: Final = 0.01
TENSOR_BYTES: Final = 100_000
FIRST_RATE: Final = 10.0
ON_TIME: Final = 0.99
INPUTS: Final = {INPUT: np.zeros((1, TENSOR_BYTES // 4), np.float32)}
STAGES: Final = tuple(pairwise(range(WORKERS + 1)))
WHOLE: Final = (0, WORKERS)
PLACEMENTS: Final[Mapping[str, Sequence[Mapping[str, Sequence[tuple[int, int]]]]]] = {
    "an engine per worker": [{engine: [WHOLE]} for engine in ENGINES],
    "a quarter of each": [{engine: [stage] for engine in ENGINES} for stage in STAGES],
}


def main() -> None:
    """Search the rates of both placements."""
    rates = []
    for name, workers in PLACEMENTS.items():
        with tempfile.TemporaryDirectory(prefix="synergai-") as temporary:
            rates.append(asyncio.run(search(Path(temporary), workers)))
        print(f"{name}: {rates[-1]:.1f} requests/s at {ON_TIME:.0%} in time", flush=True)
    print(f"in stages: {rates[1] / rates[0]:.2f} times the rate")


async def search(folder: Path, workers: Sequence[Mapping[str, Sequence[tuple[int, int]]]]) -> float:
    """Return the highest rate of a placement."""
    seconds = {stage: [WHOLE_S * (stage[1] - stage[0]) / WORKERS] for stage in (*STAGES, WHOLE)}
    with ExitStack() as stack:
        fleet = stack.enter_context(LocalFleet(folder / "fleet"))
        fleet.start_gateway()
        for number, engines in enumerate(workers):
            models = folder / f"worker-{number}"
            for engine, stages in engines.items():
                sizes = [TENSOR_BYTES] * (WORKERS + 1)
                write_stages(models, engine, sizes, seconds, stages)
            port = stack.enter_context(reserved_port())
            options = ["--threads", "1", "--peer-port", str(port)]
            fleet.start_agent(models.name, models=models, options=options)
        fleet.wait_for_workers(WORKERS)
        async with Client(fleet.address, attempts=1) as client:
            for engine in ENGINES * 5:
                await client.infer(engine, INPUTS)

            async def run(rate: float) -> RateTrial:
                return await run_bursts(client, rate)

            found = await find_goodput(
                run, first=FIRST_RATE, lowest=1.0, attainment=ON_TIME, precision=0.1, trials=1
            )
    return found.rate


async def run_bursts(client: Client, rate: float) -> RateTrial:
    """Send a burst of each engine in turn."""
    instants, engines = [], []
    for number, engine in enumerate(ENGINES):
        burst = list(arrivals(constant(rate, BURST_S), seed=number))
        instants += [number * (BURST_S + DEADLINE_S) + instant for instant in burst]
        engines += [engine] * len(burst)

    async def send(number: int, deadline: float | None) -> str:
        return (await client.infer(engines[number], INPUTS, deadline=deadline)).version

    log = await send_open_loop(send, instants, deadline_s=DEADLINE_S)
    figures = summarise(log, instants[-1], LATE_S, 0.01)
    print(f"    {rate:5.1f} requests/s: {figures.attainment:.2%} in time", flush=True)
    return RateTrial.of(rate, figures)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()  # for --help
    main()

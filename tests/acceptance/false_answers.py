"""Find workers that answer falsely; check that honest ones are never ejected.

    python tests/acceptance/false_answers.py --liars 10 --queries 1000

First, emulated agents: two honest ones, and one after the other that gives a share of false
answers. Each must be found after as many comparisons as theory says, and no false answer may come
after. Then agents with a real engine and different thread counts: no answer may count as false. The
script prints the time of an answer with and without comparisons.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import numpy as np

import synergai
from gateway.server import Gateway
from synergai.domain import WorkerId
from synergai.oip import inference_pb2 as oip
from synergai.scheduling.verification import AGAINST, IN_FAVOUR, PROOF
from synergai.testing import LocalFleet
from synergai.v1 import common_pb2, hub_pb2
from synergai.zoo.build import build
from tests.integration.gateway.conftest import (
    ECHO,
    Caller,
    FakeAgent,
    config_in,
    echoed,
    infer_request,
)

SHARES = (1.0, 0.3, 0.1)
"""Shares of false answers of the liars."""
ENGINE = "onnx_digits"


def make_agent(gateway: Gateway, name: str, false_share: float, seed: int) -> FakeAgent:
    """Return an agent that gives a share of false answers."""
    agent = FakeAgent(gateway.hub_address, name)
    agent.register.sessions.add(engine=ECHO, configuration=common_pb2.Configuration(threads=1))
    source = random.Random(seed)

    async def answer(assignment: hub_pb2.Assignment) -> None:
        responses = []
        for request in assignment.requests:
            response = oip.ModelInferResponse.FromString(echoed(request))
            if source.random() < false_share:
                response.raw_output_contents[0] = b"\0\0\x80\x40"
            responses.append(response.SerializeToString())
        await agent.end(assignment, done=assignment.count, responses=responses)

    agent.answer = answer
    return agent


async def find_liars(directory: Path, liars: int, share: str) -> list[str]:
    """Find liars of each kind; return what was wrong."""
    errors: list[str] = []
    config = config_in(directory, verify_share=share, heartbeat_s=10.0)
    async with Gateway(config) as gateway:
        verifier = gateway.app.verifier
        assert verifier is not None
        caller = Caller(gateway.address)
        honest = [make_agent(gateway, name, 0.0, 0) for name in ("honest-1", "honest-2")]
        async with caller.channel, honest[0], honest[1]:
            await caller.profile()
            await caller.workers(2)
            for false_share in SHARES:
                found = [
                    await find_liar(gateway, caller, false_share, seed) for seed in range(liars)
                ]
                drift = false_share * AGAINST + (1.0 - false_share) * IN_FAVOUR
                least, most = PROOF / drift, (PROOF + AGAINST) / drift
                mean = sum(each[0] for each in found) / liars
                requests = sum(each[1] for each in found) / liars
                # The first false answer goes by the share, what follows by what is in flight.
                print(
                    f"{false_share:4.0%} false: found after {mean:6.1f} comparisons, "
                    f"expected {least:.1f} to {most:.1f}; {requests:,.0f} requests"
                )
                if not 0.5 * least <= mean <= 2.0 * most:
                    errors.append(f"{false_share:.0%} false: found after {mean:.1f} comparisons")
        errors += [
            f"{agent.register.worker_id} is a suspect"
            for agent in honest
            if verifier.suspicion(WorkerId(agent.register.worker_id))
        ]
        if verifier.ejections != liars * len(SHARES):
            errors.append(f"{verifier.ejections} workers of {liars * len(SHARES)} were ejected")
    return errors


async def find_liar(
    gateway: Gateway, caller: Caller, false_share: float, seed: int
) -> tuple[int, int]:
    """Send requests until a liar is ejected; return its comparisons, and the requests."""
    verifier = gateway.app.verifier
    assert verifier is not None
    before = verifier.ejections
    name = WorkerId(f"liar-{false_share:g}-{seed}")
    async with make_agent(gateway, name, false_share, seed):
        await caller.workers(3)
        requests = 0
        while verifier.ejections == before and requests < 100_000:
            await caller.oip.ModelInfer(infer_request(), timeout=30)
            requests += 1
        standing = verifier.standings.get(name)
        for _ in range(20):
            answer = await caller.oip.ModelInfer(infer_request(), timeout=30)
            assert answer.raw_output_contents[0] != b"\0\0\x80\x40", "a false answer after proof"
    await caller.workers(2)
    assert standing is not None
    return standing.compared, requests


async def ask(address: str, queries: int) -> float:
    """Send random queries, three at a time; return the median time of an answer in seconds."""
    source = np.random.default_rng(1)
    times: list[float] = []
    async with synergai.Client(address) as client:
        [tensor] = (await client.engine(ENGINE)).inputs
        shape = [abs(size) for size in tensor.shape]

        async def infer() -> None:
            values = source.random(shape, np.float32)
            began = time.perf_counter()
            await client.infer(ENGINE, {tensor.name: values}, deadline=30.0)
            times.append(time.perf_counter() - began)

        # All workers need it: while one loads it for a comparison, further ones are dropped.
        await client.load(ENGINE)
        while not all(w.sessions for w in await client.workers()):  # noqa: ASYNC110 - polls
            await asyncio.sleep(0.05)
        await asyncio.gather(*(infer() for _ in range(30)))
        times.clear()
        for _ in range(queries // 2):
            await asyncio.gather(infer(), infer())
    return float(np.median(times))


def compare_real_engines(directory: Path, queries: int) -> list[str]:
    """Serve an engine in three configurations; return what was wrong."""
    models = directory / "models"
    models.mkdir()
    build(ENGINE, models)
    errors: list[str] = []
    for share in ("0%", "5%", "100%"):
        with LocalFleet(directory / f"fleet-{share}") as fleet:
            fleet.start_gateway(["--verify-share", share])
            for threads in (1, 2, 3):
                options = ["--threads", str(threads)]
                fleet.start_agent(f"w{threads}", models=models, options=options)
            fleet.wait_for_workers(3)
            median_s = asyncio.run(ask(fleet.address, queries))
            with urlopen(f"http://{fleet.http_address}/metrics", timeout=30) as response:
                lines = response.read().decode().splitlines()
        checks = {
            line.split('"')[1]: float(line.split()[-1])
            for line in lines
            if line.startswith("synergai_checks_total")
        }
        print(f"real engines, share {share}: median {median_s * 1e3:.2f} ms, checks {checks}")
        if checks.get("false") or checks.get("undecided"):
            errors.append(f"honest workers differ: {checks}")
        if share == "100%" and not checks.get("agreed"):
            errors.append("no answers were compared")
    return errors


def main() -> int:
    """Parse the command line, run, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--liars", type=int, default=10, help="of each kind")
    parser.add_argument("--share", default="20%", help="share of the answers to compare")
    parser.add_argument("--queries", type=int, default=1000, help="to real engines")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = asyncio.run(find_liars(Path(temporary), arguments.liars, arguments.share))
        found += compare_real_engines(Path(temporary), arguments.queries)
    for line in found:
        print(line)
    print(f"{len(found)} errors")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Kill processes in the middle of deployments; check that nothing is lost, done twice or wrong.

    python tests/acceptance/deployments.py --kills 200    # about half an hour

Three workers, none of which can hold an engine whole, run it in stages. Gateway, agents and the
gateway's planning and cutting processes are killed at random moments and started again, while jobs
and requests run. Each input of a job has one right result, no answer is wrong, and afterwards the
store has the wanted stages and no others.
"""

import argparse
import random
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime
import psutil

from demo.local_fleet import LocalFleet
from synergai import SyncClient
from synergai.errors import SynergaiError
from synergai.models.manifest import pack
from synergai.names import stage_positions
from tests.layered_engines import features, write_layers

ENGINE: Final = "layers"
WORKERS: Final = ("a", "b", "c")
MEMORY_MB: Final = 230
INPUTS: Final = 40
MOST_PAUSE_S: Final = 8.0
WITHIN_S: Final = 60.0
"""Time after the last kill in which everything is deployed and cleaned up."""


class Work:
    """Jobs and requests, one after the other, whose answers are checked."""

    def __init__(self, address: str, model: Path) -> None:
        session = onnxruntime.InferenceSession(model / "model.onnx")
        self._right = [session.run(None, {"features": features(n)})[0] for n in range(INPUTS)]
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.jobs = self.requests = self.failed = 0
        self.faults: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with SyncClient(self._address) as client:
            while not self._stop.is_set():
                try:
                    self._job(client)
                    self._request(client)
                except SynergaiError:
                    self.failed += 1
                    time.sleep(0.2)

    def _job(self, client: SyncClient) -> None:
        inputs = [{"features": features(number)} for number in range(INPUTS)]
        job = client.submit(ENGINE, inputs=inputs)
        results = list(job.results())
        if sorted(index for index, _ in results) != list(range(INPUTS)):
            self.faults.append(f"job {job.id} has results {[index for index, _ in results]}")
        for index, result in results:
            if result.error:
                self.faults.append(f"job {job.id}, input {index}: {result.error}")
            else:
                self._check(f"job {job.id}, input {index}", index, result.outputs["scores"])
        self.jobs += 1

    def _request(self, client: SyncClient) -> None:
        number = self.requests % INPUTS
        self.requests += 1
        found = client.infer(ENGINE, {"features": features(number)})["scores"]
        self._check(f"request {self.requests}", number, found)

    def _check(self, what: str, number: int, found: np.ndarray) -> None:
        if not np.allclose(found, self._right[number], rtol=1e-4, atol=1e-5):
            self.faults.append(f"{what} has a wrong answer")


def start_agent(fleet: LocalFleet, name: str) -> None:
    models = fleet.directory / f"models-{name}"
    models.mkdir(exist_ok=True)
    options = ["--memory-mb", str(MEMORY_MB), "--threads", "1"]
    fleet.start_agent(name, models=models, options=options)


def kill_one(fleet: LocalFleet, draw: random.Random) -> str:
    """Kill a process and start it again; return which."""
    victim = draw.choice(("gateway", "cutter", *WORKERS))
    assert fleet.gateway is not None
    if victim == "cutter":
        for child in psutil.Process(fleet.gateway.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
    elif victim == "gateway":
        fleet.kill("gateway")
        fleet.start_gateway()
    else:
        fleet.kill(victim)
        time.sleep(draw.uniform(0.0, MOST_PAUSE_S))
        start_agent(fleet, victim)
    return victim


def check_end(client: SyncClient) -> str:
    """Return what is wrong with the deployment; empty if nothing is."""
    with suppress(SynergaiError):
        [deployed] = client.deployments()
        wanted = {tuple(leg[1:]) for route in deployed.wanted for leg in route.legs}
        stored = {
            stage_positions(each.engine)
            for each in client.stored_engines().engines
            if each.engine != ENGINE
        }
        if deployed.state != "deployed":
            return f"it is {deployed.state}: {deployed.fault}"
        return "" if wanted == stored else f"{wanted} is wanted, {stored} is stored"
    return "the gateway does not answer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    kills: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, LocalFleet(Path(folder) / "fleet") as fleet:
        model = write_layers(Path(folder) / ENGINE, 8)
        fleet.start_gateway()
        for name in WORKERS:
            start_agent(fleet, name)
        work = Work(fleet.address, model)
        with SyncClient(fleet.address) as client:
            package = pack(model, ENGINE, 1)
            client.push_engine(ENGINE, 1, package.manifest.encode(), package.paths)
            work.start()
            for _ in range(given.kills):
                time.sleep(draw.uniform(0.0, MOST_PAUSE_S))
                victim = kill_one(fleet, draw)
                kills[victim] = kills.get(victim, 0) + 1
            deadline = time.monotonic() + WITHIN_S
            while (fault := check_end(client)) and time.monotonic() < deadline:
                time.sleep(0.5)
            work.stop()
        print(
            f"killed {kills}; {work.jobs} jobs and {work.requests} requests, {work.failed} failed"
        )
        for each in [*work.faults, *([fault] if fault else [])]:
            print(each)
        if work.faults or fault:
            raise SystemExit(1)


if __name__ == "__main__":
    main()

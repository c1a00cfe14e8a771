"""Faults of a GPU, as a gateway sees them whose worker offers it.

Its memory is used up, the limit of its memory is too small, its engine host is killed, or it
computes concurrently with the CPU. Run by `test_providers_acceptance.py`, or by hand::

    VENV/bin/python tests/acceptance/gpu_faults.py --models models --directory /tmp/gpu

It needs a GPU and an environment with ``onnxruntime-gpu`` in place of ``onnxruntime``.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary
from synergai.client.sync import SyncClient
from synergai.domain import Configuration, EngineName
from synergai.errors import Unavailable
from synergai.jobs import JobState, JobStatus
from tests.cores import new_entry

CLASS: Final = "gpu"
ON_GPU: Final = Configuration(0, "", "CUDA")
ON_CPU: Final = Configuration(1)
SPARE_BYTES: Final = 64 << 20
"""Memory of the GPU that is left when it is full: too little for a CUDA context."""
JOB: Final = 20_000
"""Queries of a job that runs long enough to be disturbed."""
WITHIN_S: Final = 60.0
HOST: Final = "worker_agent.host"


class Wrong(Exception):
    """The product did not do what it should."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="model directory")
    parser.add_argument("--engine", default="onnx_mobilenet_op11", help="engine to compute with")
    parser.add_argument("--directory", type=Path, required=True, help="folder for all else")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    trial = Trial(options.models, EngineName(options.engine), options.directory)
    faults = {
        "full": trial.full,
        "limit too small": trial.limit_too_small,
        "killed host": trial.killed_host,
        "beside the CPU": trial.beside_the_cpu,
    }
    for name, cause in faults.items():
        print(json.dumps({"fault": name, "seen": cause()}), flush=True)
    return 0


class Trial:
    """Causes faults."""

    def __init__(self, models: Path, engine: EngineName, directory: Path) -> None:
        self._models = models
        self._engine = engine
        self._directory = directory

    def full(self) -> str:
        """Use up the memory of the GPU: jobs run on the CPU, without a fault."""
        with full_gpu():
            return self._falls_back("full", "[providers.CPU]\n[providers.CUDA]\n")

    def limit_too_small(self) -> str:
        """Limit the memory of the GPU below the size of the weights: jobs run on the CPU."""
        limit = "gpu_mem_limit = 1000000"
        return self._falls_back("limit", f"[providers.CPU]\n[providers.CUDA]\n{limit}\n")

    def killed_host(self) -> str:
        """Kill the engine host that computes on the GPU: the job goes on there."""
        with self._fleet("killed", "[providers.CUDA]\n") as (fleet, client):
            handle = client.submit(self._engine, queries=JOB)
            self._until_running(client, handle.id)
            agent = psutil.Process(fleet.agents["board"].pid)
            hosts = [each for each in agent.children() if HOST in " ".join(each.cmdline())]
            expect(bool(hosts), "no engine host runs")
            for host in hosts:
                host.kill()
            status = handle.wait()
            expect(status.queries_done == JOB, str(status))
            return f"killed {len(hosts)}: {described(status, {ON_GPU})}"

    def beside_the_cpu(self) -> str:
        """Start an agent for the GPU next to the one for the CPU: two jobs run at the same time."""
        with self._fleet("beside", "[providers.CPU]\n", cpu_qps=900.0) as (fleet, client):
            self._start_agent(fleet, "gpu", "[providers.CUDA]\n")
            fleet.wait_for_workers(2)
            handles = []
            for count in (JOB, 200):
                handles.append(client.submit(self._engine, queries=count))
                self._until_running(client, handles[-1].id)
            used = {
                (each.worker_id, str(each.configuration))
                for handle in handles
                for each in handle.wait().executions
            }
            expect({worker for worker, _ in used} == {"board", "gpu"}, str(used))
            return str(sorted(used))

    def _falls_back(self, name: str, settings: str) -> str:
        """Return how a job ran that should have used the GPU, which is unusable."""
        with self._fleet(name, settings) as (_, client):
            status = client.submit(self._engine, queries=20).wait()
            told = described(status, {ON_CPU})
            [worker] = client.workers()
            return f"{told}; at the gateway: {[each.reason for each in worker.unusable]}"

    def _start_agent(self, fleet: LocalFleet, name: str, settings: str) -> None:
        path = self._directory / f"{name}.toml"
        path.write_text(settings)
        options = ("--threads", "1", "--config", str(path))
        fleet.start_agent(name, models=self._models, worker_class=CLASS, options=options)

    @contextlib.contextmanager
    def _fleet(
        self, name: str, settings: str, cpu_qps: float = 10.0
    ) -> Iterator[tuple[LocalFleet, SyncClient]]:
        """Start a gateway by whose dictionary the GPU is the faster one, and a worker."""
        dictionary = self._directory / f"{name}.db"
        add_to_dictionary(
            dictionary,
            [
                new_entry(self._engine, CLASS, qps, configuration)
                for configuration, qps in ((ON_CPU, cpu_qps), (ON_GPU, 1000.0))
            ],
        )
        with LocalFleet(self._directory / name) as fleet:
            fleet.start_gateway(("--dictionary", str(dictionary)))
            self._start_agent(fleet, "board", settings)
            fleet.wait_for_workers(1)
            with SyncClient(fleet.address) as client:
                yield fleet, client

    @staticmethod
    def _until_running(client: SyncClient, job: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not any(each.id == job and each.queries_done for each in client.jobs()):
            expect(time.monotonic() < deadline, "the job does not run")
            time.sleep(0.05)


@contextlib.contextmanager
def full_gpu() -> Iterator[None]:
    """Use up the memory of GPU 0 in another process, but for `SPARE_BYTES`."""
    filler = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("gpu_filler.py")), str(SPARE_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if filler.stdout is None or not filler.stdout.readline():
            raise Unavailable("the memory of the GPU cannot be used up")
        yield
    finally:
        filler.kill()
        filler.communicate()


def described(status: JobStatus, configurations: set[Configuration]) -> str:
    """Return how a job ended, which should have run in some configurations only."""
    used = {each.configuration for each in status.executions}
    text = f"{status.state.name}, {status.queries_done} queries with {sorted(map(str, used))}"
    expect(status.state is JobState.SUCCEEDED and used == configurations, text)
    return text


def expect(holds: bool, text: str) -> None:
    """Raise an error unless a condition holds.

    Raises:
        Wrong: it does not.
    """
    if not holds:
        raise Wrong(text)


if __name__ == "__main__":
    sys.exit(main())

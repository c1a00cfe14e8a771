"""An agent and a profiler in a cgroup with half a core and 600 MiB, as in a container."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from demo.local_fleet import LocalFleet
from profiler.dictionary.files import load_dictionary
from profiler.zoo import recipes as zoo
from synergai.client.fleet import worker_from_proto
from synergai.domain import Configuration
from synergai.runtime.resources import find_cgroup
from synergai.v1 import fleet_pb2, fleet_pb2_grpc
from tests.waiting import wait_until

MEMORY = 600 << 20
LIMITS = {
    ("cpu", 1): {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"},
    ("cpu", 2): {"cpu.max": "50000 100000"},
    ("memory", 1): {"memory.limit_in_bytes": str(MEMORY)},
    ("memory", 2): {"memory.max": str(MEMORY)},
}


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[list[str]]:
    """Command that runs another one in a new cgroup with the limits."""
    folders: list[Path] = []
    try:
        for controller in ("cpu", "memory"):
            group = find_cgroup(controller)
            if not group.levels:
                pytest.skip(f"no cgroup hierarchy has the controller {controller}")
            folder = Path(group.levels[-1], f"synergai-test-{tmp_path.name}")
            if folder not in folders:
                folder.mkdir()
                folders.append(folder)
            for name, text in LIMITS[controller, group.version].items():
                (folder / name).write_text(text)
    except OSError as error:
        for folder in folders:
            folder.rmdir()
        pytest.skip(f"cannot create a limited cgroup: {error}")
    join = "".join(f"echo $$ > '{folder}/cgroup.procs' && " for folder in folders)
    yield ["sh", "-c", f'{join}exec "$@"', "sh"]
    for folder in folders:
        wait_until(lambda: not (folder / "cgroup.procs").read_text())  # noqa: B023 - called at once
        folder.rmdir()


def test_agent_and_profile_have_the_limits_of_their_cgroup(
    tmp_path: Path, limited: list[str]
) -> None:
    models = tmp_path / "models"
    zoo.build("onnx_identity", models)
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        fleet.start_agent("limited", models=models, prefix=limited)
        fleet.wait_for_workers(1)
        with grpc.insecure_channel(fleet.address) as channel:
            stub = fleet_pb2_grpc.FleetStub(channel)
            answer = stub.ListWorkers(fleet_pb2.ListWorkersRequest(), timeout=60)
    worker = worker_from_proto(answer.workers[0])
    assert (worker.cores, worker.memory_bytes) == (1, MEMORY)
    assert worker.configurations == (Configuration(1),)

    dictionary = tmp_path / "dictionary.db"
    options = ["--models", str(models), "--dictionary", str(dictionary)]
    options += ["--queries", "10", "--min-duration", "0.1", "--output", str(tmp_path / "logs")]
    command = [*limited, sys.executable, "-m", "synergai", "profile", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (entry,) = load_dictionary(dictionary)
    assert (entry.configuration, entry.cpus) == (Configuration(1), 0.5)

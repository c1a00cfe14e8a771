"""Places of a machine: workers with cores of their own."""

import os
from pathlib import Path

import psutil
import pytest

import synergai
from demo.local_fleet import LocalFleet
from profiler.zoo import recipes as zoo

ENGINE = "onnx_digits"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_each_place_runs_engines_on_its_own_cores(tmp_path: Path) -> None:
    models = tmp_path / "models"
    zoo.build(ENGINE, models)
    cores = sorted(os.sched_getaffinity(0))[:2]
    options = ["--cores", ",".join(map(str, cores)), "--places", "2", "--memory-mb", "800"]
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        fleet.start_agent("box", models=models, options=options)
        fleet.wait_for_workers(2)
        with synergai.SyncClient(fleet.address) as client:
            assert [worker.cores for worker in client.workers()] == [1, 1]
            jobs = [client.submit(ENGINE, queries=20_000) for _ in range(3)]
            for job in jobs:
                job.wait().raise_unless_succeeded()
            executions = [each for job in jobs for each in job.status().executions]
        assert {each.worker_id for each in executions} == {"box.1", "box.2"}
        assert {str(each.configuration) for each in executions} == {"threads=1"}
        hosts = [
            each
            for each in psutil.Process(fleet.agents["box"].pid).children(recursive=True)
            if "worker_agent.host.main" in each.cmdline()
        ]
        assert sorted(tuple(each.cpu_affinity()) for each in hosts) == [(each,) for each in cores]

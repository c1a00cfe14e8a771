"""Cores of engines: agents on one machine share its cores out."""

import os
from pathlib import Path

import psutil
import pytest

import synergai
from demo.local_fleet import LocalFleet
from profiler.zoo import recipes as zoo

ENGINE = "onnx_digits"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_each_agent_runs_engines_on_its_own_cores(tmp_path: Path) -> None:
    models = tmp_path / "models"
    zoo.build(ENGINE, models)
    cores = dict(zip(("first", "second"), sorted(os.sched_getaffinity(0)), strict=False))
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        for name, core in cores.items():
            fleet.start_agent(name, models=models, options=["--cores", str(core)])
        fleet.wait_for_workers(2)
        with synergai.SyncClient(fleet.address) as client:
            assert [worker.cores for worker in client.workers()] == [1, 1]
            jobs = [client.submit(ENGINE, queries=20_000) for _ in range(3)]
            for job in jobs:
                job.wait().raise_unless_succeeded()
            executions = [each for job in jobs for each in job.status().executions]
        assert {each.worker_id for each in executions} == cores.keys()
        assert {str(each.configuration) for each in executions} == {"threads=1"}
        for name, core in cores.items():
            hosts = [
                each
                for each in psutil.Process(fleet.agents[name].pid).children(recursive=True)
                if "worker_agent.host.main" in each.cmdline()
            ]
            assert {tuple(each.cpu_affinity()) for each in hosts} == {(core,)}

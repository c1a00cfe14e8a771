"""Switching of a worker to the planned power mode; needs permission to create cgroups."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import grpc

from synergai.domain import Configuration, EngineName
from synergai.protocol import converters
from synergai.testing import LocalFleet
from synergai.v1 import fleet_pb2, fleet_pb2_grpc
from synergai.zoo import build as zoo
from tests.cores import new_entry

ENGINE = EngineName("onnx_digits")
MODES = {"1cpu": 2000.0, "0.2cpu": 300.0}


def profile(fleet: LocalFleet, figures: dict[str, float]) -> None:
    entries = [
        new_entry(ENGINE, "local", qps, Configuration(1, mode), model_load_s=0.2)
        for mode, qps in figures.items()
    ]
    dictionary = fleet_pb2.Dictionary(entries=map(converters.profile_entry_to_proto, entries))
    with grpc.insecure_channel(fleet.address) as channel:
        fleet_pb2_grpc.FleetStub(channel).PutDictionary(dictionary, timeout=10)


class JobReport(TypedDict):
    """A job as ``synergai submit --json`` shows it, as far as it is used here."""

    state: str
    executions: list[ExecutionReport]


class ExecutionReport(TypedDict):
    """One of its executions."""

    configuration: dict[str, str]


def submit(fleet: LocalFleet, qos: float) -> JobReport:
    command = [sys.executable, "-m", "synergai", "submit", ENGINE, "--target", fleet.address]
    options = ["--queries", "300", "--qos", str(qos), "--watch", "--json"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    job: JobReport = json.loads(done.stdout)
    return job


def modes_of(job: JobReport) -> list[str]:
    assert job["state"] == "succeeded"
    return [execution["configuration"]["power_mode"] for execution in job["executions"]]


def test_a_job_runs_in_the_planned_mode(tmp_path: Path) -> None:
    zoo.build(ENGINE, tmp_path / "models")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        modes = ["--threads", "1", "--power", "cgroup", "--power-modes", ",".join(MODES)]
        fleet.start_agent("board", models=tmp_path / "models", options=modes)
        fleet.wait_for_workers(1)
        profile(fleet, {"0.2cpu": MODES["0.2cpu"]})
        assert modes_of(submit(fleet, qos=60)) == ["0.2cpu"]
        profile(fleet, MODES)
        assert modes_of(submit(fleet, qos=60)) == ["1cpu"]

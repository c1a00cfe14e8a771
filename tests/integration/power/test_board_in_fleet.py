"""An emulated board as a worker: modes, power and energy at the gateway."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from demo.local_fleet import LocalFleet
from profiler.dictionary.files import add_to_dictionary
from profiler.zoo import recipes as zoo
from synergai.client.fleet import WorkerStatus, worker_from_proto
from synergai.domain import Configuration, EngineName
from synergai.v1 import fleet_pb2, fleet_pb2_grpc, jobs_pb2, jobs_pb2_grpc
from tests.cores import new_entry
from tests.emulated_board.board import EmulatedBoard
from tests.http1 import text_of
from tests.waiting import wait_until

ENGINE = EngineName("onnx_identity")
QPS = {"MODE_10W_4CORE": 1000.0, "MODE_20W_2CORE": 100_000.0}


@pytest.fixture
def fleet(nx: EmulatedBoard, tmp_path: Path) -> Iterator[LocalFleet]:
    zoo.build(ENGINE, tmp_path / "models")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway(["--heartbeat-s", "0.5"])
        board = ["env", f"SYNERGAI_AGENT_ROOT={nx.root}"]
        options = ["--power-modes", ",".join(QPS), "--threads", "1"]
        fleet.start_agent("nx-1", models=tmp_path / "models", options=options, prefix=board)
        fleet.wait_for_workers(1)
        yield fleet


def board_when(fleet: LocalFleet, condition: Callable[[WorkerStatus], bool]) -> WorkerStatus:
    """Poll the board's status, as `synergai workers` shows it, until `condition` holds."""
    deadline = time.monotonic() + 20
    with grpc.insecure_channel(fleet.address) as channel:
        stub = fleet_pb2_grpc.FleetStub(channel)
        while True:
            answer = stub.ListWorkers(fleet_pb2.ListWorkersRequest(), timeout=60)
            board = worker_from_proto(answer.workers[0])
            if condition(board):
                return board
            assert time.monotonic() < deadline, board
            time.sleep(0.02)


def run_job(fleet: LocalFleet) -> jobs_pb2.Job:
    entries = [new_entry(ENGINE, "local", qps, Configuration(1, mode)) for mode, qps in QPS.items()]
    add_to_dictionary(fleet.directory / "gateway" / "dictionary.db", entries)
    spec = jobs_pb2.JobSpec(engine=ENGINE, queries=20_000)
    with grpc.insecure_channel(fleet.address) as channel:
        profiles = fleet_pb2_grpc.FleetStub(channel)
        wait_until(lambda: profiles.GetDictionary(fleet_pb2.GetDictionaryRequest()).entries)
        jobs = jobs_pb2_grpc.JobsStub(channel)
        job = jobs.Submit(jobs_pb2.SubmitRequest(spec=spec), timeout=60)
        *_, last = jobs.Watch(jobs_pb2.WatchRequest(job_id=job.id), timeout=60)
    return last


def test_a_board_shows_its_mode_switches_power_and_energy(
    fleet: LocalFleet, nx: EmulatedBoard
) -> None:
    board = board_when(fleet, lambda board: board.watts is not None and board.watts > 0)
    assert (board.power_mode, board.switch_s) == ("MODE_10W_4CORE", 0.0)
    assert board.meter == "INA3221 (VDD_IN)"
    assert board.watts == pytest.approx(5.06, rel=0.05)

    job = run_job(fleet)
    assert job.state == jobs_pb2.JOB_STATE_SUCCEEDED
    assert [each.configuration.power_mode for each in job.executions] == ["MODE_20W_2CORE"]

    board = board_when(fleet, lambda board: board.power_mode == "MODE_20W_2CORE")
    assert board.switch_s > 1.0  # the board is given a second to settle
    assert "nvpmodel -m 6" in nx.calls()

    text = text_of(fleet.http_address, "/metrics")
    assert re.search(r'synergai_worker_energy_joules_total{worker="nx-1"} \d', text)

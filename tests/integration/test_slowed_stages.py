"""A stage that is slowed down in the middle of a job."""

from pathlib import Path

import numpy as np

import synergai
from benchmarks.emulated_stages import INPUT, slow_down, write_stages
from demo.local_fleet import LocalFleet
from synergai.names import stage_name
from tests.waiting import wait_until

BLOCKS, BLOCK_S = 12, 0.004
EVEN, FOR_A_SLOW_HEAD = 6, 3
QUERIES = 150


def test_job_moves_away_from_a_stage_at_a_third_of_its_speed_and_loses_no_query(
    tmp_path: Path,
) -> None:
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        for name in ("head", "tail"):
            cuts = (EVEN, FOR_A_SLOW_HEAD)
            stages = [(0, cut) if name == "head" else (cut, BLOCKS) for cut in cuts]
            times = {stage: [BLOCK_S * (stage[1] - stage[0])] for stage in (*stages, (0, BLOCKS))}
            write_stages(tmp_path / name, "net", [40] * (BLOCKS + 1), times, stages)
            fleet.start_agent(name, models=tmp_path / name, options=["--threads", "1"])
        fleet.wait_for_workers(2)
        with synergai.SyncClient(fleet.address) as client:
            for cut in (EVEN, FOR_A_SLOW_HEAD):
                client.load(stage_name("net", 0, cut))
                client.load(stage_name("net", cut, BLOCKS))
            inputs = [{INPUT: np.zeros((1, 10), np.float32)}] * QUERIES
            job = client.submit("net", inputs=inputs)
            wait_until(lambda: job.status().queries_done > 10)
            assert job.status().stages[0] == stage_name("net", 0, EVEN)
            slow_down(tmp_path / "head", 3.0)
            wait_until(lambda: job.status().stages[0] == stage_name("net", 0, FOR_A_SLOW_HEAD))
            results = list(job.results())
            assert [index for index, _ in results] == list(range(QUERIES))
            assert not any(result.error for _, result in results)
            job.wait().raise_unless_succeeded()

"""Jobs that move to another chain of stages while they run."""

from pathlib import Path

import numpy as np

import synergai
from demo.local_fleet import LocalFleet
from tests.chains import ENGINE, write_stages
from tests.waiting import wait_until

TENSOR = 32 << 10
QUERIES = 250


def test_job_moves_to_a_better_chain_when_a_worker_joins(tmp_path: Path) -> None:
    stages = {"first": [(0, 1), (0, 2)], "last": [(2, 3)], "middle": [(1, 2)]}
    models = {
        name: write_stages(tmp_path / name, cuts, segment_s=0.02, tensor_bytes=TENSOR, segments=3)
        for name, cuts in stages.items()
    }
    images = np.random.default_rng(0).random((8, 1, TENSOR // 4), dtype=np.float32)
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway()
        for name in ("first", "last"):
            fleet.start_agent(name, models=models[name], options=["--threads", "1"])
        fleet.wait_for_workers(2)
        with synergai.SyncClient(fleet.address) as client:
            inputs = [{"cut0": images[number % 8]} for number in range(QUERIES)]
            job = client.submit(ENGINE, inputs=inputs)
            wait_until(lambda: job.status().queries_done > 0)
            assert list(job.status().stages) == [f"{ENGINE}.s0-2", f"{ENGINE}.s2-3"]
            fleet.start_agent("middle", models=models["middle"], options=["--threads", "1"])
            chain = [f"{ENGINE}.s{place}-{place + 1}" for place in range(3)]
            wait_until(lambda: list(job.status().stages) == chain)
            assert "in the next best of 2 chains" in job.status().choice
            results = dict(job.results())
            assert sorted(results) == list(range(QUERIES))
            for index, result in results.items():
                np.testing.assert_array_equal(result["cut3"], images[index % 8])

"""Ten thousand concurrent requests of one client."""

import asyncio
from pathlib import Path

import numpy as np
import psutil

import synergai
from synergai.testing import LocalFleet
from synergai.zoo.build import build

REQUESTS = 10_000
ENGINE = "onnx_identity"


async def test_ten_thousand_concurrent_requests_get_correct_results(tmp_path: Path) -> None:
    build(ENGINE, tmp_path / "models")
    with LocalFleet(tmp_path / "run") as fleet:
        fleet.start_gateway()
        fleet.start_agent("one", models=tmp_path / "models", options=["--threads", "1"])
        fleet.wait_for_workers(1)
        async with synergai.Client(fleet.address) as client:
            await client.infer(ENGINE, {"x": np.zeros(1, np.float32)})
            before = psutil.Process().memory_info().rss
            values = np.arange(REQUESTS, dtype=np.float32)
            requests = [client.infer(ENGINE, {"x": value.reshape(1)}) for value in values]
            results = await asyncio.gather(*requests)
        grown_mib = (psutil.Process().memory_info().rss - before) / (1 << 20)
    assert [result["y"][0] for result in results] == values.tolist()
    print(f"{grown_mib:.0f} MiB")
    assert grown_mib < 200, f"{grown_mib:.0f} MiB for {REQUESTS:,} requests"

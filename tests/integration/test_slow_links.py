"""A gateway and an agent with a slow link between them."""

import os
from pathlib import Path

from demo.local_fleet import LocalFleet
from profiler.zoo import recipes as zoo
from synergai.client.store import PlacedState
from synergai.client.sync import SyncClient
from synergai.models.manifest import pack
from tests.waiting import wait_until
from tests.wires import Wire

HEARTBEAT_S = 0.5
BYTES_PER_S = 100_000
SIZE = 700_000


def test_fetch_over_a_slow_link_costs_no_connection_and_continues_after_a_break(
    tmp_path: Path,
) -> None:
    zoo.build("onnx_identity", tmp_path, lambda _: None)
    (tmp_path / "onnx_identity" / "weights").write_bytes(os.urandom(SIZE))
    package = pack(tmp_path / "onnx_identity", "large", 1)
    (tmp_path / "models").mkdir()
    with LocalFleet(tmp_path / "fleet") as fleet, SyncClient(fleet.address) as client:
        fleet.start_gateway(["--heartbeat-s", str(HEARTBEAT_S)])
        with Wire(fleet.hub_address, BYTES_PER_S) as wire:
            fleet.hub_address = wire.address
            fleet.start_agent("edge", models=tmp_path / "models")

            def received(least: int) -> bool:
                [stored] = client.stored_engines().engines
                placed = stored.workers.get("edge")
                return placed is not None and placed.received >= least

            client.push_engine("large", 1, package.manifest.encode(), package.paths)
            wait_until(lambda: received(SIZE // 2))
            assert "retrying" not in fleet.log("edge").read_text()
            wire.break_off()
            fleet.wait_for_workers(1)
            [stored] = client.stored_engines().engines
            assert stored.workers["edge"].state is PlacedState.INSTALLED
            assert wire.passed < 1.5 * SIZE

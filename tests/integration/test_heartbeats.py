"""Heartbeats between gateway and agent processes."""

import signal
import time
from pathlib import Path

from synergai.testing import LocalFleet
from tests.tiny_tflite import save_sum

HEARTBEAT_S = 0.2


def test_stalled_gateway_keeps_its_workers(tmp_path: Path) -> None:
    (tmp_path / "models" / "plus").mkdir(parents=True)
    save_sum(tmp_path / "models" / "plus" / "model.tflite")
    with LocalFleet(tmp_path / "fleet") as fleet:
        fleet.start_gateway(["--heartbeat-s", str(HEARTBEAT_S)])
        fleet.start_agent("w1", models=tmp_path / "models")
        fleet.wait_for_workers(1)
        assert fleet.gateway is not None
        fleet.gateway.send_signal(signal.SIGSTOP)
        time.sleep(8 * HEARTBEAT_S)
        fleet.gateway.send_signal(signal.SIGCONT)
        time.sleep(2 * HEARTBEAT_S)
        fleet.wait_for_workers(1)
        said = fleet.log("w1").read_text() + fleet.log("gateway").read_text()
    assert "retrying" not in said
    assert "lost" not in said
    assert "left" not in said

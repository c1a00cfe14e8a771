"""Connections to the work port that never present a connection id."""

from __future__ import annotations

import re
import socket
from contextlib import ExitStack
from pathlib import Path

from synergai.testing import LocalFleet, free_port
from tests.tiny_tflite import save_sum

CONNECTIONS = 2000
ADDED_BYTES = 10_000_000


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) * 1024


def test_idle_connections_cost_little_and_do_not_lock_agents_out(tmp_path: Path) -> None:
    (tmp_path / "models" / "plus").mkdir(parents=True)
    save_sum(tmp_path / "models" / "plus" / "model.tflite")
    port = free_port()
    with LocalFleet(tmp_path / "fleet") as fleet, ExitStack() as stack:
        fleet.start_gateway(["--work-port", str(port)])
        assert fleet.gateway is not None
        before = resident_bytes(fleet.gateway.pid)
        for _ in range(CONNECTIONS):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10.0))
            idle.sendall(b"\x10")  # the beginning of a frame
        fleet.start_agent("w1", models=tmp_path / "models")
        fleet.wait_for_workers(1)
        assert resident_bytes(fleet.gateway.pid) - before < ADDED_BYTES

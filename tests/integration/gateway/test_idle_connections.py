"""Connections that are never used."""

import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

from demo.local_fleet import LocalFleet, reserved_port
from tests import http2
from tests.http1 import text_of
from tests.tiny_tflite import save_sum
from tests.waiting import wait_until

CONNECTIONS = 1000
ADDED_BYTES = 6_000_000


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found.group(1)) * 1024


def test_idle_connections_cost_little_and_do_not_lock_agents_out(tmp_path: Path) -> None:
    (tmp_path / "models" / "plus").mkdir(parents=True)
    save_sum(tmp_path / "models" / "plus" / "model.tflite")
    with (
        reserved_port() as port,
        LocalFleet(tmp_path / "fleet") as fleet,
        ExitStack() as stack,
    ):
        fleet.start_gateway(["--work-port", str(port)])
        assert fleet.gateway is not None
        before = resident_bytes(fleet.gateway.pid)
        for _ in range(CONNECTIONS):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10.0))
            idle.sendall(b"\x10")  # the beginning of a frame
        fleet.start_agent("w1", models=tmp_path / "models")
        fleet.wait_for_workers(1)
        assert resident_bytes(fleet.gateway.pid) - before < ADDED_BYTES


def metrics_of(fleet: LocalFleet) -> str:
    return text_of(fleet.http_address, "/metrics")


def test_idle_grpc_connections_lock_out_neither_agents_nor_health_checks(tmp_path: Path) -> None:
    (tmp_path / "models" / "plus").mkdir(parents=True)
    save_sum(tmp_path / "models" / "plus" / "model.tflite")
    few_descriptors = ("sh", "-c", 'ulimit -n 1024; exec "$@"', "sh")
    with LocalFleet(tmp_path / "fleet") as fleet, ExitStack() as stack:
        fleet.start_gateway([], few_descriptors)
        for _ in range(CONNECTIONS):
            with suppress(OSError):  # the gateway closes those beyond the limit
                stack.enter_context(http2.Http2Connection(fleet.address))
        fleet.start_agent("w1", models=tmp_path / "models")
        wait_until(lambda: "synergai_workers 1.0" in metrics_of(fleet))

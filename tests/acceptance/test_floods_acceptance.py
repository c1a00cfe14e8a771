"""Clients with thousands of requests, calls or frames, and what other clients notice of them."""

import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import synergai
from gateway.admission.connections import connection_limits
from synergai.runtime.processes import MAX_DESCRIPTORS
from synergai.testing import LocalFleet
from synergai.zoo.build import build
from tests.acceptance.frame_flood import KINDS
from tests.waiting import until

ENGINE = "onnx_identity"
REQUESTS = 10_000
RESETS = 50_000
FLOOD_S = 5.0
DEADLINE_S = 1.0
FLOOD_P99_S = 0.1
PEAK_BYTES = 150e6
INTERVAL_S = 0.01
P99_S = 0.25
MEMORY_GROWTH = 1.2
SETTLE_S = 15.0
IDLE_CONNECTIONS = 10_000
IDLE_S = 20.0
IDLE_BYTES = 40_000
"""Memory of the gateway for each idle connection."""


@contextlib.contextmanager
def running_fleet(folder: Path, server: str = "native") -> Iterator[LocalFleet]:
    build(ENGINE, folder / "models")
    with LocalFleet(folder / "run") as fleet:
        fleet.start_gateway(["--grpc-server", server])
        fleet.start_agent("one", models=folder / "models", options=["--threads", "1"])
        fleet.wait_for_workers(1)
        yield fleet


class Bystander:
    """A client that sends a request every ten milliseconds, and times them.

    Attributes:
        latencies: seconds of each completed request.
    """

    def __init__(self, client: synergai.Client) -> None:
        self._client = client
        self._running: set[asyncio.Task[None]] = set()
        self.latencies: list[float] = []

    async def run(self) -> None:
        """Send requests until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(self._send())
                await asyncio.sleep(INTERVAL_S)

    async def _send(self) -> None:
        began = time.monotonic()
        await self._client.infer(ENGINE, {"x": np.zeros(1, np.float32)}, deadline=DEADLINE_S)
        self.latencies.append(time.monotonic() - began)


@contextlib.asynccontextmanager
async def bystander(fleet: LocalFleet) -> AsyncIterator[Bystander]:
    """Run a bystander; its requests must all succeed."""
    async with synergai.Client(fleet.address, attempts=1) as client:
        other = Bystander(client)
        running = asyncio.create_task(other.run())
        await until(lambda: len(other.latencies) >= 200, 0.05)
        other.latencies.clear()
        yield other
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def gateway_process(fleet: LocalFleet) -> psutil.Process:
    assert fleet.gateway is not None
    return psutil.Process(fleet.gateway.pid)


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@pytest.mark.parametrize("server", ["grpcio", "native"])
async def test_fifty_thousand_reset_calls_delay_no_other_client(
    tmp_path: Path, server: str
) -> None:
    script = Path(__file__).with_name("reset_calls.py")
    with running_fleet(tmp_path, server) as fleet:
        gateway = gateway_process(fleet)
        async with bystander(fleet) as other:
            rss, cpu = gateway.memory_info().rss, cpu_s(gateway)
            command = (str(script), fleet.address, str(RESETS), ENGINE)
            flood = await asyncio.create_subprocess_exec(sys.executable, *command)
            assert await flood.wait() == 0
            during = sorted(other.latencies)
            await asyncio.sleep(SETTLE_S)
        grown = gateway.memory_info().rss / rss
        p99 = during[int(0.99 * len(during))]
        print(
            f"p99 {p99 * 1e3:.0f} ms and at most {max(other.latencies) * 1e3:.0f} ms, "
            f"memory x {grown:.2f}, {cpu_s(gateway) - cpu:.1f} s of CPU time in all"
        )
        said = fleet.log("gateway").read_text()
    assert p99 <= P99_S
    assert grown <= MEMORY_GROWTH
    assert "lost" not in said
    assert "has left" not in said


def peak_bytes(process: psutil.Process) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak) * 1024


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize(
    ("port", "server"), [("clients", "grpcio"), ("clients", "native"), ("agents", "grpcio")]
)
async def test_flood_of_frames_delays_no_other_client(
    tmp_path: Path, port: str, server: str, kind: str
) -> None:
    with running_fleet(tmp_path, server) as fleet:
        gateway = gateway_process(fleet)
        address = fleet.address if port == "clients" else fleet.hub_address
        async with bystander(fleet) as other:
            command = ("-m", "tests.acceptance.frame_flood", address, str(FLOOD_S), kind)
            flood = await asyncio.create_subprocess_exec(sys.executable, *command)
            assert await flood.wait() == 0
            during = sorted(other.latencies)
        peak = peak_bytes(gateway)
        p99 = during[int(0.99 * len(during))]
        print(
            f"{kind} on the port of {port}, {server}: {len(during)} requests, "
            f"p99 {p99 * 1e3:.0f} ms, at most {during[-1] * 1e3:.0f} ms, "
            f"{peak / 1e6:.0f} MB at the peak"
        )
    assert p99 <= FLOOD_P99_S
    assert peak <= PEAK_BYTES


@pytest.mark.parametrize("server", ["grpcio", "native"])
async def test_ten_thousand_idle_connections_delay_no_other_client(
    tmp_path: Path, server: str
) -> None:
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)  # the gateway's limit
    room = connection_limits(min(descriptors, MAX_DESCRIPTORS), native=server == "native").clients
    with running_fleet(tmp_path, server) as fleet:
        gateway = gateway_process(fleet)
        async with bystander(fleet) as other:
            rss = gateway.memory_info().rss
            command = ("-m", "tests.acceptance.idle_connections", fleet.address)
            idle = await asyncio.create_subprocess_exec(
                sys.executable,
                *(*command, str(IDLE_CONNECTIONS), str(IDLE_S)),
                stdout=asyncio.subprocess.PIPE,
            )
            output, _ = await idle.communicate()
            opening = sorted(other.latencies)
        peak = peak_bytes(gateway)
    found = json.loads(output)
    expected = min(IDLE_CONNECTIONS, room - 1)
    each = (peak - rss) / expected
    p99 = opening[int(0.99 * len(opening))]
    print(
        f"{server}: {found['open']:,} connections open, opened in {found['open_s']} s, "
        f"{each / 1e3:.1f} kB each, {len(opening)} other requests, p99 {p99 * 1e3:.0f} ms, "
        f"at most {opening[-1] * 1e3:.0f} ms"
    )
    assert expected - 2 <= found["open"] <= expected
    assert p99 <= P99_S
    assert each <= IDLE_BYTES


async def test_ten_thousand_concurrent_requests_get_correct_results(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
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

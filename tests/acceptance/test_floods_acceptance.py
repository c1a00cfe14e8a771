"""Clients with thousands of requests, calls or frames, and what other clients notice of them."""

import asyncio
import contextlib
import hashlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import synergai
from demo.local_fleet import LocalFleet
from gateway.grpc_server import connection_limits
from profiler.zoo.recipes import build
from synergai.runtime.resources import MAX_DESCRIPTORS
from tests.acceptance.floods import ENGINE, KINDS
from tests.acceptance.overload import DEADLINE_MS, QUERY_S, LoadReport
from tests.acceptance.overload import ENGINE as EMULATED
from tests.emulated_engines import write_emulated_engines
from tests.http1 import text_of
from tests.waiting import until, wait_until

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
def running_fleet(folder: Path) -> Iterator[LocalFleet]:
    build(ENGINE, folder / "models")
    with LocalFleet(folder / "run") as fleet:
        fleet.start_gateway()
        fleet.start_agent("one", models=folder / "models", options=["--threads", "1"])
        fleet.wait_for_workers(1)
        yield fleet


class Bystander:
    """A client that sends a request every ten milliseconds, and times them."""

    def __init__(self, client: synergai.Client) -> None:
        self._client = client
        self.latencies: list[float] = []

    async def run(self) -> None:
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


async def flood(kind: str, address: str, seconds: float, *what: object) -> dict[str, float]:
    """Flood an address from a process of its own; return what that prints."""
    command = ("-m", "tests.acceptance.floods", kind, address, str(seconds), *map(str, what))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    found: dict[str, float] = json.loads(output)
    return found


def gateway_process(fleet: LocalFleet) -> psutil.Process:
    assert fleet.gateway is not None
    return psutil.Process(fleet.gateway.pid)


def peak_bytes(process: psutil.Process) -> int:
    """Return the most memory that a process has had."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak) * 1024


async def test_fifty_thousand_reset_calls_delay_no_other_client(tmp_path: Path) -> None:
    with running_fleet(tmp_path) as fleet:
        gateway = gateway_process(fleet)
        async with bystander(fleet) as other:
            rss = gateway.memory_info().rss
            await flood("resets", fleet.address, 0.0, RESETS)
            during = sorted(other.latencies)
            await asyncio.sleep(SETTLE_S)
        grown = gateway.memory_info().rss / rss
        said = fleet.log("gateway").read_text()
        p99 = during[int(0.99 * len(during))]
        print(
            f"p99 {p99 * 1e3:.0f} ms and at most {max(other.latencies) * 1e3:.0f} ms, "
            f"memory x {grown:.2f}"
        )
    assert p99 <= P99_S
    assert grown <= MEMORY_GROWTH
    assert "lost" not in said
    assert "has left" not in said


@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("port", ["clients", "agents"])
async def test_flood_of_frames_delays_no_other_client(tmp_path: Path, port: str, kind: str) -> None:
    with running_fleet(tmp_path) as fleet:
        gateway = gateway_process(fleet)
        address = fleet.address if port == "clients" else fleet.hub_address
        async with bystander(fleet) as other:
            await flood("frames", address, FLOOD_S, kind)
            during = sorted(other.latencies)
        peak, said = peak_bytes(gateway), fleet.log("gateway").read_text()
        p99 = during[int(0.99 * len(during))]
        print(
            f"{kind} on the port of {port}: {len(during)} requests, "
            f"p99 {p99 * 1e3:.0f} ms, at most {during[-1] * 1e3:.0f} ms, "
            f"{peak / 1e6:.0f} MB at the peak"
        )
    assert p99 <= FLOOD_P99_S
    assert peak <= PEAK_BYTES
    assert "lost" not in said
    assert "has left" not in said


async def test_ten_thousand_idle_connections_delay_no_other_client(tmp_path: Path) -> None:
    _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)  # the gateway's limit
    room = connection_limits(min(descriptors, MAX_DESCRIPTORS)).clients
    with running_fleet(tmp_path) as fleet:
        gateway = gateway_process(fleet)
        async with bystander(fleet) as other:
            rss = gateway.memory_info().rss
            found = await flood("idle", fleet.address, IDLE_S, IDLE_CONNECTIONS)
            opening = sorted(other.latencies)
        peak = peak_bytes(gateway)
    expected = min(IDLE_CONNECTIONS, room - 1)
    each = (peak - rss) / expected
    p99 = opening[int(0.99 * len(opening))]
    print(
        f"{found['open']:,} connections open, opened in {found['open_s']} s, "
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


# --- tenants ------------------------------------------------------------------------------------

TENANT_S = 15.0
QUIET_RATE = 10.0
"""Requests per second of the quiet tenant, a quarter of the capacity."""
GOODPUT_SHARE = 0.95
MAX_AUDIT_LINES = 100 * TENANT_S

TABLE = """
[[clients]]
name = "quiet"
token_sha256 = "{quiet}"

[[clients]]
name = "noisy"
token_sha256 = "{noisy}"

[[grants]]
to = ["quiet", "noisy"]
roles = ["infer", "submit", "observe"]

[tenants.quiet]
requests_per_s = 1000

[tenants.noisy]
requests_per_s = 5
bytes_per_s = 1e6
requests_in_flight = 4
streams = 2
connections = 2
unfinished_jobs = 1
queries_per_job = 100
"""


def measure(address: str, token: str) -> LoadReport:
    command = [
        *(sys.executable, "-m", "synergai", "load", EMULATED, "--target", address),
        *("--deadline-ms", str(DEADLINE_MS), "--late-ms", "100", "--json"),
        *("--rate", str(QUIET_RATE), "--duration", str(TENANT_S)),
    ]
    environment = {**os.environ, "SYNERGAI_TOKEN": token}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    report: LoadReport = json.loads(done.stdout)
    return report


def described(report: LoadReport) -> str:
    p99_ms = 1e3 * report["latency_s"]["99.0"]
    return (
        f"goodput {report['goodput']:.1f}/s of {report['offered']:.1f}/s, p99 {p99_ms:.0f} ms, "
        f"{report['rejected']} rejected, {report['late'] + report['expired']} late"
    )


async def test_flood_of_one_tenant_leaves_goodput_and_latency_of_another(tmp_path: Path) -> None:
    write_emulated_engines(tmp_path, {EMULATED: QUERY_S})
    table, audit = tmp_path / "access.toml", tmp_path / "audit.log"
    hashes = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("quiet", "noisy")}
    table.write_text(TABLE.format(**hashes))
    options = ["--dictionary", str(tmp_path / "dictionary.db"), "--access", str(table)]
    with LocalFleet(tmp_path / "run") as fleet:
        fleet.start_gateway([*options, "--audit-log", str(audit)])
        worker_options = ["--threads", "1"]
        fleet.start_agent("one", models=tmp_path / "models", options=worker_options)
        wait_for_engine(fleet)
        alone = measure(fleet.address, "quiet")
        noisy = flood("tenant", fleet.address, TENANT_S + 10, "noisy", EMULATED)
        codes, flooded = await asyncio.gather(
            noisy, asyncio.to_thread(measure, fleet.address, "quiet")
        )
        metrics = read_metrics(fleet)
    print(f"capacity {1 / QUERY_S:g}/s; alone: {described(alone)}")
    print(f"during the flood: {described(flooded)}")
    print(f"the flood: {codes}")
    lines = audit.read_text().splitlines()
    counted = sum(json.loads(line)["count"] for line in lines)
    print(f"audit log: {len(lines):,} lines for {counted:,} changes and refusals")
    assert flooded["goodput"] >= GOODPUT_SHARE * alone["goodput"]
    assert flooded["latency_s"]["99.0"] * 1e3 <= DEADLINE_MS
    assert not flooded["rejected"]
    for kind in ("request", "submit", "stream", "message"):
        assert codes[f"{kind} RESOURCE_EXHAUSTED"] > 10
    refused = sum(count for code, count in codes.items() if code.endswith("RESOURCE_EXHAUSTED"))
    assert counted >= refused
    assert len(lines) <= MAX_AUDIT_LINES
    assert 'synergai_quota_rejections_total{quota="streams",tenant="noisy"}' in metrics
    assert "synergai_audit_dropped_total 0.0" in metrics


def wait_for_engine(fleet: LocalFleet) -> None:
    """Wait until the agent's engine is in service; `wait_for_workers` has no token."""
    command = [
        *(sys.executable, "-m", "synergai", "infer", EMULATED, "--target", fleet.address),
        *("--input", "[1]", "--deadline", "60"),
    ]
    environment = {**os.environ, "SYNERGAI_TOKEN": "quiet"}

    def is_answered() -> bool:
        answer = subprocess.run(command, capture_output=True, check=False, env=environment)
        return answer.returncode == 0

    wait_until(is_answered, fault=f"no answer; see {fleet.log('gateway')}")


def read_metrics(fleet: LocalFleet) -> str:
    return text_of(fleet.http_address, "/metrics", {"authorization": "Bearer quiet"})

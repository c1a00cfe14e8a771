"""Two tenants on one gateway: one floods it, and the other does not notice."""

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

from synergai.testing import LocalFleet
from tests.acceptance.overload import DEADLINE_MS, ENGINE, QUERY_S, LoadReport
from tests.emulated_engines import write_emulated_engines

SECONDS = 15.0
RATE = 10.0
"""Requests per second of the quiet tenant, a quarter of the capacity."""
GOODPUT_SHARE = 0.95
MAX_AUDIT_LINES = 100 * SECONDS

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
    """Run ``synergai load`` as the quiet tenant; return its report."""
    command = [
        *(sys.executable, "-m", "synergai", "load", ENGINE, "--target", address),
        *("--deadline-ms", str(DEADLINE_MS), "--late-ms", "100", "--json"),
        *("--rate", str(RATE), "--duration", str(SECONDS)),
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


def test_flood_of_one_tenant_leaves_goodput_and_latency_of_another(tmp_path: Path) -> None:
    write_emulated_engines(tmp_path, {ENGINE: QUERY_S})
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
        script = str(Path(__file__).with_name("tenant_flood.py"))
        command = [sys.executable, script, fleet.address, str(SECONDS + 10), "noisy", ENGINE]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
            flooded = measure(fleet.address, "quiet")
            codes = json.loads(flood.communicate(timeout=120)[0])
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
        *(sys.executable, "-m", "synergai", "infer", ENGINE, "--target", fleet.address),
        *("--input", "[1]", "--deadline", "60"),
    ]
    environment = {**os.environ, "SYNERGAI_TOKEN": "quiet"}
    deadline = time.monotonic() + 60
    while subprocess.run(command, capture_output=True, check=False, env=environment).returncode:
        assert time.monotonic() < deadline, f"no answer; see {fleet.log('gateway')}"


def read_metrics(fleet: LocalFleet) -> str:
    """Return the gateway's metrics."""
    url = f"http://{fleet.http_address}/metrics"
    request = Request(url, headers={"authorization": "Bearer quiet"})
    with urlopen(request, timeout=30) as response:
        text: str = response.read().decode()
    return text

"""Alerts and dashboard with a real Prometheus, which scrapes a real gateway."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Empty, Queue
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest

from demo.local_fleet import LocalFleet, reserved_port
from profiler.zoo import recipes as zoo
from synergai import SyncClient
from synergai.domain import EngineName
from synergai.errors import DeadlineExceeded, Overloaded
from tests.emulated_board.board import EmulatedBoard
from tests.emulated_board.kinds import XAVIER_NX
from tests.emulated_engines import write_emulated_engines

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "synergai.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "synergai.json"
PROGRAMS = ("promtool", "prometheus", "prometheus-alertmanager")
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason=f"needs {', '.join(PROGRAMS)}"
)


@pytest.mark.parametrize("what", ["check", "test"])
def test_rules_pass_promtool(what: str) -> None:
    name = RULES.name if what == "check" else "synergai.rules.test.yml"
    subprocess.run(["promtool", what, "rules", str(RULES.with_name(name))], check=True)


@contextmanager
def running(*command: str, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)


@contextmanager
def prometheus(directory: Path, fleet: LocalFleet, more: str = "") -> Iterator[str]:
    """Run a Prometheus that scrapes a gateway every second; yield its address.

    Args:
        more: further configuration.
    """
    (directory / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
scrape_configs:
  - job_name: synergai
    static_configs: [{{targets: ["{fleet.http_address}"]}}]
{more}
""")
    with (
        reserved_port() as port,
        running(
            "prometheus",
            f"--config.file={directory}/prometheus.yml",
            f"--storage.tsdb.path={directory}/prometheus",
            f"--web.listen-address=127.0.0.1:{port}",
            log=directory / "prometheus.log",
        ),
    ):
        yield f"127.0.0.1:{port}"


@contextmanager
def webhook() -> Iterator[tuple[int, Queue[tuple[str, str]]]]:
    """Receive alerts; yield the port, and a queue of their names and states."""
    received: Queue[tuple[str, str]] = Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for alert in body["alerts"]:
                received.put((alert["labels"]["alertname"], alert["status"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, received
    finally:
        server.shutdown()
        server.server_close()


def wait_for(wanted: tuple[str, str], received: Queue[tuple[str, str]]) -> None:
    deadline = time.monotonic() + 90.0
    seen = []
    while time.monotonic() < deadline:
        try:
            seen.append(received.get(timeout=1.0))
        except Empty:
            continue
        if seen[-1] == wanted:
            return
    raise AssertionError(f"{wanted} did not arrive, but {seen}")


def test_lost_worker_reaches_a_webhook_and_so_does_its_return(tmp_path: Path) -> None:
    models, _ = write_emulated_engines(tmp_path, {EngineName("any"): 0.01})
    # Without the minutes for which a cause has to last.
    rules = re.sub(r"(?m)^ +for: .*\n", "", RULES.read_text())
    (tmp_path / "rules.yml").write_text(rules)
    with (
        webhook() as (port, received),
        reserved_port() as alertmanager,
        LocalFleet(tmp_path / "fleet") as fleet,
    ):
        fleet.start_gateway()
        fleet.start_agent("one", models=models)
        fleet.wait_for_workers(1)
        (tmp_path / "alertmanager.yml").write_text(f"""
route: {{receiver: hook, group_wait: 1s, group_interval: 1s, group_by: [alertname]}}
receivers:
  - name: hook
    webhook_configs: [{{url: "http://127.0.0.1:{port}/", send_resolved: true}}]
""")
        more = f"""
rule_files: [rules.yml]
alerting:
  alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]}}]
"""
        with (
            running(
                "prometheus-alertmanager",
                f"--config.file={tmp_path}/alertmanager.yml",
                f"--storage.path={tmp_path}/alertmanager",
                f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
                log=tmp_path / "alertmanager.log",
            ),
            prometheus(tmp_path, fleet, more),
        ):
            fleet.kill("one")
            wait_for(("SynergaiNoWorkers", "firing"), received)
            fleet.start_agent("one", models=models)
            wait_for(("SynergaiNoWorkers", "resolved"), received)


def panel_queries() -> list[str]:
    """Return the expressions of the dashboard, for all gateways and the last 20 s."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [q.replace("$gateway", ".*").replace("$__rate_interval", "20s") for q in queries]


def put_under_load(client: SyncClient, seconds: float) -> None:
    """Send requests and jobs, a tenth of the requests with a deadline that cannot be met."""
    numbers = np.zeros(1, np.float32)
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        count += 1
        if count % 100 == 0:
            client.submit("onnx_identity", queries=1000, qos=60.0)
        with suppress(DeadlineExceeded, Overloaded):
            client.infer("onnx_identity", {"x": numbers}, deadline=1e-4 if count % 10 == 0 else 1.0)
        time.sleep(0.01)


def test_no_panel_of_the_dashboard_is_empty_under_load(tmp_path: Path) -> None:
    board = EmulatedBoard.create(XAVIER_NX, tmp_path / "nx")
    zoo.build(EngineName("onnx_identity"), tmp_path / "models")
    zoo.build(EngineName("onnx_identity"), tmp_path / "more")
    with (
        LocalFleet(tmp_path / "fleet") as fleet,
        prometheus(tmp_path, fleet) as address,
    ):
        fleet.start_gateway(["--store", str(tmp_path / "store")])
        fleet.start_agent(
            "nx",
            models=tmp_path / "models",
            prefix=["env", f"SYNERGAI_AGENT_ROOT={board.root}"],
        )
        fleet.wait_for_workers(1)
        push = ["engines", "push", str(tmp_path / "more" / "onnx_identity"), "--name", "pushed"]
        command = [sys.executable, "-m", "synergai", *push, "--target", fleet.address]
        subprocess.run(command, check=True)
        with SyncClient(fleet.address) as client:
            put_under_load(client, 15.0)
        empty = []
        for query in panel_queries():
            url = f"http://{address}/api/v1/query?{urlencode({'query': query})}"
            with urlopen(url, timeout=10) as answer:
                result = json.load(answer)["data"]["result"]
            if not any(series["value"][1] != "NaN" for series in result):
                empty.append(query)
    assert not empty

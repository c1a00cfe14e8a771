"""Alerts: their rules under promtool, and one from a real gateway's metrics to a webhook."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Empty, Queue

import pytest

from synergai.domain import EngineName
from synergai.testing import LocalFleet, reserved_port
from tests.emulated_engines import write_emulated_engines

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "synergai.rules.yml"
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
        reserved_port() as prometheus,
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
        (tmp_path / "prometheus.yml").write_text(f"""
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [rules.yml]
alerting:
  alertmanagers: [{{static_configs: [{{targets: ["127.0.0.1:{alertmanager}"]}}]}}]
scrape_configs:
  - job_name: synergai
    static_configs: [{{targets: ["{fleet.http_address}"]}}]
""")
        with (
            running(
                "prometheus-alertmanager",
                f"--config.file={tmp_path}/alertmanager.yml",
                f"--storage.path={tmp_path}/alertmanager",
                f"--web.listen-address=127.0.0.1:{alertmanager}",
                "--cluster.listen-address=",
                log=tmp_path / "alertmanager.log",
            ),
            running(
                "prometheus",
                f"--config.file={tmp_path}/prometheus.yml",
                f"--storage.tsdb.path={tmp_path}/prometheus",
                f"--web.listen-address=127.0.0.1:{prometheus}",
                log=tmp_path / "prometheus.log",
            ),
        ):
            fleet.kill("one")
            wait_for(("SynergaiNoWorkers", "firing"), received)
            fleet.start_agent("one", models=models)
            wait_for(("SynergaiNoWorkers", "resolved"), received)

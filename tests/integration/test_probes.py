"""Probes of a gateway and an agent, as the kubelet asks them."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from demo.local_fleet import reserved_port
from profiler.zoo.recipes import build
from synergai.domain import EngineName
from tests.http1 import fetch
from tests.postgresql import PostgresqlServer
from tests.waiting import wait_until

ANY = "127.0.0.1:0"
SILENCE_S = 0.5


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with ExitStack() as reserved:
        yield [reserved.enter_context(reserved_port()) for _ in range(3)]


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-m", "synergai", *command]) as process:
        try:
            yield process
        finally:
            process.kill()


def gateway(state: Path, hub: int, probes: int) -> list[str]:
    own = ["--listen", ANY, "--http", ANY, "--hub", f"127.0.0.1:{hub}", "--state", str(state)]
    return ["gateway", *own, "--probes", f"127.0.0.1:{probes}"]


def ask(port: int, path: str, timeout: float = 20.0) -> int:
    """Return the status of an answer; 0 if there is none."""
    with suppress(OSError, HTTPException):
        return fetch(f"127.0.0.1:{port}", path, timeout=timeout).status
    return 0


def test_hung_gateway_accepts_probes_and_does_not_answer_them(
    tmp_path: Path, ports: list[int]
) -> None:
    hub, probes, _ = ports
    with running(*gateway(tmp_path, hub, probes)) as process:
        wait_until(lambda: ask(probes, "/readyz") == 200)
        assert ask(probes, "/livez") == 200
        assert ask(probes, "/") == 404
        process.send_signal(signal.SIGSTOP)
        assert ask(probes, "/livez", SILENCE_S) == 0
        process.send_signal(signal.SIGCONT)
        assert ask(probes, "/livez") == 200


def test_gateway_that_waits_for_its_state_is_alive_and_not_ready(
    tmp_path: Path, ports: list[int]
) -> None:
    _, first, second = ports
    with running(*gateway(tmp_path, 0, first)) as former:
        wait_until(lambda: ask(first, "/readyz") == 200)
        with running(*gateway(tmp_path, 0, second)):
            wait_until(lambda: ask(second, "/livez") == 200)
            assert ask(second, "/readyz") == 503
            former.terminate()
            wait_until(lambda: ask(second, "/readyz") == 200)


def test_leader_and_standby_are_ready(
    tmp_path: Path, ports: list[int], postgresql_server: PostgresqlServer
) -> None:
    _, first, second = ports
    postgresql_server.clear()
    shared = ["--journal", postgresql_server.url]
    with (
        running(*gateway(tmp_path / "a", 0, first), *shared),
        running(*gateway(tmp_path / "b", 0, second), *shared),
    ):
        wait_until(lambda: [ask(port, "/readyz") for port in (first, second)] == [200, 200])


def test_agent_is_ready_once_the_gateway_knows_its_engines(
    tmp_path: Path, ports: list[int]
) -> None:
    hub, probes, of_gateway = ports
    build(EngineName("onnx_identity"), tmp_path / "models")
    own = ["--gateway", f"127.0.0.1:{hub}", "--models", str(tmp_path / "models")]
    own += ["--state", str(tmp_path / "agent"), "--probes", f"127.0.0.1:{probes}"]
    with running("agent", *own):
        wait_until(lambda: ask(probes, "/livez") == 200)
        assert ask(probes, "/readyz") == 503
        with running(*gateway(tmp_path / "state", hub, of_gateway)):
            wait_until(lambda: ask(probes, "/readyz") == 200)
        wait_until(lambda: ask(probes, "/readyz") == 503)
        assert ask(probes, "/livez") == 200


def test_probes_beyond_the_limit_and_endless_ones_are_closed(
    tmp_path: Path, ports: list[int]
) -> None:
    hub, probes, _ = ports
    with running(*gateway(tmp_path, hub, probes)), ExitStack() as open_ones:
        wait_until(lambda: ask(probes, "/livez") == 200)
        for _ in range(64):
            connection = HTTPConnection("127.0.0.1", probes)
            connection.connect()
            open_ones.callback(connection.close)
        assert ask(probes, "/livez") == 0
        began = time.monotonic()
        wait_until(lambda: ask(probes, "/livez") == 200)
        assert time.monotonic() - began > 1.0

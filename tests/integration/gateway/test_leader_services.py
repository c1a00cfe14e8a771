"""The leader makes Services select its pod, at a server in place of Kubernetes' own."""

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gateway import standby
from gateway.standby import select_this_pod
from tests.waiting import until

TLS = Path(__file__).parents[1] / "tls"
TOKEN = "of the pod"


class Kubernetes(HTTPServer):
    """Has Services, and refuses the first patches."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Patches)
        self.refusals = 0
        self.patches: list[tuple[str, object]] = []
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(TLS / "server.pem", TLS / "server.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)


class _Patches(BaseHTTPRequestHandler):
    server: Kubernetes

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        kind = self.headers["content-type"], self.headers["authorization"]
        known = kind == ("application/merge-patch+json", f"Bearer {TOKEN}")
        refused = self.server.refusals > 0
        self.server.refusals -= 1
        self.send_response(409 if refused else 200 if known else 401)
        self.end_headers()
        if not refused:
            self.server.patches.append((self.path, body))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kubernetes]:
    with Kubernetes() as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
        monkeypatch.setattr(standby, "_RETRY_S", 0.01)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def account(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "namespace").write_text("inference")
    (tmp_path / "ca.crt").write_bytes((TLS / "ca.pem").read_bytes())
    return tmp_path


async def test_leader_patches_each_service_until_kubernetes_accepts(
    kubernetes: Kubernetes, account: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kubernetes.refusals = 2
    following = asyncio.create_task(select_this_pod(["a", "b"], account))
    try:
        await until(lambda: len(kubernetes.patches) == 2, 0.01)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    selector = {"statefulset.kubernetes.io/pod-name": socket.gethostname()}
    assert kubernetes.patches == [
        (f"/api/v1/namespaces/inference/services/{name}", {"spec": {"selector": selector}})
        for name in ("a", "b")
    ]
    assert caplog.text.count("Kubernetes answers 409 to a patch of the Service a") == 1


async def test_leader_repeats_its_patches(
    kubernetes: Kubernetes, account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "_AGAIN_S", 0.01)
    following = asyncio.create_task(select_this_pod(["a"], account))
    try:
        await until(lambda: len(kubernetes.patches) == 3, 0.01)
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following

"""Inputs by HTTP, from a server on loopback that redirects."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count

import pytest

from synergai.domain import TensorSpec
from synergai.errors import InvalidInput
from synergai.oip.inference_pb2 import ModelInferRequest
from tests.engines import new_engine
from worker_agent.hub_client.http_inputs import HttpInputs
from worker_agent.hub_client.input_reader import InputReader

TEXTS = new_engine(
    "texts", (TensorSpec("text", "BYTES", (-1,)),), (TensorSpec("y", "FP32", (-1,)),)
)


class Handler(BaseHTTPRequestHandler):
    """Serves ``/allowed``, has a secret elsewhere, and redirects to the hexadecimal ``to``."""

    def do_GET(self) -> None:
        _, _, target = self.path.partition("?to=")
        if target:
            self.send_response(302)
            own = f"http://{self.headers['Host']}"
            self.send_header("Location", bytes.fromhex(target).decode().format(own))
            self.end_headers()
            return
        if self.path == "/allowed/slow":
            self.send_slowly()
            return
        contents = {"/allowed/a%20b": b"allowed", "/secret": b"secret"}
        data = contents.get(self.path)
        self.send_response(200 if data else 404)
        self.end_headers()
        self.wfile.write(data or b"")

    def send_slowly(self) -> None:
        """Send half of what was announced, byte by byte."""
        self.send_response(200)
        self.send_header("Content-Length", "40")
        self.end_headers()
        with suppress(ConnectionError):
            for _ in range(20):
                self.wfile.write(b"x")
                time.sleep(0.01)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def redirect(target: str) -> str:
    """Return a path below the root that redirects; ``{}`` in the target is the server."""
    return f"/allowed/x?to={target.encode().hex()}"


def read(server: str, path: str, limit: int = 100) -> bytes:
    data = InputReader([f"{server}/allowed"], limit).read(f"{server}{path}", TEXTS)
    [content] = ModelInferRequest.FromString(data).raw_input_contents
    return content[4:]


@pytest.mark.parametrize(
    "path", ["/allowed/a b", "/allowed/a%20b", redirect("{}/allowed/a%20b"), redirect("a%20b")]
)
def test_input_and_redirect_below_a_root_are_read(server: str, path: str) -> None:
    assert read(server, path) == b"allowed"


@pytest.mark.parametrize(
    "target", ["{}/secret", "/secret", "../secret", "{}/allowed/../secret", "file:///etc/hostname"]
)
def test_redirect_that_leaves_the_roots_is_refused(server: str, target: str) -> None:
    with pytest.raises(InvalidInput, match=r"redirects to|Redirection to .* is not allowed"):
        read(server, redirect(target))


def test_input_that_cannot_be_read_says_why(server: str) -> None:
    with pytest.raises(InvalidInput, match="404"):
        read(server, "/allowed/missing")
    with pytest.raises(InvalidInput, match="limit"):
        read(server, "/allowed/a b", limit=3)
    with pytest.raises(InvalidInput, match="refused"):
        InputReader(["http://127.0.0.1:1/"], 9).read("http://127.0.0.1:1/x", TEXTS)


def test_slow_input_is_not_read_for_longer_than_the_limit(server: str) -> None:
    inputs = HttpInputs(lambda _: True, clock=count(step=200).__next__)
    with pytest.raises(InvalidInput, match="within 300 s"):
        inputs.read(f"{server}/allowed/slow", 1000)


def test_input_that_ends_early_is_refused(server: str) -> None:
    with pytest.raises(InvalidInput, match="20 of 40 bytes"):
        read(server, "/allowed/slow", limit=1000)
    assert HttpInputs(lambda _: True).read(f"{server}/allowed/slow", 10) == b"x" * 10

"""Keys of an issuer of JSON web tokens, from a web server."""

import ssl
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gateway.entry.access.jwt_tokens import KeySet
from synergai.errors import Unavailable
from tests.authorities import Authority, Issuer


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server", server=True))
    Issuer().publish(tmp_path / "keys.json")
    keys = (tmp_path / "keys.json").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/keys":
                self.send_response(HTTPStatus.OK)
                self.end_headers()
                self.wfile.write(keys)
            else:
                self.send_response(HTTPStatus.FOUND)
                self.send_header("location", "/keys")
                self.end_headers()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        serving.join()


async def test_keys_are_loaded_from_a_url(address: str) -> None:
    keys = KeySet(f"{address}/keys")
    assert (await keys.find("1"))["kty"] == "EC"
    await keys.close()


async def test_redirects_are_not_followed(address: str) -> None:
    keys = KeySet(f"{address}/moved")
    with pytest.raises(Unavailable):
        await keys.find("1")
    await keys.close()


async def test_server_of_an_unknown_authority_is_not_trusted(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    keys = KeySet(f"{address}/keys")
    with pytest.raises(Unavailable):
        await keys.find("1")
    await keys.close()

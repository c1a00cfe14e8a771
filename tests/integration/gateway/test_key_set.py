"""Keys of an issuer of JSON web tokens, from a web server."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING

import pytest

from gateway.access.key_set import KeySet
from synergai.errors import Unavailable
from tests.authorities import Authority, Issuer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """A web server with the keys at ``/keys`` and redirects elsewhere."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server", server=True))
    Issuer().publish(tmp_path / "keys.json")
    keys = (tmp_path / "keys.json").read_bytes()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        if request.startswith(b"GET /keys "):
            writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + keys)
        else:
            writer.write(b"HTTP/1.0 302 Found\r\nlocation: /keys\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


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

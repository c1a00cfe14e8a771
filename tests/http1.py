"""Requests over HTTP/1.1: whole ones, and connections that can send anything."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, closing
from http.client import HTTPConnection
from typing import Any, NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        content = json.loads(self.body)
        assert content.keys() == {"error"}
        text: str = content["error"]
        assert text
        assert "Traceback" not in text
        return text


class Connection:
    """A connection to the HTTP port that can send anything."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send_head(
        self, path: str, length: int = 0, *lines: str, method: str = "POST", host: str = "localhost"
    ) -> None:
        head = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {length}", *lines]
        self.writer.write(("\r\n".join(head) + "\r\n\r\n").encode("latin-1"))

    async def answer(self, method: str = "POST") -> Answer:
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 30)
        status, *lines = head.decode().splitlines()
        pairs = (line.split(": ", 1) for line in lines if line)
        headers = {name.lower(): value for name, value in pairs}
        length = 0 if method == "HEAD" else int(headers.get("content-length", 0))
        return Answer(int(status.split()[1]), headers, await self.reader.readexactly(length))

    async def closed(self) -> bytes:
        """Wait until the gateway has closed the connection; return what it sent before."""
        return await asyncio.wait_for(self.reader.read(), 30)


@asynccontextmanager
async def connected(
    address: str, tls: ssl.SSLContext | None = None, limit: int = 1 << 16
) -> AsyncGenerator[Connection, None]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls, limit=limit)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


async def get(address: str, path: str, tls: ssl.SSLContext | None = None) -> Answer:
    async with connected(address, tls) as connection:
        connection.send_head(path, method="GET")
        return await connection.answer()


def fetch(
    address: str,
    path: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Answer:
    """Send a request, with a body by POST, and wait for the answer."""
    with closing(HTTPConnection(address, timeout=timeout)) as connection:
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read())


def text_of(address: str, path: str, headers: Mapping[str, str] | None = None) -> str:
    """Return a page."""
    answer = fetch(address, path, headers=headers)
    assert answer.status == 200, answer
    return answer.body.decode()


def json_of(address: str, path: str, body: object = None) -> Any:
    """Return what a call of the REST form answers, to which a body is sent by POST."""
    answer = fetch(address, path, None if body is None else json.dumps(body).encode())
    assert answer.status == 200, answer
    return json.loads(answer.body)

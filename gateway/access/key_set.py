"""Public keys of an issuer of JSON web tokens (JWKS), refreshed in the background."""

from __future__ import annotations

import asyncio
import logging
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from synergai.errors import SynergaiError, Unauthenticated, Unavailable
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from email.message import Message
    from http.client import HTTPResponse
    from typing import IO

_log = logging.getLogger(__name__)

REFRESH_S: Final = 300.0
"""Interval between two refreshes."""
UNKNOWN_KEY_REFRESH_S: Final = 30.0
"""Shortest time between two refreshes because of unknown keys, which anyone can name."""
_TIMEOUT_S: Final = 5.0
_MAX_BYTES: Final = 256 * 1024


class _Keys(Struct):
    keys: list[dict[str, Any]]


_decoder: Final = msgspec.json.Decoder(_Keys)


class KeySet:
    """The signing keys of an issuer by key id, from an ``https`` URL or a file."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._keys: dict[str, dict[str, Any]] | None = None
        self._asked_at = -UNKNOWN_KEY_REFRESH_S
        self._tasks = TaskBag()
        self._loading = self._tasks.start(self._load())
        self._tasks.start(self._refresh())

    async def close(self) -> None:
        """Stop refreshing."""
        await self._tasks.close()

    async def find(self, key_id: str) -> dict[str, Any]:
        """Return a key as a JWK; an empty id means the only key."""
        key = self._find(key_id)
        if key is None:
            now = time.monotonic()
            if self._loading.done() and now >= self._asked_at + UNKNOWN_KEY_REFRESH_S:
                self._asked_at = now
                self._loading = self._tasks.start(self._load())
            await asyncio.wait([self._loading])
            key = self._find(key_id)
        if key is not None:
            return key
        if self._keys is None:
            raise Unavailable("the keys of the token's issuer cannot be loaded; try later")
        raise Unauthenticated("the token is signed with a key that its issuer does not publish")

    def _find(self, key_id: str) -> dict[str, Any] | None:
        if self._keys is None:
            return None
        if not key_id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._load()

    async def _load(self) -> None:
        """Load the keys; keep the previous ones if that fails."""
        try:
            keys = _decoder.decode(await asyncio.to_thread(_read, self._location)).keys
        except (OSError, ValueError, HTTPException, SynergaiError) as error:
            _log.error("the keys at %s cannot be loaded: %s", self._location, error)
            return
        self._keys = {
            str(key.get("kid", "")): key for key in keys if key.get("use", "sig") == "sig"
        }


def _read(location: str) -> bytes:
    """Return the content of a URL or file, of limited size and within a limited time."""
    if not location.startswith("https://"):
        with Path(location).open("rb") as file:
            return _bounded(file.read(_MAX_BYTES + 1))
    deadline = time.monotonic() + 2 * _TIMEOUT_S
    opener = urllib.request.build_opener(_NoRedirects)
    response: HTTPResponse
    with opener.open(location, timeout=_TIMEOUT_S) as response:
        content = b""
        while chunk := response.read1(_MAX_BYTES):
            content = _bounded(content + chunk)
            if time.monotonic() > deadline:
                raise Unavailable("the server is too slow")
    return content


def _bounded(content: bytes) -> bytes:
    if len(content) > _MAX_BYTES:
        raise Unavailable(f"they are larger than {_MAX_BYTES:,} bytes")
    return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirects: they could lead to plain HTTP."""

    def redirect_request(
        self,
        _request: urllib.request.Request,
        _response: IO[bytes],
        _code: int,
        _text: str,
        _headers: Message,
        _url: str,
    ) -> None:
        """Refuse a redirect, which makes it an error."""

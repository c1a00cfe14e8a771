"""Resumable downloads.

The received part stays in a ``.part`` file, next to a file with the validator of the server's
version. The next attempt requests only the rest of that version (RFC 9110, sections 13.1.5 and 14).
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import urllib.error
import urllib.request
from contextlib import closing
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import urlsplit

from synergai.errors import InvalidInput, NotFound, Unavailable
from synergai.models.formats.model_files import MAX_MODEL_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    ProgressCallback: TypeAlias = Callable[[int, int], None]
    """Called with the received and the total bytes."""

TIMEOUT_S: Final = 30.0
"""Timeout of each read from the server."""
_ATTEMPTS: Final = 10
"""Connections per download; each must make progress."""
_CHUNK_BYTES: Final = 256 << 10
_LENGTH: Final = re.compile(r"[0-9]{1,18}")
_CONTENT_RANGE: Final = re.compile(rf"bytes (?:({_LENGTH.pattern})-[0-9]+|\*)/({_LENGTH.pattern})")


def download(url: str, target: Path, on_progress: ProgressCallback) -> None:
    """Download `url` to `target`, resuming an earlier attempt.

    Only the length is verified.
    """
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"{url} is not a web address: it must begin with https://")
    partial = _PartialFile(target)
    previous = -1
    for _ in range(_ATTEMPTS):
        received, total = _attempt(url, partial, on_progress)
        if received == total:
            partial.complete()
            return
        if received <= previous:
            break
        previous = received
    raise Unavailable(
        f"{url}: the connection was lost after {received:,} of {total:,} bytes; "
        "fetch again to resume"
    )


class _PartialFile:
    """The received part of a file."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.path = target.with_name(f"{target.name}.part")
        self._version_path = target.with_name(f"{target.name}.version")

    @property
    def size(self) -> int:
        """Bytes received; 0 if their version is unknown."""
        return self.path.stat().st_size if self.path.exists() and self.version else 0

    @property
    def version(self) -> str:
        """The server's validator of that version."""
        try:
            return str(json.loads(self._version_path.read_text("utf-8")))
        except (FileNotFoundError, ValueError):
            return ""

    def restart(self, version: str) -> None:
        """Discard the received bytes and start with another version."""
        self.path.unlink(missing_ok=True)
        self._version_path.write_text(json.dumps(version), "utf-8")

    def complete(self) -> None:
        """Move the finished file to the target."""
        self._version_path.unlink(missing_ok=True)
        self.path.replace(self._target)


def _attempt(url: str, partial: _PartialFile, on_progress: ProgressCallback) -> tuple[int, int]:
    """Request the missing bytes once; return the bytes received so far, and the total."""
    received = partial.size
    headers = {"Range": f"bytes={received}-", "If-Range": partial.version} if received else {}
    try:
        # The scheme was checked in `download`, and the opener supports no other.
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - as above
        response = _opener().open(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as refusal:
        with closing(refusal):
            if refusal.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and received:
                _, total = _content_range(refusal)
                if (
                    total != received
                ):  # otherwise the file was complete, but not yet moved to the target
                    partial.restart("")
                return partial.size, total
            error = NotFound if refusal.code == http.HTTPStatus.NOT_FOUND else Unavailable
            raise error(f"{url}: the server answered {refusal.code} {refusal.reason}") from None
    except (OSError, http.client.HTTPException) as failure:
        raise Unavailable(f"{url} cannot be reached: {_reason(failure)}") from failure
    except ValueError as failure:  # raised by urllib's parser and by the host name's encoding
        raise Unavailable(f"{url} is, or redirects to, an invalid address") from failure
    with closing(response):
        received, total = _content_position(url, response, received)
        if received == 0:
            partial.restart(_version(response))
        with partial.path.open("ab") as file:
            return _receive(response, file, received, total, on_progress), total


def _content_position(url: str, response: Any, received: int) -> tuple[int, int]:
    """Return the offset of the response in the file, and the file's length."""
    length = response.headers.get("Content-Length") or ""
    start, total = 0, int(length) if _LENGTH.fullmatch(length) else 0
    if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        start, total = _content_range(response)
    if start not in (0, received) or not 0 < total <= MAX_MODEL_BYTES:
        raise InvalidInput(
            f"{url}: the server offers {total:,} bytes from byte {start:,} on; expected a file "
            f"of 1 to {MAX_MODEL_BYTES:,} bytes with a Content-Length"
        )
    return start, total


def _receive(
    response: Any, file: IO[bytes], received: int, total: int, on_progress: ProgressCallback
) -> int:
    """Append the response to `file`; return the bytes received when the connection ends."""
    on_progress(received, total)
    try:
        # A server may send more than it announced.
        while chunk := response.read(min(_CHUNK_BYTES, total - received)):
            file.write(chunk)
            received += len(chunk)
            on_progress(received, total)
    except (TimeoutError, ConnectionError, ssl.SSLError, http.client.HTTPException):
        pass  # treated as the end of the connection
    return received


def _content_range(response: Any) -> tuple[int, int]:
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range") or "")
    return (int(match[1] or 0), int(match[2])) if match else (0, 0)


def _version(response: Any) -> str:
    """Return a strong validator of the file's version; empty if there is none."""
    tag: str = response.headers.get("ETag") or ""
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified") or ""


class _SecureRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from HTTPS to HTTP."""

    def redirect_request(self, request: urllib.request.Request, *details: Any) -> Any:
        """Return the request for the new location."""
        *_, target = details
        if request.type == "https" and urlsplit(target).scheme != "https":
            raise Unavailable(f"{request.full_url} redirects to {target}, which is not encrypted")
        return super().redirect_request(request, *details)


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for HTTP only; the default one also opens local files."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        _SecureRedirectHandler,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _reason(failure: Exception) -> str:
    """Return the cause of a failure, without Python's wrapping."""
    inner = failure.reason if isinstance(failure, urllib.error.URLError) else failure
    return inner.strerror or str(inner) if isinstance(inner, OSError) else str(inner)

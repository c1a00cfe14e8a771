"""Inputs by HTTP. A redirect is followed only to where a worker may read as well."""

from __future__ import annotations

import time
from http.client import HTTPException
from typing import IO, TYPE_CHECKING, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, Request, build_opener

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPMessage

_IDLE_S: Final = 30.0
"""Time to wait for a connection, and for the next bytes."""
_TOTAL_S: Final = 300.0
_CHUNK: Final = 1 << 20
_KEPT: Final = "%/:;=&?~#+!$,'@()*[]"
"""Characters of URLs that are not quoted, or may be quoted already."""


class HttpInputs:
    """Reader of inputs by HTTP. Its functions block."""

    def __init__(
        self, is_allowed: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._opener = build_opener(_AllowedRedirects(is_allowed))
        self._clock = clock

    def read(self, url: str, limit: int) -> bytes:
        """Return at most `limit` bytes of an allowed URL."""
        deadline = self._clock() + _TOTAL_S
        data = bytearray()
        try:
            with self._opener.open(quote(url, safe=_KEPT), timeout=_IDLE_S) as response:
                # What has arrived, as a server that sends slowly must not hold up the reader.
                while len(data) < limit and (
                    more := response.read1(min(_CHUNK, limit - len(data)))
                ):
                    data += more
                    if self._clock() > deadline:
                        raise InvalidInput(f"{url!r} cannot be read within {_TOTAL_S:g} s")
                if len(data) < limit and response.length:
                    raise InvalidInput(
                        f"{url!r} cannot be read: the connection ended after {len(data):,} of "
                        f"{len(data) + response.length:,} bytes"
                    )
        except HTTPError as error:
            error.close()
            raise InvalidInput(f"{url!r} cannot be read: {error.code} {error.reason}") from None
        except URLError as error:
            raise InvalidInput(f"{url!r} cannot be read: {error.reason}") from None
        except (HTTPException, OSError) as error:
            raise InvalidInput(
                f"{url!r} cannot be read: {str(error) or type(error).__name__}"
            ) from None
        return bytes(data)


class _AllowedRedirects(HTTPRedirectHandler):
    """Follows redirects to allowed URLs, and refuses all others."""

    def __init__(self, is_allowed: Callable[[str], bool]) -> None:
        self._is_allowed = is_allowed

    def redirect_request(
        self,
        req: Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> Request | None:
        """Return the request for the URL that another one redirects to."""
        if not self._is_allowed(newurl):
            fp.close()
            raise InvalidInput(
                f"{req.full_url!r} redirects to {newurl!r}, which is not below a URL that this "
                "worker may read (--input-roots)"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)

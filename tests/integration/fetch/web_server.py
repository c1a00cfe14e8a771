"""A configurable web server that can misbehave."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Site:
    """Behaviour of the web server, and the requests it received.

    Attributes:
        content: Content of every file; None if there is no file.
        supports_ranges: Whether range requests are honoured.
        truncate_at: Maximum bytes sent by each of the next responses.
        extra_length: Difference between announced and real length; no length is announced if
            negative.
        headers: Headers of every response.
        redirects: Target by path.
        requests: Path and range of each request.
    """

    content: bytes | None
    supports_ranges: bool = True
    truncate_at: list[int] = field(default_factory=list)
    extra_length: int = 0
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"1"'})
    redirects: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


class Handler(http.server.BaseHTTPRequestHandler):
    site: Site

    def do_GET(self) -> None:
        site, requested_range = self.site, self.headers.get("Range")
        site.requests.append((self.path, requested_range))
        if self.path in site.redirects:
            self.respond(302, {"Location": site.redirects[self.path]})
            return
        if site.content is None:
            self.respond(404, {})
            return
        begin, size = 0, len(site.content)
        same = self.headers.get("If-Range") == site.headers.get("ETag")
        if site.supports_ranges and requested_range is not None and same:
            begin = int(requested_range.removeprefix("bytes=").rstrip("-"))
            if begin >= size:
                self.respond(416, {"Content-Range": f"bytes */{size}"})
                return
        content = site.content[begin:]
        length = (
            {"Content-Length": str(len(content) + site.extra_length)}
            if site.extra_length >= 0
            else {}
        )
        if begin:
            length["Content-Range"] = f"bytes {begin}-{size - 1}/{size}"
        self.respond(206 if begin else 200, site.headers | length)
        self.wfile.write(content[: site.truncate_at.pop(0)] if site.truncate_at else content)

    def respond(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""


@contextmanager
def serve_site(site: Site) -> Iterator[Site]:
    """Serve the site at its address for this block."""
    handler = type("SiteHandler", (Handler,), {"site": site})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield site
        server.shutdown()
        thread.join()

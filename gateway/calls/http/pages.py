"""The index page, the description of the HTTP interface, the metrics and the health.

All links are relative, so that the pages work behind a proxy that adds a prefix to their paths.
"""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from itertools import islice
from string import Template
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from starlette.requests import Request

    from gateway.calls.servicers.engines import EngineCalls
    from synergai.oip.repository_pb2 import RepositoryIndexResponse

_SECURITY: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}
_PARTS: Final = ("parameters", "requestBody", "responses")
"""Parts of a call in an OpenAPI document."""


def page_routes(calls: EngineCalls) -> Sequence[BaseRoute]:
    """Return the routes of the index page and the OpenAPI document."""

    async def index(_request: Request) -> Response:
        return _page(
            "index.html",
            version=escape(calls.metadata.version),
            state="serving" if calls.is_ready() else "not serving",
            engines=engine_rows(calls.index(only_ready=False).models),
        )

    async def docs(_request: Request) -> Response:
        return _page("docs.html", calls="\n".join(_calls(json.loads(_read("openapi.json")))))

    async def openapi(_request: Request) -> Response:
        document = _read("openapi.json").replace('"VERSION"', f'"{calls.metadata.version}"', 1)
        return Response(document, media_type="application/json")

    return [Route("/", index), Route("/docs", docs), Route("/openapi.json", openapi)]


def _page(name: str, **parts: str) -> Response:
    page = Template(_read(name)).substitute(parts, style=_read("style.css"))
    return HTMLResponse(page, headers=_SECURITY)


def _read(name: str) -> str:
    """Return the text of a file of this package; not kept in memory, since it is rarely needed."""
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def engine_rows(models: Iterable[RepositoryIndexResponse.ModelIndex]) -> str:
    """Return the rows of the table of engines. Each links to its description."""
    rows = [
        f'<tr><td><a href="{_path(model)}">{escape(model.name)}</a></td>'
        f"<td>{escape(model.version) or '-'}</td>"
        f'<td class="{escape(model.state.lower())}">{escape(model.state.lower())}</td>'
        f"<td>{escape(model.reason)}</td></tr>"
        for model in models
    ]
    if rows:
        return "\n".join(rows)
    return (
        '<tr><td colspan="4">None yet: start a worker with <code>synergai agent</code>.</td></tr>'
    )


def _path(model: RepositoryIndexResponse.ModelIndex) -> str:
    path = f"v2/models/{quote(model.name, safe='')}"
    return f"{path}/versions/{quote(model.version, safe='')}" if model.version else path


def _calls(document: dict[str, Any]) -> Iterator[str]:
    """Yield the calls of an OpenAPI document as HTML, and what they have in common."""
    for path, methods in document["paths"].items():
        for method, call in methods.items():
            yield f"<h2><code>{method.upper()} {escape(path)}</code></h2>"
            yield f"<p>{escape(call['summary'])}.</p>"
            yield from _details({key: call[key] for key in _PARTS if key in call})
    for kind, components in document["components"].items():
        yield f"<h2>{escape(kind.capitalize())}</h2>"
        yield from _details(components)


def _details(contents: dict[str, Any]) -> Iterator[str]:
    for name, content in contents.items():
        text = escape(json.dumps(content, indent=1))
        yield f"<details><summary>{escape(name)}</summary><pre>{text}</pre></details>"


_MAX_CONFLICTS: Final = 10
"""Most conflicts that the health lists."""


def monitoring_routes(
    metrics: Callable[[str], Awaitable[tuple[bytes, str]]],
    ready: Callable[[], bool],
    accepts_jobs: Callable[[], bool],
    store_fault: Callable[[], str],
    conflicts: Callable[[], Iterable[str]],
) -> Sequence[BaseRoute]:
    """Return the routes of the metrics, the health and the conflicts of engines."""

    async def render(request: Request) -> Response:
        text, content_type = await metrics(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": content_type})

    async def healthz(_request: Request) -> Response:
        if ready():
            full = "" if accepts_jobs() else "jobs are refused: the journal's disk is full\n"
            # Without the reason, which is in the log: anyone may read this.
            broken = "no engines are distributed: the store cannot be used\n"
            store = broken if store_fault() else ""
            differences = islice(conflicts(), _MAX_CONFLICTS)
            files = "".join(f"a worker's engine is not used: {each}\n" for each in differences)
            return PlainTextResponse(f"serving\n{full}{store}{files}")
        return PlainTextResponse("not serving\n", 503)

    return [Route("/metrics", render), Route("/healthz", healthz)]

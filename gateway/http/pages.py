"""The index page, and the description of the HTTP interface."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from starlette.requests import Request
    from starlette.routing import BaseRoute

    from gateway.servicers.inference_calls import InferenceCalls
    from synergai.oip.repository_pb2 import RepositoryIndexResponse

_SECURITY: Final = {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


def page_routes(calls: InferenceCalls) -> Sequence[BaseRoute]:
    """Return the routes of the index page and the OpenAPI document."""

    async def index(request: Request) -> Response:
        models = calls.index(only_ready=False).models
        page = Template(_read("index.html")).substitute(
            version=escape(calls.metadata.version),
            state="serving" if calls.is_ready() else "not serving",
            engines=engine_rows(models),
            base=escape(str(request.base_url)),
        )
        return HTMLResponse(page, headers=_SECURITY)

    async def openapi(_request: Request) -> Response:
        document = _read("openapi.json").replace('"VERSION"', f'"{calls.metadata.version}"', 1)
        return Response(document, media_type="application/json")

    return [Route("/", index), Route("/openapi.json", openapi)]


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
    path = f"/v2/models/{quote(model.name, safe='')}"
    return f"{path}/versions/{quote(model.version, safe='')}" if model.version else path

"""The description of the HTTP interface, the metrics and the health."""

from __future__ import annotations

from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Final

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request

_MAX_CONFLICTS: Final = 10
"""Most conflicts that the health lists."""


def monitoring_routes(
    version: str,
    metrics: Callable[[str], Awaitable[tuple[bytes, str]]],
    ready: Callable[[], bool],
    accepts_jobs: Callable[[], bool],
    store_fault: Callable[[], str],
    conflicts: Callable[[], Iterable[str]],
) -> Sequence[BaseRoute]:
    """Return the routes of the description, the metrics, the health and the conflicts of engines.

    The root is where people look for a page: it leads them to that of the fleet. The link is
    relative, so that it works behind a proxy that adds a prefix to the paths.
    """

    async def root(_request: Request) -> Response:
        return RedirectResponse("fleet")

    async def openapi(_request: Request) -> Response:
        # Not kept in memory, since it is rarely needed.
        text = files(__package__).joinpath("openapi.json").read_text(encoding="utf-8")
        document = text.replace('"VERSION"', f'"{version}"', 1)
        return Response(document, media_type="application/json")

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

    return [
        Route("/", root),
        Route("/openapi.json", openapi),
        Route("/metrics", render),
        Route("/healthz", healthz),
    ]

"""The OpenAPI document describes the routes of the HTTP port."""

import json
from importlib.resources import files
from typing import Any, cast

from starlette.routing import Route

from gateway.calls.http.bodies import Bodies
from gateway.calls.http.fleet_page import FleetFeed, fleet_page_routes
from gateway.calls.http.monitoring import monitoring_routes
from gateway.calls.http.rest import UNSUPPORTED, RestCalls
from gateway.calls.servicers.engines import EngineCalls
from gateway.calls.servicers.inference import InferenceCalls

DOCUMENT: dict[str, Any] = json.loads(
    files("gateway.calls.http").joinpath("openapi.json").read_text()
)


async def render(_accepted: str) -> tuple[bytes, str]:
    return b"", ""


def routes() -> list[Route]:
    calls, engines = cast("InferenceCalls", None), cast("EngineCalls", None)
    every = [
        *RestCalls(calls, engines, Bodies(1, 1)).routes(),
        *monitoring_routes("", render, lambda: True, lambda: True, lambda: "", list),
        *fleet_page_routes(cast("FleetFeed", None), cast("Any", None)),
    ]
    return [route for route in every if isinstance(route, Route)]


def test_document_has_every_route_with_its_method() -> None:
    served = {
        (route.path, method.lower())
        for route in routes()
        for method in (route.methods or set()) - {"HEAD"}
        if route.path not in UNSUPPORTED and route.path != "/v2/"
    }
    described = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    assert described == served

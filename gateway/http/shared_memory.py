"""Routes of Triton's calls that register system shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct, json, structs
from starlette.routing import Route

from gateway.access.caller import current_caller
from gateway.http.errors import json_response
from gateway.passage.middleware import peer_of
from gateway.requests.shared_memory import Owner, Region, SharedMemoryRegions
from synergai.protocol.oip_rest.requests import decode_json

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from gateway.http.bodies import Bodies

_Count = Annotated[int, Meta(ge=0)]


class _Registration(Struct):
    key: str
    byte_size: _Count
    offset: _Count = 0


_decoder: Final = json.Decoder(_Registration)


def shared_memory_routes(regions: SharedMemoryRegions, bodies: Bodies) -> list[Route]:
    """Return the routes; `bodies` reads the body of a registration."""

    async def status(request: Request) -> Response:
        found = regions.status(*_owner_and_name(request))
        return json_response([structs.asdict(each) for each in found])

    async def register(request: Request) -> Response:
        owner, name = _owner_and_name(request)
        async with bodies.receive(request) as body:
            asked = decode_json(_decoder, body, "a registration of shared memory")
        regions.register(owner, Region(name, asked.key, asked.offset, asked.byte_size))
        return json_response({})

    async def unregister(request: Request) -> Response:
        regions.unregister(*_owner_and_name(request))
        return json_response({})

    async def unregister_none(_request: Request) -> Response:
        # There are no regions of GPUs. Clients remove all before they begin.
        return json_response({})

    root = "/v2/systemsharedmemory"
    both = (root, f"{root}/region/{{name}}")
    return [
        Route(f"{both[1]}/register", register, methods=["POST"]),
        *(Route(f"{each}/status", status) for each in both),
        *(Route(f"{each}/unregister", unregister, methods=["POST"]) for each in both),
        Route("/v2/cudasharedmemory/unregister", unregister_none, methods=["POST"]),
    ]


def _owner_and_name(request: Request) -> tuple[Owner, str]:
    """Return a caller on this machine, and the region in the path or nothing."""
    owner = Owner(current_caller().tenant, peer_of(request.scope).user)
    return owner, request.path_params.get("name", "")

"""Routes of the Open Inference Protocol in REST form, with Triton's extensions."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gateway.calls.http.app import cancelled_on_disconnect, chosen_id, json_response
from synergai.errors import InvalidInput, NotSupported
from synergai.wire.oip_rest import decode_json, message_to_json, read_request, write_response
from synergai.wire.parameters import TENANT_METADATA, TRACEPARENT, CallIds, checked_tenant

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from starlette.requests import Request

    from gateway.calls.http.bodies import Bodies
    from gateway.calls.servicers.engines import EngineCalls
    from gateway.calls.servicers.inference import InferenceCalls

TIMEOUT_HEADER: Final = "synergai-timeout-ms"
"""Header with the milliseconds within which a call must complete, counted from its arrival."""
JSON_LENGTH_HEADER: Final = "inference-header-content-length"
"""Header with the length of the JSON part of a body with binary data."""
_TIMEOUT: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,6})?", re.ASCII)
_LENGTH: Final = re.compile("[0-9]{1,12}", re.ASCII)
UNSUPPORTED: Final = {
    **dict.fromkeys(
        ("/v2/systemsharedmemory/{rest:path}", "/v2/cudasharedmemory/{rest:path}"),
        "shared memory is not supported: send tensors as binary data",
    ),
    "/v2/trace/setting": "tracing is not supported: use the request parameter 'synergai_timings', "
    "or /metrics",
    "/v2/models/{name}/trace/setting": "tracing is not supported: use the request parameter "
    "'synergai_timings', or /metrics",
    "/v2/models/{name}/generate": "generation is not supported: use /infer",
    "/v2/models/{name}/generate_stream": "generation is not supported: use /infer",
    "/v2/logging": "log settings cannot change at run time: start the gateway with --log-level",
}
"""Calls of Triton's that are not supported, with the alternative for each."""


class _IndexRequest(Struct):
    ready: bool | None = False


class _ControlRequest(Struct):
    parameters: dict[str, Any] | None = None


_index_decoder: Final = msgspec.json.Decoder(_IndexRequest)
_control_decoder: Final = msgspec.json.Decoder(_ControlRequest)


class RestCalls:
    """The calls of the protocol."""

    def __init__(self, calls: InferenceCalls, engines: EngineCalls, bodies: Bodies) -> None:
        self._calls = calls
        self._engines = engines
        self._bodies = bodies

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes, the most frequent first."""
        of_model: dict[str, tuple[Callable[[Request], Awaitable[Response]], str]] = {
            "/infer": (self.infer, "POST"),
            "/ready": (self.model_ready, "GET"),
            "": (self.model_metadata, "GET"),
            "/config": (self.model_config, "GET"),
            "/stats": (self.model_statistics, "GET"),
        }
        return [
            Route("/v2/models/{name}/infer", self.infer, methods=["POST"]),
            Route("/v2/health/live", self.server_live),
            Route("/v2/health/ready", self.server_ready),
            Route("/v2/models/stats", self.model_statistics),
            *(
                Route(f"/v2/models/{{name}}{version}{call}", handler, methods=[method])
                for version in ("", "/versions/{version}")
                for call, (handler, method) in of_model.items()
            ),
            Route("/v2", self.server_metadata),
            Route("/v2/", self.server_metadata),
            Route("/v2/repository/index", self.repository_index, methods=["POST"]),
            Route("/v2/repository/models/{name}/load", self.load, methods=["POST"]),
            Route("/v2/repository/models/{name}/unload", self.unload, methods=["POST"]),
            *(
                Route(path, _unsupported(text), methods=["GET", "POST"])
                for path, text in UNSUPPORTED.items()
            ),
        ]

    async def server_live(self, _request: Request) -> Response:
        return json_response({"live": True})

    async def server_ready(self, _request: Request) -> Response:
        ready = self._engines.is_ready()
        return json_response({"ready": ready}, 200 if ready else 503)

    async def server_metadata(self, _request: Request) -> Response:
        return json_response(message_to_json(self._engines.metadata))

    async def model_ready(self, request: Request) -> Response:
        """Report that the engine is in service; fail with the reason if it is not."""
        name, version = _name_and_version(request)
        self._engines.find_engine(name, version)
        return json_response({"name": name, "ready": True})

    async def model_metadata(self, request: Request) -> Response:
        name, version = _name_and_version(request)
        metadata = await self._engines.model_metadata(name, version, _timeout_s(request))
        return json_response(message_to_json(metadata))

    async def model_config(self, request: Request) -> Response:
        config = self._engines.model_config(*_name_and_version(request))
        return json_response(message_to_json(config))

    async def model_statistics(self, request: Request) -> Response:
        found = self._engines.statistics(*_name_and_version(request))
        return json_response(message_to_json(found))

    async def infer(self, request: Request) -> Response:
        begun_at = asyncio.get_running_loop().time()
        timeout_s = _timeout_s(request)
        tenant = checked_tenant(request.headers.get(TENANT_METADATA, ""))
        ids = CallIds(chosen_id(request.scope), request.headers.get(TRACEPARENT, ""))
        json_bytes = _json_length(request)
        async with self._bodies.receive(request, timeout_s) as body:
            raw, form = read_request(*_name_and_version(request), body, json_bytes)
            if timeout_s is not None:
                timeout_s -= asyncio.get_running_loop().time() - begun_at
            async with cancelled_on_disconnect(request):
                answer = await self._calls.infer(raw, timeout_s, tenant, ids)
        response = write_response(answer, form)
        if response.json_bytes is None:
            return Response(response.body, media_type="application/json")
        return Response(
            response.body,
            headers={JSON_LENGTH_HEADER: str(response.json_bytes)},
            media_type="application/octet-stream",
        )

    async def repository_index(self, request: Request) -> Response:
        async with self._bodies.receive(request) as body:
            asked = decode_json(_index_decoder, body or b"{}", "a request for the index")
        index = self._engines.index(only_ready=bool(asked.ready))
        return json_response([message_to_json(model) for model in index.models])

    async def load(self, request: Request) -> Response:
        timeout_s = _timeout_s(request)
        parameters = await self._control_parameters(request)
        async with cancelled_on_disconnect(request):
            await self._engines.load(request.path_params["name"], parameters, timeout_s)
        return json_response({})

    async def unload(self, request: Request) -> Response:
        parameters = await self._control_parameters(request)
        await self._engines.unload(request.path_params["name"], parameters)
        return json_response({})

    async def _control_parameters(self, request: Request) -> Iterable[str]:
        async with self._bodies.receive(request) as body:
            asked = decode_json(_control_decoder, body or b"{}", "a request to load or unload")
        return [name for name, value in (asked.parameters or {}).items() if value is not None]


def _name_and_version(request: Request) -> tuple[str, str]:
    parameters = request.path_params
    return parameters.get("name", ""), parameters.get("version", "")


def _timeout_s(request: Request) -> float | None:
    text = request.headers.get(TIMEOUT_HEADER)
    if text is None:
        return None
    if _TIMEOUT.fullmatch(text) is None:
        raise InvalidInput(f"the header {TIMEOUT_HEADER} must be in ms, such as 500, not {text!r}")
    return float(text) / 1e3


def _json_length(request: Request) -> int | None:
    text = request.headers.get(JSON_LENGTH_HEADER)
    if text is None:
        return None
    if _LENGTH.fullmatch(text) is None:
        raise InvalidInput(f"the header {JSON_LENGTH_HEADER} must be a length, not {text!r}")
    return int(text)


def _unsupported(text: str) -> Callable[[Request], Awaitable[Response]]:
    async def refuse(_request: Request) -> Response:
        raise NotSupported(text)

    return refuse

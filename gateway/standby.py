"""Gateways of which one leads: what the others answer, and how clients reach the leader.

A standby says where the leader is, and that it is alive itself. On Kubernetes, all pods of a
StatefulSet are ready, so that updates wait for each of them. Only the leader serves, so it makes
the Services select its own pod. It needs the right to patch them, and no other.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import socket
import ssl
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

from grpc_health.v1 import health_pb2
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from gateway.calls.http.app import HttpApp, HttpServer
from gateway.entry.access.exposure import check_exposure
from gateway.grpc_server import RefusingHandler, bind_server, current_connection_limits
from synergai.errors import Unavailable
from synergai.runtime.service import notify_ready
from synergai.wire import rpc
from synergai.wire.memory_bounds import UnreadResponses

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from starlette.requests import Request

    from gateway.gateway_settings import GatewaySettings
    from synergai.wire.server_call import ServerCall

_GRACE_S: Final = 0.5
_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")
_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POD_LABEL: Final = "statefulset.kubernetes.io/pod-name"
"""Label that Kubernetes gives to each pod of a StatefulSet."""
_TIMEOUT_S: Final = 5.0
_AGAIN_S: Final = 10.0
"""Interval of further patches: the last leader may have been late with its own."""
_RETRY_S: Final = 0.5

_log = logging.getLogger(__name__)


@asynccontextmanager
async def standing_by(config: GatewaySettings, leader: Callable[[], str]) -> AsyncIterator[None]:
    """Listen for clients and HTTP as long as the context is open, and refer them to the leader.

    The port for agents stays closed, so that they try other gateways at once.
    """
    await asyncio.to_thread(check_exposure, config)

    def refusal() -> Unavailable:
        return Unavailable(f"this gateway is a standby; the leader is {leader() or 'unknown'}")

    async with AsyncExitStack() as stack:
        server, address = bind_server(
            config,
            stack,
            config.listen,
            config.tls_clients_ca,
            max_connections=current_connection_limits().clients,
            max_bytes=config.max_client_bytes,
            on_broken=lambda _: None,  # it can still take over, with a new server
        )
        http = HttpServer(
            HttpApp(_routes(refusal), any_host=True),
            UnreadResponses(config.max_response_bytes),
            config,
        )
        http_address = await http.start(config.http)
        stack.push_async_callback(http.close)
        server.start((_health(), RefusingHandler(lambda _: refusal())))
        stack.push_async_callback(server.stop, _GRACE_S)
        _log.info(
            "standby of %s, listening for clients on %s, HTTP on %s",
            leader() or "an unknown leader",
            address,
            http_address,
        )
        # The service manager would take a gateway that waits for one that does not start.
        await stack.enter_async_context(notify_ready())
        yield
    _log.info("taking over from the leader")


def _health() -> rpc.Service:
    async def check(
        _request: health_pb2.HealthCheckRequest, _context: ServerCall
    ) -> health_pb2.HealthCheckResponse:
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.NOT_SERVING)

    handlers = {"Check": rpc.unary(check, health_pb2.HealthCheckRequest)}
    return rpc.Service("grpc.health.v1.Health", handlers)


def _routes(refusal: Callable[[], Unavailable]) -> Sequence[BaseRoute]:
    async def healthz(_request: Request) -> Response:
        return PlainTextResponse("standby\n", 503)

    async def live(_request: Request) -> Response:
        return Response()

    async def refuse(_request: Request) -> NoReturn:
        raise refusal()

    return [
        Route("/healthz", healthz),
        Route("/v2/health/live", live),
        Route("/{path:path}", refuse, methods=_METHODS),
    ]


async def select_this_pod(services: Sequence[str], account: Path = _ACCOUNT) -> NoReturn:
    """Keep Services pointing at this pod until cancelled.

    Args:
        account: directory with the token of the pod's service account.
    """
    failing = False
    while True:
        try:
            for service in services:
                await asyncio.to_thread(_patch, service, account)
        except (OSError, http.client.HTTPException, Unavailable) as error:
            if not failing:
                _log.warning("cannot send clients to this gateway, trying again: %s", error)
            failing = True
        else:
            if failing:
                _log.info("clients are sent to this gateway")
            failing = False
        await asyncio.sleep(_RETRY_S if failing else _AGAIN_S)


def _patch(service: str, account: Path) -> None:
    """Let one Service select this pod only."""
    token, namespace = ((account / name).read_text() for name in ("token", "namespace"))
    connection = http.client.HTTPSConnection(
        os.environ["KUBERNETES_SERVICE_HOST"],
        int(os.environ["KUBERNETES_SERVICE_PORT"]),
        timeout=_TIMEOUT_S,
        context=ssl.create_default_context(cafile=str(account / "ca.crt")),
    )
    try:
        connection.request(
            "PATCH",
            f"/api/v1/namespaces/{namespace}/services/{service}",
            json.dumps({"spec": {"selector": {_POD_LABEL: socket.gethostname()}}}),
            {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
            },
        )
        answer = connection.getresponse()
        if answer.status != http.client.OK:
            raise Unavailable(
                f"Kubernetes answers {answer.status} to a patch of the Service {service}"
            )
    finally:
        connection.close()

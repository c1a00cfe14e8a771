"""The HTTP port: the ASGI application, with its errors and cancellation, and its server.

An error is a JSON object with the message under ``error``, as the protocol defines.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import msgspec
import uvicorn
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Router

from gateway.calls.http.connections import SURPLUS, LimitedConnection
from synergai.errors import QuotaExceeded, SynergaiError, Unauthenticated, Unavailable
from synergai.runtime.addresses import bind
from synergai.runtime.tasks import TaskBag
from synergai.runtime.text import encodable
from synergai.wire.credentials import server_context
from synergai.wire.parameters import REQUEST_ID, valid_id
from synergai.wire.rpc import log_internal_error
from synergai.wire.status import MAX_DETAILS, QUOTA_METADATA, http_status, retry_after_s

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from starlette.types import Message, Receive, Scope, Send

    from gateway.gateway_settings import GatewaySettings
    from synergai.wire.memory_bounds import UnreadResponses

JSON = "application/json"


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    # Exactly this media type: KServe's client reads error messages of no other.
    return Response(msgspec.json.encode(content), status, headers, media_type=JSON)


def error_response(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return json_response({"error": encodable(message[:MAX_DETAILS])}, status, headers)


def response_to(error: SynergaiError, chosen_id: str = "") -> Response:
    """Return the response to a request that failed, with its id; `chosen_id` is the client's."""
    after_s = retry_after_s(error)
    headers = {} if after_s is None else {"retry-after": str(after_s)}
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, QuotaExceeded):
        headers[QUOTA_METADATA] = error.quota
    text = str(error)
    if request_id := chosen_id or error.request_id:
        headers[REQUEST_ID] = request_id
        mark = f" (request {request_id})"
        text = text[: MAX_DETAILS - len(mark)] + mark
    return error_response(text, http_status(error), headers)


_ALWAYS_SERVED: Final = frozenset({"/healthz", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""Paths that connections beyond the limit may request."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class HttpApp:
    """Routes requests and turns every failure into a response.

    Args:
        any_host: serve under any host name, because callers must have credentials, or need none.
    """

    def __init__(self, routes: Sequence[BaseRoute], *, any_host: bool = False) -> None:
        self._any_host = any_host
        self._router = Router(routes, redirect_slashes=False)
        self._running: set[asyncio.Task[object]] = set()
        self._stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = _current_task()
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        self._running.add(task)
        scope["app"] = self  # makes the router raise its errors instead of responding itself
        try:
            _check_allowed(scope)
            if not self._any_host:
                _check_host(HTTPConnection(scope).url.hostname or "")
            await self._router(scope, receive, send_and_note)
        except ClientDisconnect:
            pass
        except asyncio.CancelledError:
            # By `stop`, or leaked from something that the handler awaited; see also rpc.py.
            if task.cancelling() and not self._stopping:
                raise
            task.uncancel()
            if not started:
                error = Unavailable("the server cancelled the work; try another one, or later")
                await response_to(error, chosen_id(scope))(scope, receive, send)
        except Exception as error:  # noqa: BLE001 - a bug must not reach the client
            if not started:
                response = _failure(scope, error)
                if "expect" in Headers(scope=scope):  # its body, which may still be sent or not
                    response.headers["connection"] = "close"
                await response(scope, receive, send)
        finally:
            self._running.discard(task)

    def stop(self) -> None:
        """End all requests, as unavailable."""
        self._stopping = True
        for task in self._running:
            task.cancel()


def _failure(scope: Scope, error: Exception) -> Response:
    match error:
        case SynergaiError():
            return response_to(error, chosen_id(scope))
        case HTTPException(status_code=HTTPStatus.NOT_FOUND):
            text = f"{scope['path']!r} is not served here; /openapi.json lists all paths"
            return error_response(text, HTTPStatus.NOT_FOUND)
        case HTTPException(status_code=HTTPStatus.METHOD_NOT_ALLOWED):
            text = f"{scope['path']!r} does not support the method {scope['method']}"
            return error_response(text, HTTPStatus.METHOD_NOT_ALLOWED, error.headers)
        case HTTPException():
            return error_response(error.detail, error.status_code, error.headers)
        case _:
            return response_to(log_internal_error(scope["path"]), chosen_id(scope))


def chosen_id(scope: Scope) -> str:
    """Return the valid id that the client chose for a request; empty if there is none."""
    return valid_id(Headers(scope=scope).get(REQUEST_ID, ""))


def _check_allowed(scope: Scope) -> None:
    """Refuse requests on surplus connections, and those that a browser sends for other sites."""
    if scope.get("state", {}).get(SURPLUS) and scope["path"] not in _ALWAYS_SERVED:
        raise HTTPException(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "too many connections are open; try later",
            {"connection": "close", "retry-after": "1"},
        )
    if scope["method"] not in _SAFE_METHODS:
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host"):
            raise HTTPException(
                HTTPStatus.FORBIDDEN, f"pages of {origin} may not send requests to this server"
            )


def _check_host(host: str) -> None:
    """Refuse names that another site's owner may have pointed at this machine (DNS rebinding)."""
    if host in {"localhost", socket.gethostname().lower()} or host.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise HTTPException(
            HTTPStatus.MISDIRECTED_REQUEST,
            f"nothing is served as {host!r} without an access table: use an address of the "
            "machine, or localhost",
        ) from None


@asynccontextmanager
async def cancelled_on_disconnect(request: Request) -> AsyncGenerator[None, None]:
    """Cancel the work in the context once the client of `request` is gone.

    The request's body must have been received.
    """
    work = _current_task()
    working = True

    def on_gone(_: asyncio.Task[None]) -> None:
        if working:
            work.cancel()

    async with TaskBag() as tasks:
        gone = tasks.start(_disconnected(request))
        gone.add_done_callback(on_gone)
        try:
            yield
        except asyncio.CancelledError:
            if not gone.done():
                raise
            work.uncancel()
            raise ClientDisconnect from None
        finally:
            working = False


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("not called from a task")
    return task


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


_GRACE_S: Final = 1
"""Time that responses being sent get at shutdown."""
_KEEP_ALIVE_MARGIN_S: Final = 5
"""Time for which an idle connection stays open beyond what its client is told: a request that is
sent at the last moment is still answered."""
_BACKLOG: Final = 128


class _Server(uvicorn.Server):
    """uvicorn's server without its signal handlers: the gateway has its own."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # wider than uvicorn's generator
        return nullcontext()


class HttpServer:
    """Serves an application over HTTP."""

    def __init__(self, app: HttpApp, unread: UnreadResponses, settings: GatewaySettings) -> None:
        self._app = app
        self._unread = unread
        self._keep_alive_s = int(settings.http_keep_alive_s)
        self._tls = server_context(settings.tls_cert, settings.tls_key, settings.tls_clients_ca)
        self._server: _Server | None = None
        self._tasks = TaskBag()

    async def start(self, address: str) -> str:
        host, _, _ = address.rpartition(":")
        sockets = await asyncio.to_thread(bind, address, _BACKLOG)
        for each in sockets:
            # Accepted sockets inherit it. asyncio itself sets it on those only whose protocol it
            # is told; without it, the second part of a response waits 40 ms for the client.
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = self._tls
        config = uvicorn.Config(
            self._app,
            http=partial(LimitedConnection, self._unread),  # type: ignore[arg-type]  # called only
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            headers=[("keep-alive", f"timeout={self._keep_alive_s}")],
            timeout_keep_alive=self._keep_alive_s + _KEEP_ALIVE_MARGIN_S,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        self._server = server = _Server(config)
        serving = self._tasks.start(server.serve(sockets))
        started = self._tasks.start(server.ready.wait())
        await asyncio.wait([serving, started], return_when=asyncio.FIRST_COMPLETED)
        started.cancel()
        if serving.done():
            serving.result()
        return f"{host}:{sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._app.stop()
        if self._server is not None:
            self._server.should_exit = True
            await self._tasks.wait()

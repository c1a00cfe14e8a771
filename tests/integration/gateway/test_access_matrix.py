"""Every call of the gateway with every kind of credentials.

What is expected is written here by hand: it must not follow from the tables of the code.
"""

import asyncio
import hashlib
import http.client
import ssl
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pool
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from starlette.routing import Route

from gateway.entry.access.caller import UNRESTRICTED
from gateway.grpc_server import UNSUPPORTED_METHODS
from gateway.server import SERVICES, Gateway
from synergai.domain import EngineName
from synergai.jobs import JobSpec
from synergai.models.manifest import Manifest, ManifestFile
from synergai.oip import inference_pb2 as oip
from synergai.oip import model_config_pb2, repository_pb2, statistics_pb2
from synergai.v1 import fleet_pb2, jobs_pb2, store_pb2
from synergai.wire.credentials import ClientTls
from tests.authorities import Authority, Issuer
from tests.integration.conftest import both_servers
from tests.integration.gateway.conftest import ECHO, FakeAgent, config_in, infer_request
from tests.waiting import until

pytestmark = both_servers

ROLES = ("infer", "submit", "observe", "operate")
PUBLIC, KNOWN = "public", "known"
OK, DENIED, MISSING, HIDDEN = "ok", "denied", "missing", "hidden"
"""Outcomes: served, refused, as if the object did not exist, served without the object."""
NO_ROLES: tuple[str, ...] = ()
READ = ("infer", "submit", "observe")


@dataclass(frozen=True)
class Call:
    """What is expected of a call.

    Attributes:
        needs: `PUBLIC`, `KNOWN`, or the roles of which one is needed.
        other_engine: outcome for a caller with all roles for another engine.
        other_tenant: outcome for a caller with all roles in another tenant.
        served: outcome for a caller with a right role.
    """

    needs: str | tuple[str, ...]
    other_engine: str = OK
    other_tenant: str = OK
    served: str = OK


# --- gRPC ---------------------------------------------------------------------------------

_OIP = "inference.GRPCInferenceService"
GRPC_CALLS = {
    "grpc.health.v1.Health/Check": Call(PUBLIC),
    "grpc.health.v1.Health/Watch": Call(PUBLIC),
    "grpc.health.v1.Health/List": Call(NO_ROLES),
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Call(KNOWN),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Call(KNOWN),
    f"{_OIP}/ServerLive": Call(PUBLIC),
    f"{_OIP}/ServerReady": Call(PUBLIC),
    f"{_OIP}/ServerMetadata": Call(KNOWN),
    f"{_OIP}/ModelReady": Call(READ, DENIED),
    f"{_OIP}/ModelMetadata": Call(READ, DENIED),
    f"{_OIP}/ModelConfig": Call(READ, DENIED),
    f"{_OIP}/ModelStatistics": Call(READ, DENIED),
    f"{_OIP}/ModelInfer": Call(("infer",), DENIED, DENIED),
    f"{_OIP}/ModelStreamInfer": Call(("infer",), DENIED, DENIED),
    f"{_OIP}/RepositoryIndex": Call(READ, HIDDEN),
    f"{_OIP}/RepositoryModelUnload": Call(("operate",), DENIED),
    f"{_OIP}/RepositoryModelLoad": Call(("operate",), DENIED),
    "synergai.v1.Jobs/Submit": Call(("submit",), DENIED, DENIED),
    "synergai.v1.Jobs/Get": Call(("submit", "observe"), MISSING, MISSING),
    "synergai.v1.Jobs/Watch": Call(("submit", "observe"), MISSING, MISSING),
    "synergai.v1.Jobs/List": Call(("submit", "observe"), HIDDEN, HIDDEN),
    "synergai.v1.Jobs/Cancel": Call(("submit", "operate"), MISSING, MISSING),
    "synergai.v1.Jobs/Upload": Call(("submit",)),
    # The job has no upload, which only those learn that may see it.
    "synergai.v1.Jobs/Results": Call(("submit", "observe"), MISSING, MISSING, "no results"),
    "synergai.v1.Fleet/ListWorkers": Call(("observe",), HIDDEN),
    # Of what ended in time, nothing is kept.
    "synergai.v1.Fleet/Explain": Call(READ, MISSING, MISSING, MISSING),
    "synergai.v1.Fleet/ListDeployments": Call(("observe",)),
    "synergai.v1.Fleet/GetDictionary": Call(("observe",), HIDDEN),
    "synergai.v1.Fleet/ForgetEngine": Call(("operate",), DENIED),
    "synergai.v1.Store/Open": Call(("operate",), DENIED),
    # Nothing was uploaded or stored.
    **{
        f"synergai.v1.Store/{name}": Call(("operate",), DENIED, MISSING, MISSING)
        for name in ("Upload", "Publish", "Place", "Remove")
    },
    "synergai.v1.Store/List": Call(("observe", "operate"), HIDDEN, HIDDEN, HIDDEN),
    "synergai.v1.Fleet/GetVersionPolicy": Call(("observe",), DENIED),
    "synergai.v1.Fleet/SetVersionPolicy": Call(("operate",), DENIED),
    **{
        f"{_OIP}/{name}": Call(KNOWN, "unimplemented", "unimplemented", "unimplemented")
        for name in (
            *(
                f"{kind}SharedMemory{call}"
                for kind in ("System", "Cuda")
                for call in ("Status", "Register", "Unregister")
            ),
            "TraceSetting",
            "LogSettings",
        )
    },
}

_MANIFEST = Manifest(backend="test", model="m", files=(ManifestFile("m", "a" * 64, 1),))


def grpc_requests(job_id: str) -> dict[str, Message]:
    """Return a request of each call for the engine, tenant and job; others are empty."""
    spec = jobs_pb2.JobSpec(engine=ECHO, queries=1, tenant="lab")
    infer = infer_request()
    infer.parameters["synergai_tenant"].string_param = "lab"
    return {
        f"{_OIP}/ModelReady": oip.ModelReadyRequest(name=ECHO),
        f"{_OIP}/ModelMetadata": oip.ModelMetadataRequest(name=ECHO),
        f"{_OIP}/ModelConfig": model_config_pb2.ModelConfigRequest(name=ECHO),
        f"{_OIP}/ModelStatistics": statistics_pb2.ModelStatisticsRequest(name=ECHO),
        f"{_OIP}/ModelInfer": infer,
        f"{_OIP}/ModelStreamInfer": infer,
        f"{_OIP}/RepositoryModelLoad": repository_pb2.RepositoryModelLoadRequest(model_name=ECHO),
        f"{_OIP}/RepositoryModelUnload": repository_pb2.RepositoryModelUnloadRequest(
            model_name=ECHO
        ),
        "synergai.v1.Jobs/Submit": jobs_pb2.SubmitRequest(spec=spec),
        "synergai.v1.Jobs/Get": jobs_pb2.GetRequest(job_id=job_id),
        "synergai.v1.Jobs/Upload": jobs_pb2.UploadRequest(upload_id="an-upload"),
        "synergai.v1.Jobs/Results": jobs_pb2.ResultsRequest(job_id=job_id),
        "synergai.v1.Jobs/Watch": jobs_pb2.WatchRequest(job_id=job_id),
        "synergai.v1.Jobs/Cancel": jobs_pb2.CancelRequest(job_id=job_id),
        "synergai.v1.Fleet/Explain": fleet_pb2.ExplainRequest(id="nobody"),
        "synergai.v1.Fleet/ForgetEngine": fleet_pb2.ForgetEngineRequest(engine=ECHO),
        "synergai.v1.Fleet/GetVersionPolicy": fleet_pb2.GetVersionPolicyRequest(engine=ECHO),
        "synergai.v1.Fleet/SetVersionPolicy": fleet_pb2.SetVersionPolicyRequest(
            engine=ECHO, latest=True
        ),
        "synergai.v1.Store/Open": store_pb2.OpenRequest(
            engine=ECHO, version=1, manifest=_MANIFEST.encode()
        ),
        "synergai.v1.Store/Upload": store_pb2.UploadChunk(
            engine=ECHO, version=1, digest="b" * 64, sha256="b" * 64
        ),
        "synergai.v1.Store/Publish": store_pb2.PublishRequest(
            engine=ECHO, version=1, digest="b" * 64
        ),
        "synergai.v1.Store/Place": store_pb2.PlaceRequest(engine=ECHO, version=1),
        "synergai.v1.Store/Remove": store_pb2.RemoveRequest(engine=ECHO, version=1),
        "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": (
            reflection_pb2.ServerReflectionRequest(list_services="")
        ),
        "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": (
            reflection_pb2.ServerReflectionRequest(list_services="")
        ),
    }


def served_methods() -> set[str]:
    """Return the methods of all services on the clients' port, and those refused by name."""
    pool = descriptor_pool.Default()
    methods = {name.removeprefix("/") for name in UNSUPPORTED_METHODS}
    assert health_pb2.DESCRIPTOR
    for service in SERVICES:
        described = pool.FindServiceByName(service)
        methods |= {f"{service}/{method.name}" for method in described.methods}
    for version in ("v1", "v1alpha"):
        methods.add(f"grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
    return methods


_OUTCOMES = {
    grpc.StatusCode.UNAUTHENTICATED: "unauthenticated",
    grpc.StatusCode.PERMISSION_DENIED: DENIED,
    grpc.StatusCode.NOT_FOUND: MISSING,
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.UNIMPLEMENTED: "unimplemented",
    grpc.StatusCode.UNAVAILABLE: "no connection",
    grpc.StatusCode.FAILED_PRECONDITION: "no results",
}


def grpc_outcome(
    channel: grpc.Channel, method: str, request: bytes, token: str, secret: str
) -> str:
    """Make a call, of any kind, and return the outcome of its first response.

    The blocking client, because the asynchronous one may report a call that is refused while it
    sends a request as INTERNAL.
    """
    start: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{method}")
    call = start(
        iter([request]),
        metadata=(("authorization", f"Bearer {token}"),) if token else None,
        timeout=30,
    )
    try:
        response: bytes = next(call)
    except StopIteration:
        return "no response"
    except grpc.RpcError as error:
        return _OUTCOMES.get(error.code(), f"{error.code().name} {error.details()}")
    finally:
        call.cancel()
    if method.endswith("ModelStreamInfer"):
        message = oip.ModelStreamInferResponse.FromString(response)
        if message.error_message:
            status = message.infer_response.parameters["status"].string_param
            return _OUTCOMES[grpc.StatusCode[status]]
    shown = ECHO.encode() in response or secret.encode() in response
    return OK if shown or method not in _LISTS else HIDDEN


_LISTS = frozenset(method for method, call in GRPC_CALLS.items() if call.other_engine == HIDDEN)

# --- HTTP ---------------------------------------------------------------------------------

_MODEL = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
ROUTES = {
    "GET /": Call(PUBLIC),
    "GET /openapi.json": Call(KNOWN),
    "GET /healthz": Call(PUBLIC),
    "GET /metrics": Call(("observe",), DENIED),
    "GET /fleet": Call(PUBLIC),
    "GET /fleet/{file}": Call(PUBLIC),
    "GET /fleet/events": Call(("observe",), DENIED),
    "GET /fleet/explain/{id}": Call(("observe",), DENIED),
    "GET /v2": Call(KNOWN),
    "GET /v2/": Call(KNOWN),
    "GET /v2/health/live": Call(PUBLIC),
    "GET /v2/health/ready": Call(PUBLIC),
    "GET /v2/models/stats": Call(READ, HIDDEN),
    **{f"GET {model}": Call(READ, DENIED) for model in _MODEL},
    **{
        f"GET {model}/{call}": Call(READ, DENIED)
        for model in _MODEL
        for call in ("ready", "config", "stats")
    },
    **{f"POST {model}/infer": Call(("infer",), DENIED, DENIED) for model in _MODEL},
    "POST /v2/repository/index": Call(READ, HIDDEN),
    "POST /v2/repository/models/{name}/unload": Call(("operate",), DENIED),
    "POST /v2/repository/models/{name}/load": Call(("operate",), DENIED),
    **{
        f"{method} {path}": Call(KNOWN, "unimplemented", "unimplemented", "unimplemented")
        for method in ("GET", "POST")
        for path in (
            "/v2/systemsharedmemory/{rest:path}",
            "/v2/cudasharedmemory/{rest:path}",
            "/v2/trace/setting",
            "/v2/models/{name}/trace/setting",
            "/v2/models/{name}/generate",
            "/v2/models/{name}/generate_stream",
            "/v2/logging",
        )
    },
}
_HTTP_LISTS = frozenset(route for route, call in ROUTES.items() if call.other_engine == HIDDEN)
_STATUSES = {
    200: OK,
    307: OK,
    400: "invalid",
    401: "unauthenticated",
    403: DENIED,
    404: MISSING,
    501: "unimplemented",
}
_INFER = (
    b'{"parameters": {"synergai_tenant": "lab"}, '
    b'"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}'
)


def served_routes(gateway: Gateway) -> set[str]:
    return {
        f"{method} {route.path}"
        for route in gateway._http_app()._router.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }


def http_outcome(connection: http.client.HTTPConnection, route: str, token: str) -> str:
    method, _, path = route.partition(" ")
    for parameter, value in (
        ("{name}", ECHO),
        ("{version}", "1"),
        ("{rest:path}", "x"),
        ("{file}", "page.js"),
    ):
        path = path.replace(parameter, value)
    body = _INFER if path.endswith("/infer") else b"{}" if method == "POST" else None
    try:
        connection.request(
            method, path, body, {"authorization": f"Bearer {token}"} if token else {}
        )
        answer = connection.getresponse()
        if answer.headers.get("content-type", "").startswith("text/event-stream"):
            connection.close()  # it has no end
            return OK
        content = answer.read()
    except (ssl.SSLError, ConnectionError, http.client.HTTPException):
        connection.close()
        return "no connection"
    if answer.status == http.HTTPStatus.UNAUTHORIZED:
        assert answer.headers["www-authenticate"] == "Bearer"
    outcome = _STATUSES.get(answer.status, f"{answer.status} {content!r}")
    if outcome == OK and route in _HTTP_LISTS and ECHO.encode() not in content:
        return HIDDEN
    return outcome


# --- credentials --------------------------------------------------------------------------


@dataclass(frozen=True)
class Credentials:
    """What a caller presents.

    Attributes:
        kind: ``none``, ``expired``, ``foreign``, ``revoked``, ``engine``, ``tenant``, or the
            roles that it has, joined by ``+``.
        token: bearer token; empty for none.
        certificate: files of certificate and key, if the connection has one.
    """

    kind: str
    token: str = ""
    certificate: tuple[Path, Path] | None = None


INVALID = ("expired", "foreign", "revoked")


def kinds() -> set[str]:
    """Return the kinds of callers with valid credentials that the expectations need."""
    found = {"nothing", "engine", "tenant"}
    for call in (*GRPC_CALLS.values(), *ROUTES.values()):
        if isinstance(call.needs, tuple):
            found |= set(call.needs) | {wrong_roles(call)}
    return found


def wrong_roles(call: Call) -> str:
    """Return all roles but those that a call needs."""
    return "+".join(role for role in ROLES if role not in call.needs)


def expectations(call: Call, kind: str, *, by_certificate: bool) -> str | None:
    """Return the expected outcome of a call for a kind of caller; None if it has none."""
    if by_certificate and kind in ("none", "expired", "foreign"):
        return "no connection"
    if kind in INVALID:
        return "unauthenticated"
    if kind == "none":
        return OK if call.needs == PUBLIC else "unauthenticated"
    if call.needs == NO_ROLES:
        return DENIED
    if kind in ("engine", "tenant"):
        return call.other_engine if kind == "engine" else call.other_tenant
    if isinstance(call.needs, str):
        # Any role, or none at all. What a list shows then is another row's matter.
        return call.served if kind == "nothing" and call.other_engine != HIDDEN else None
    if kind == wrong_roles(call):
        return DENIED
    return call.served if kind in call.needs else None


def table_text(keys: Path, removed: str = "") -> str:
    """Return the access table: each kind of caller by token, JSON web token and certificate."""
    rows = [f'[[jwt]]\nissuer = "{Issuer.name}"\naudience = "{Issuer.audience}"\nkeys = "{keys}"']
    for kind in sorted({*kinds(), "expired", "revoked"}):
        scope = {"engine": '["other"]'}.get(kind, '["*"]')
        tenant = "elsewhere" if kind == "tenant" else "lab"
        name = kind.replace("+", "-")
        roles = ROLES if kind in ("engine", "tenant", *INVALID) else kind.split("+")
        granted = ", ".join(f'"{role}"' for role in roles if role in ROLES)
        if kind != removed:
            digest = hashlib.sha256(f"token-{name}".encode()).hexdigest()
            rows.append(
                f'[[clients]]\nname = "{name}"\ntenant = "{tenant}"\ntoken_sha256 = "{digest}"'
                + ("\nexpires = 2020-01-01T00:00:00Z" if kind == "expired" else "")
            )
        rows.append(f'[[clients]]\nname = "c-{name}"\ntenant = "{tenant}"\ncertificate = "{name}"')
        rows.append(
            f'[[grants]]\nto = ["{name}", "c-{name}", "jwt:{name}"]\n'
            f"roles = [{granted}]\nengines = {scope}"
        )
    return "\n".join(rows)


def by_token() -> Iterator[Credentials]:
    yield Credentials("none")
    yield Credentials("foreign", "unknown")
    for kind in (*kinds(), "expired", "revoked"):
        yield Credentials(kind, f"token-{kind.replace('+', '-')}")


def by_jwt(issuer: Issuer) -> Iterator[Credentials]:
    yield Credentials("foreign", Issuer().token("infer", tenant="lab"))
    yield Credentials("foreign", issuer.token("infer", tenant="lab", aud="another"))
    yield Credentials("expired", issuer.token("infer", days=-1, tenant="lab"))
    for kind in kinds():
        tenant = "elsewhere" if kind == "tenant" else "lab"
        yield Credentials(kind, issuer.token(kind.replace("+", "-"), tenant=tenant))


def by_certificate(authority: Authority, stranger: Authority) -> Iterator[Credentials]:
    yield Credentials("none")
    yield Credentials("expired", certificate=authority.issue("expired", days=-1))
    yield Credentials("foreign", certificate=stranger.issue("infer"))
    for kind in kinds():
        yield Credentials(kind, certificate=authority.issue(kind.replace("+", "-")))


# --- tests --------------------------------------------------------------------------------


class Matrix:
    """Runs the cells of one gateway.

    Attributes:
        cells: number of cells that were run.
        wrong: descriptions of those with another outcome than expected.
    """

    def __init__(self, gateway: Gateway, authority: Path | None = None) -> None:
        self._gateway = gateway
        self._authority = authority
        self.cells = 0
        self.wrong: list[str] = []

    async def run(self, credentials: Credentials) -> None:
        spec = JobSpec(engine=EngineName(ECHO), tenant="lab")
        job = await self._gateway.app.jobs.submitted.submit(UNRESTRICTED, spec)
        await asyncio.to_thread(self._run_grpc, credentials, job.id)
        await asyncio.to_thread(self._run_http, credentials)

    def _run_grpc(self, credentials: Credentials, job_id: str) -> None:
        requests = grpc_requests(job_id)
        tls = ClientTls.read(self._authority, *(credentials.certificate or (None, None)))
        options = [("grpc.use_local_subchannel_pool", 1)]
        address = self._gateway.address
        with (
            grpc.insecure_channel(address, options)
            if tls.channel is None
            else grpc.secure_channel(address, tls.channel, options)
        ) as channel:
            for method, call in GRPC_CALLS.items():
                expected = self._expected(call, credentials)
                if expected is None:
                    continue
                message = requests.get(method)
                data = b"" if message is None else message.SerializeToString()
                outcome = grpc_outcome(channel, method, data, credentials.token, job_id)
                self._compare(method, credentials, outcome, expected)

    def _run_http(self, credentials: Credentials) -> None:
        host, _, port = self._gateway.http_address.rpartition(":")
        if self._authority is None:
            connection = http.client.HTTPConnection(host, int(port), timeout=30)
        else:
            tls = ClientTls.read(self._authority, *(credentials.certificate or (None, None)))
            connection = http.client.HTTPSConnection(
                host, int(port), timeout=30, context=tls.socket
            )
        try:
            for route, call in ROUTES.items():
                expected = self._expected(call, credentials)
                if expected is not None:
                    outcome = http_outcome(connection, route, credentials.token)
                    self._compare(route, credentials, outcome, expected)
        finally:
            connection.close()

    def _expected(self, call: Call, credentials: Credentials) -> str | None:
        return expectations(call, credentials.kind, by_certificate=self._authority is not None)

    def _compare(self, what: str, credentials: Credentials, outcome: str, expected: str) -> None:
        self.cells += 1
        if outcome != expected:
            way = "token" if credentials.token else "certificate"
            self.wrong.append(f"{what}, {credentials.kind} by {way}: {outcome}, not {expected}")


async def start(stack: AsyncExitStack, folder: Path, tls: ClientTls, **options: object) -> Gateway:
    """Start a gateway that serves the engine."""
    config = config_in(folder, reflection=True, **options)
    gateway = await stack.enter_async_context(Gateway(config))
    await stack.enter_async_context(FakeAgent(gateway.hub_address, tls=tls))
    await until(lambda: list(gateway.app.fleet.catalogue.in_service()), 0.005)
    return gateway


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    issuer = Issuer()
    issuer.publish(tmp_path / "keys.json")
    return issuer


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "access.toml"
    path.write_text(table_text(tmp_path / "keys.json"))
    return path


async def test_every_call_with_every_token(
    tmp_path: Path,
    table: Path,
    issuer: Issuer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with AsyncExitStack() as stack:
        gateway = await start(stack, tmp_path, ClientTls(), access=table)
        assert served_methods() == set(GRPC_CALLS)
        assert served_routes(gateway) == set(ROUTES)
        await asyncio.to_thread(table.write_text, table_text(tmp_path / "keys.json", "revoked"))
        assert gateway.app.entry.access is not None
        await gateway.app.entry.access.look()
        matrix = Matrix(gateway)
        for credentials in (*by_token(), *by_jwt(issuer)):
            await matrix.run(credentials)
    with capsys.disabled():
        sys.stdout.write(f" {matrix.cells} cells ")
    assert matrix.wrong == []


@pytest.mark.usefixtures("issuer")
async def test_every_call_with_every_certificate(
    tmp_path: Path, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path)
    presented = list(by_certificate(authority, Authority(tmp_path, "stranger")))
    certificate, key = authority.issue("server", server=True)
    async with AsyncExitStack() as stack:
        gateway = await start(
            stack,
            tmp_path,
            ClientTls.read(authority.file, *authority.issue("agent")),
            access=table,
            tls_cert=certificate,
            tls_key=key,
            tls_client_ca=authority.file,
            tls_clients_ca=authority.file,
        )
        matrix = Matrix(gateway, authority.file)
        for credentials in presented:
            await matrix.run(credentials)
    with capsys.disabled():
        sys.stdout.write(f" {matrix.cells} cells ")
    assert matrix.wrong == []

"""The gateway's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from synergai.core.routes.deployment import Objective
from synergai.core.routes.planner import ROUTE_PLANNERS
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.errors import InvalidInput
from synergai.runtime.paths import gateway_state
from synergai.runtime.setting_types import HUB, Address, Checked, HubAddress, LogLevel
from synergai.runtime.settings import Settings
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_MAX_UNREAD_BYTES

_MIB: Final = 1024 * 1024
_HUB_OVERHEAD_BYTES: Final = 64 * 1024
"""Bytes that a hub message may add to a client's request."""


def _validate_database(url: str) -> str:
    """Return the URL of a database if it is one of PostgreSQL, and has no password."""
    parts = urlsplit(url)
    if url and parts.scheme not in ("postgresql", "postgres"):
        raise InvalidInput(
            f"{url!r} is not a database: write postgresql://USER@HOST/DATABASE, or leave it out "
            "for a file in the state directory"
        )
    if parts.password is not None or "password=" in parts.query:
        raise InvalidInput(
            "the URL has a password, which other users of the machine could see: put it into the "
            "file that PGPASSFILE names, or into PGPASSWORD"
        )
    return url


class GatewaySettings(Settings, frozen=True, kw_only=True):
    """Settings of a gateway; times are in seconds."""

    env_prefix = "SYNERGAI_GATEWAY_"
    has_file = True
    panels: ClassVar[dict[str, tuple[str, ...]]] = {
        "Encryption and access": (
            *("tls_cert", "tls_key", "tls_client_ca", "tls_clients_ca", "access"),
            *("insecure", "audit_log"),
        ),
        "Scheduling": (
            *("policy", "strict", "objective", "preload", "infeasible", "heartbeat_s"),
            *("worker_wait_s", "routes", "route_planner", "route_objective"),
        ),
        "Storage": (*("journal", "dictionary", "results_kept_s", "store"),),
        "Connections and limits": (
            *("work_port", "grpc_server", "reflection", "max_message_bytes", "max_requests"),
            *("max_request_bytes", "max_connection_age_s", "drain_s", "probes"),
        ),
        "Records and traces": ("event_log", "traces", "trace_share"),
    }

    listen: Annotated[
        Address,
        "Address for clients (Open Inference Protocol, jobs, fleet). Port 0 picks a free port.",
    ] = "127.0.0.1:8001"
    hub: Annotated[HubAddress, "Address for agents."] = HUB
    work_port: Annotated[
        int,
        "Port on the hub's host for the agents' work sockets; 0 picks a free port. "
        "Agents must reach both ports.",
        Meta(ge=0, le=65535),
    ] = 0
    http: Annotated[
        Address,
        "Address for HTTP: clients (Open Inference Protocol in REST form), /metrics and /healthz.",
    ] = "127.0.0.1:8002"
    probes: Annotated[
        Address | None,
        "Address for plain HTTP at which Kubernetes asks whether the process is alive (/livez) and "
        "ready (/readyz).",
    ] = None
    # Time that an idle HTTP connection stays open; longer than load balancers keep theirs.
    http_keep_alive_s: Annotated[float, Meta(ge=1.0, le=3600.0)] = 75.0
    state: Annotated[Path, "Directory of the journal; used by one gateway at a time."] = (
        msgspec.field(default_factory=gateway_state)
    )
    journal: Annotated[
        str,
        "Database of the journal in PostgreSQL, such as postgresql://USER@HOST/DATABASE; "
        "default: a file in the state directory.",
        Checked(_validate_database, "URL"),
    ] = ""
    store: Annotated[
        str,
        "Store of engines that clients push: a directory, or a URL that fsspec "
        "supports, such as s3://bucket/prefix; default: store in the state directory.",
    ] = ""
    dictionary: Annotated[
        Path | None,
        "Configuration dictionary written by the profiler and updated in service; "
        "default: dictionary.db in the state directory. Engines without entries are measured at "
        "first use.",
    ] = None
    scheduling: SchedulingSettings = SchedulingSettings()
    heartbeat_s: Annotated[
        float,
        "Heartbeat interval of agents; a worker is lost after three missed heartbeats.",
        Meta(ge=0.05, le=3600.0),
    ] = 1.0
    grpc_server: Annotated[
        Literal["native", "grpcio"],
        "gRPC server of the ports for clients and agents. grpcio does not limit what one client "
        "costs the others.",
    ] = "native"
    max_message_bytes: Annotated[
        int,
        "Largest gRPC message to an agent; the limit for clients is slightly lower.",
        Meta(ge=1 * _MIB, le=1024 * _MIB),
    ] = DEFAULT_MAX_MESSAGE_BYTES
    max_requests: Annotated[int, "Limit of requests in flight.", Meta(ge=1)] = 4096
    max_request_bytes: Annotated[
        int,
        "Limit of the bytes of requests in flight. Open uploads of inputs may take "
        "half as much in addition.",
        Meta(ge=1 * _MIB),
    ] = 1024 * _MIB
    max_response_bytes: int = DEFAULT_MAX_UNREAD_BYTES
    kept_jobs: Annotated[int, Meta(ge=0)] = 100_000  # ended ones in the journal
    results_kept_s: Annotated[
        float,
        "Time for which the inputs and results of jobs over uploads are kept after their end.",
        Meta(ge=0),
    ] = 604_800.0
    routes: Annotated[
        Literal["never", "needed", "auto"],
        "When engines of the store are cut into stages: never, if no worker can hold one whole, or "
        "also if that is faster. The engine.toml of an engine may say otherwise, unless never.",
    ] = "needed"
    route_planner: Annotated[
        str, "Planner of routes.", Checked(ROUTE_PLANNERS.check, "planner")
    ] = "optimal"
    route_objective: Annotated[Objective, "What plans of routes are to have the best of."] = (
        "throughput"
    )
    worker_wait_s: Annotated[
        float,
        "Longest wait of a request, within its deadline, for a worker with an engine that the "
        "store has or a worker had, as while workers are started on demand. 0 refuses it at once.",
        Meta(ge=0.0),
    ] = 0.0
    drain_s: Annotated[
        float,
        "Time that requests in flight get to complete on shutdown; jobs resume after "
        "the next start.",
        Meta(ge=0.0),
    ] = 10.0
    tls_cert: Annotated[
        Path | None,
        "Server certificate (PEM); with --tls-key, it enables TLS on all ports.",
    ] = None
    tls_key: Annotated[Path | None, "Private key (PEM) of --tls-cert."] = None
    tls_client_ca: Annotated[
        Path | None,
        "Certificate authority (PEM) for agents, which then must present a client "
        "certificate; clients need none.",
    ] = None
    tls_clients_ca: Annotated[
        Path | None,
        "Certificate authority (PEM) for clients, which then must present a client "
        "certificate, on the HTTP port as well.",
    ] = None
    access: Annotated[
        Path | None,
        "Access table (TOML): clients, their roles and tenants. Without one, every "
        "client may do everything.",
    ] = None
    audit_log: Annotated[
        Path | None, "File to record changes and refused calls in, as JSON lines."
    ] = None
    max_connection_age_s: Annotated[
        float,
        "Time after which a gRPC connection is asked to reconnect, so that clients behind a load "
        "balancer spread over new gateways; 0 for never.",
        Meta(ge=0.0),
    ] = 0.0
    # Time that calls on such a connection get to complete; 0 for no limit.
    max_connection_age_grace_s: Annotated[float, Meta(ge=0.0)] = 0.0
    insecure: Annotated[
        bool, "Listen beyond loopback although encryption or authentication is missing."
    ] = False
    reflection: Annotated[bool, "Serve gRPC reflection for tools such as grpcurl."] = False
    event_log: Annotated[
        Path | None, "File to record the scheduler's events and commands in, for replay."
    ] = None
    traces: Annotated[
        str,
        "URL of an OpenTelemetry collector that gets the traces of requests by OTLP over gRPC, "
        "such as http://localhost:4317.",
    ] = ""
    trace_share: Annotated[
        float,
        "Share of the requests without a trace context that are traced.",
        Meta(ge=0, le=1),
    ] = 0.01
    # Services of Kubernetes that select the leader; see `gateway.standby`.
    leader_services: tuple[str, ...] = ()
    state_wait_s: float = 60.0  # for another gateway to end; systemd lets it take as long
    ready_file: Path | None = None  # see `synergai.runtime.files`
    log_level: Annotated[LogLevel, "Lowest level of messages logged to standard error."] = "info"

    def __post_init__(self) -> None:
        try:
            POLICIES.check(self.scheduling.policy)
        except InvalidInput as error:
            raise InvalidInput(f"--policy: {error}") from None

    @property
    def max_client_bytes(self) -> int:
        """Limit on the messages of clients, which agents get within larger ones."""
        return self.max_message_bytes - _HUB_OVERHEAD_BYTES

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses to listen on, for clients, agents and HTTP, by their options."""
        return {"--listen": self.listen, "--hub": self.hub, "--http": self.http}

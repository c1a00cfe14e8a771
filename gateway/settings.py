"""The gateway's settings."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path  # noqa: TC003  # pydantic needs the types of fields
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config import GatewayConfig
from synergai.errors import InvalidInput
from synergai.protocol.limits import (
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_MAX_UNREAD_BYTES,
)
from synergai.runtime.paths import gateway_state
from synergai.runtime.settings import (
    HUB,
    Address,
    Duration,
    HubAddress,
    LogLevel,
    Settings,
    Size,
    field_of,
)
from synergai.scheduling.settings import SchedulingOptions, SchedulingSettings

_MIB = 1024 * 1024


def parse_share(value: object) -> object:
    """Return a share, or a percentage such as ``1%``, as a number; other types as they are.

    Raises:
        InvalidInput: it is not from 0% to 100%.
    """
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        share = float(value[:-1]) / 100.0 if value.endswith("%") else float(value)
        if 0.0 <= share <= 1.0:
            return share
    raise InvalidInput(f"{value!r} is not a share from 0% to 100%, such as 1% or 0.01")


class _Locations(Settings):
    """Addresses and files; a separate class so that help lists them before the options."""

    listen: Address = Field(
        default="127.0.0.1:8001",
        description="Address for clients (Open Inference Protocol, jobs, fleet). Port 0 picks "
        "a free port.",
    )
    hub: HubAddress = Field(default=HUB, description="Address for agents.")
    work_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port on the hub's host for the agents' work sockets; 0 picks a free port. "
        "Agents must reach both ports.",
    )
    http: Address = Field(
        default="127.0.0.1:8002",
        description="Address for HTTP: clients (Open Inference Protocol in REST form), /metrics "
        "and /healthz.",
    )
    state: Path = Field(
        default_factory=gateway_state,
        description="Directory of the journal; used by one gateway at a time.",
    )
    store: str = Field(
        default="",
        description="Store of engines that clients push: a directory, or a URL that fsspec "
        "supports, such as s3://bucket/prefix; default: store in the state directory.",
    )
    dictionary: Path | None = Field(
        default=None,
        description="Configuration dictionary written by the profiler and updated in service; "
        "default: dictionary.db in the state directory. Engines without entries are measured at "
        "first use.",
    )


def _check_policy(name: str) -> str:
    # Imported here to keep the scheduler out of `--help`.
    from synergai.scheduling.policy import POLICIES

    return POLICIES.check(name)


class _Scheduling(Settings):
    """The scheduler's options, as it declares them."""

    policy: Annotated[str, AfterValidator(_check_policy)] = field_of(SchedulingOptions, "policy")
    strict: bool = field_of(SchedulingOptions, "strict")
    policy_options: dict[str, str] = Field(default={})
    objective: Literal["accuracy", "latency", "energy"] = field_of(SchedulingOptions, "objective")
    preload: bool = field_of(SchedulingOptions, "preload")
    infeasible: Literal["defer", "reject"] = field_of(SchedulingOptions, "infeasible")
    pace_half_life_s: Duration = SchedulingSettings().pace_half_life_s
    reassess_s: Duration = SchedulingSettings().reassess_s
    mode_switch_s: Duration = SchedulingSettings().mode_switch_s
    fair_burst_s: Duration = field_of(SchedulingOptions, "fair_burst_s")
    hedge_share: Annotated[float, BeforeValidator(parse_share)] = field_of(
        SchedulingOptions, "hedge_share"
    )


class GatewaySettings(_Scheduling, _Locations, env_prefix="SYNERGAI_GATEWAY_"):
    """Settings of ``synergai gateway``; times are in seconds."""

    heartbeat_s: Duration = Field(
        default=1.0,
        ge=0.05,
        le=3600.0,
        description="Heartbeat interval of agents; a worker is lost after three missed heartbeats.",
    )
    max_message_bytes: int = Field(
        default=DEFAULT_MAX_MESSAGE_BYTES,
        ge=1 * _MIB,
        le=1024 * _MIB,
        description="Largest gRPC message to an agent; the limit for clients is slightly lower.",
    )
    max_requests: int = Field(default=4096, ge=1, description="Limit of requests in flight.")
    max_request_bytes: int = Field(
        default=1024 * _MIB,
        ge=1 * _MIB,
        description="Limit of the bytes of requests in flight. Open uploads of inputs take up to "
        "half as much beside them.",
    )
    max_response_bytes: int = DEFAULT_MAX_UNREAD_BYTES
    max_jobs: int = Field(default=100_000, ge=1, description="Limit of unfinished jobs.")
    kept_jobs: int = Field(
        default=100_000, ge=0, description="Ended jobs kept in the journal; older ones are deleted."
    )
    store_budget: Size = Field(
        default=0, ge=0, description="Limit of the store of engines, such as 50GB; 0 for none."
    )
    store_rate: Size = Field(
        default=128 * _MIB,
        ge=0,
        description="Bytes per second of all uploads to the store and all fetches of agents "
        "together; 0 for no limit.",
    )
    results_kept_s: Duration = Field(
        default=604_800.0,
        ge=0,
        description="Time for which the inputs and results of jobs over uploads are kept after "
        "their end.",
    )
    data_budget: Size = Field(
        default=0,
        ge=0,
        description="Limit of the size of all uploads and results; beyond it, those of ended jobs "
        "are deleted earlier, and uploads are refused. 0 for none but the disk.",
    )
    drain_s: Duration = Field(
        default=10.0,
        ge=0.0,
        description="Time that requests in flight get to complete on shutdown; jobs resume after "
        "the next start.",
    )
    tls_cert: Path | None = Field(
        default=None,
        description="Server certificate (PEM); with --tls-key, it enables TLS for clients and "
        "agents.",
    )
    tls_key: Path | None = Field(default=None, description="Private key (PEM) of --tls-cert.")
    tls_client_ca: Path | None = Field(
        default=None,
        description="Certificate authority (PEM) for agents, which then must present a client "
        "certificate; clients need none.",
    )
    tls_clients_ca: Path | None = Field(
        default=None,
        description="Certificate authority (PEM) for clients, which then must present a client "
        "certificate; with --http-tls, on the HTTP port as well.",
    )
    access: Path | None = Field(
        default=None,
        description="Access table (TOML): clients, their roles and tenants. Without one, every "
        "client may do everything.",
    )
    audit_log: Path | None = Field(
        default=None,
        description="File to record changes and refused calls in, as JSON lines.",
    )
    http_tls: bool = Field(
        default=False,
        description="Encrypt the HTTP port as well, with the certificate of --tls-cert.",
    )
    insecure: bool = Field(
        default=False,
        description="Listen beyond loopback although encryption or authentication is missing.",
    )
    reflection: bool = Field(
        default=False,
        description="Serve gRPC reflection for tools such as grpcurl.",
    )
    event_log: Path | None = Field(
        default=None,
        description="File to record the scheduler's events and commands in, for replay.",
    )
    ready_file: Path | None = Field(
        default=None,
        description="File to write the bound addresses and the process id to, as JSON, once the "
        "gateway is serving.",
    )
    log_level: LogLevel = Field(
        default="info", description="Lowest level of messages logged to standard error."
    )

    def to_config(self) -> GatewayConfig:
        """Return the configuration of a gateway with these settings."""
        fields = [name for name in GatewayConfig.__struct_fields__ if name != "scheduling"]
        options = {name: getattr(self, name) for name in _Scheduling.model_fields}
        return GatewayConfig(
            **{name: getattr(self, name) for name in fields},
            scheduling=SchedulingSettings(**options),
        )

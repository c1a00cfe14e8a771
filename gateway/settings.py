"""What the operator chooses about a gateway."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # pydantic needs the types of fields
from typing import Literal

from pydantic import Field

from synergai.runtime.paths import gateway_state
from synergai.runtime.settings import Address, LogLevel, Settings
from synergai.scheduling.events import SchedulingSettings

_MIB = 1024 * 1024
_SCHEDULING = SchedulingSettings()


class GatewaySettings(Settings, env_prefix="SYNERGAI_GATEWAY_"):
    """One gateway's settings; times are seconds."""

    listen: Address = Field(
        default="127.0.0.1:8001",
        description="Where clients connect (Open Inference Protocol, jobs, fleet). Port 0 takes "
        "a free one.",
    )
    hub: Address = Field(default="127.0.0.1:8010", description="Where agents connect.")
    work_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port of the hub's host where agents open the sockets that requests go over; 0 "
        "takes a free one. Agents that cannot reach it, and all of them under TLS, use the hub's.",
    )
    http: Address = Field(
        default="127.0.0.1:8002", description="Where /metrics and /healthz are served."
    )
    state: Path = Field(
        default_factory=gateway_state,
        description="Directory of the journal; one gateway at a time.",
    )
    dictionary: Path | None = Field(
        default=None,
        description="Configuration dictionary, as the profiler writes it; what is learned in "
        "service goes there too. dictionary.db in the state directory if not given; engines "
        "that it lacks are measured as they are first used.",
    )
    policy: str = Field(default="synergai", description="Scheduling policy, by name.")
    policy_options: dict[str, str] = Field(
        default_factory=dict, description="Options of the policy itself."
    )
    objective: Literal["latency", "energy"] = Field(
        default="latency",
        description="What is chosen among what meets the deadline: the soonest done, or the least "
        "energy by the dictionary's watts.",
    )
    infeasible: Literal["defer", "reject"] = Field(
        default="defer",
        description="What becomes of work that no worker can finish in time: run last, or refused.",
    )
    pace_half_life_s: float = Field(
        default=_SCHEDULING.pace_half_life_s,
        gt=0.0,
        description="Observed time after which what was believed of a worker's pace weighs half.",
    )
    reassess_s: float = Field(
        default=_SCHEDULING.reassess_s,
        gt=0.0,
        description="How long paces may drift before waiting jobs are ranked anew.",
    )
    fair_burst_s: float = Field(
        default=_SCHEDULING.fair_burst_s,
        ge=0.0,
        description="Worker time that a tenant may have had beyond its equal share before its work "
        "yields to that of others with the same priority; inf for no fair shares.",
    )
    fair_half_life_s: float = Field(
        default=_SCHEDULING.fair_half_life_s,
        gt=0.0,
        description="After how long worker time that a tenant has had counts half.",
    )
    mode_switch_s: float = Field(
        default=_SCHEDULING.mode_switch_s,
        ge=0.0,
        description="What a change of a worker's power mode is taken to cost until one was seen.",
    )
    heartbeat_s: float = Field(
        default=1.0,
        ge=0.05,
        le=3600.0,
        description="How often agents give a sign of life; after three missed ones a worker is "
        "lost.",
    )
    max_message_bytes: int = Field(
        default=64 * _MIB,
        ge=1 * _MIB,
        le=1024 * _MIB,
        description="Largest gRPC message that agents are sent; clients may send a little less.",
    )
    max_requests: int = Field(
        default=4096, ge=1, description="How many requests may wait or run at a time."
    )
    max_request_bytes: int = Field(
        default=1024 * _MIB,
        ge=1 * _MIB,
        description="How many bytes of waiting and running requests are held.",
    )
    max_jobs: int = Field(
        default=100_000, ge=1, description="How many jobs may be unfinished at a time."
    )
    kept_jobs: int = Field(
        default=100_000, ge=0, description="How many ended jobs are remembered, the newest."
    )
    drain_s: float = Field(
        default=10.0,
        ge=0.0,
        description="How long requests under way may take when the gateway stops; jobs go on "
        "after the next start.",
    )
    tls_cert: Path | None = Field(
        default=None,
        description="Certificate (PEM) for clients and agents; with it and --tls-key, their "
        "connections are encrypted.",
    )
    tls_key: Path | None = Field(default=None, description="Private key (PEM) of --tls-cert.")
    tls_client_ca: Path | None = Field(
        default=None,
        description="Authority (PEM) that agents have to show a certificate of; clients need none.",
    )
    reflection: bool = Field(
        default=False,
        description="Let tools such as grpcurl ask which services and messages there are.",
    )
    event_log: Path | None = Field(
        default=None,
        description="File for everything the scheduler is told and answers, to replay it.",
    )
    ready_file: Path | None = Field(
        default=None,
        description="File that is written once the gateway serves: its addresses and process "
        "id, as JSON.",
    )
    log_level: LogLevel = Field(
        default="info", description="How much is logged, to standard error."
    )

    @property
    def scheduling(self) -> SchedulingSettings:
        """The scheduler's part."""
        return SchedulingSettings(
            policy=self.policy,
            objective=self.objective,
            infeasible=self.infeasible,
            pace_half_life_s=self.pace_half_life_s,
            reassess_s=self.reassess_s,
            fair_burst_s=self.fair_burst_s,
            fair_half_life_s=self.fair_half_life_s,
            mode_switch_s=self.mode_switch_s,
            options=dict(self.policy_options),
        )

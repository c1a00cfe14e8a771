"""Settings of the agent."""

from __future__ import annotations

import re
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import AfterValidator, Field, field_validator

from synergai.domain import MAX_THREADS, Configuration, EngineName, Session
from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.protocol.limits import DEFAULT_MAX_MESSAGE_BYTES
from synergai.runtime.memory import physical_memory_bytes
from synergai.runtime.paths import agent_state, default_worker_class
from synergai.runtime.settings import (
    HUB,
    Cores,
    Duration,
    HubAddress,
    LogLevel,
    Settings,
    Size,
)
from worker_agent.config import AgentConfig, WorkerConfig
from worker_agent.providers.settings import Providers  # noqa: TC001 - pydantic reads it


def _default_worker_id() -> str:
    """Return the host name, with characters that are invalid in worker ids replaced."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:128] or "worker"


def _checked_threads(threads: tuple[int, ...]) -> tuple[int, ...]:
    for count in threads:
        if not 1 <= count <= MAX_THREADS:
            raise InvalidInput(f"thread counts must be between 1 and {MAX_THREADS}, not {count}")
    return tuple(sorted(set(threads)))


class _HubAddress(Settings):
    """The gateway; a separate class so that help lists it first."""

    gateway: HubAddress = Field(default=HUB, description="Address of the gateway's hub.")


class WorkerSettings(Settings):
    """Settings of a machine as a worker, whichever process its agent runs in."""

    models: Path = Field(
        default=Path("models"), description="Model directory, with one folder per engine."
    )
    worker_id: Annotated[str, AfterValidator(lambda name: validate_name(name, "worker id"))] = (
        Field(
            default_factory=_default_worker_id, description="Unique id of this worker in the fleet."
        )
    )
    worker_class: Annotated[
        str, AfterValidator(lambda name: validate_name(name, "worker class"))
    ] = Field(
        default_factory=default_worker_class,
        description="Worker class; machines of one class are identical and share a profile.",
    )
    threads: Annotated[tuple[int, ...], AfterValidator(_checked_threads)] = Field(
        default=(),
        description="Thread counts of configurations; 1, 2, 4, … up to the core count if empty.",
    )
    providers: Providers = Field(
        default=(),
        description="Execution providers of configurations, such as CPU,OpenVINO; those that "
        "onnxruntime offers if empty. Devices and options are set in the file.",
    )
    cores: Cores = Field(
        default=(),
        description="CPU cores that engines are restricted to, such as 2-5; all if empty. The "
        "others are left to the agent, and to a gateway on the same machine.",
    )
    memory_mb: int = Field(
        default=0,
        ge=0,
        description="Limit of the memory of engines in MB: idle ones are unloaded, and else the "
        "largest is killed. If 0, idle ones are unloaded above half of the physical memory.",
    )
    pin: dict[str, str] = Field(
        default_factory=dict,
        description="Sessions to load before the worker registers, and never to evict, as "
        "ENGINE=CONFIGURATION, such as onnx_digits=threads=2.",
    )
    labels: Annotated[
        tuple[str, ...],
        AfterValidator(lambda names: tuple(validate_name(each, "label") for each in names)),
    ] = Field(
        default=(),
        description="Names by which operators select this worker, to place engines on it.",
    )
    disk_budget: Size = Field(
        default=0,
        ge=0,
        description="Limit of the engines fetched from the gateway's store, such as 20GB. "
        "Engines that are no longer placed here are kept within it; 0 keeps placed engines only.",
    )
    power: str = Field(
        default="auto",
        description="Power controller: nvpmodel, cpufreq, cgroup or none; auto detects the board.",
    )
    power_modes: tuple[str, ...] = Field(
        default=(),
        description="Power modes of configurations; all that need no reboot if empty.",
    )
    root: Path = Path("/")  # of the files of power control, such as an emulated board's
    models_look_s: Duration = 5.0  # interval between two checks of the engines' files
    hang_timeout_s: Duration = Field(
        default=30.0,
        gt=0,
        description="Seconds without a response after which an engine is restarted.",
    )
    input_roots: tuple[str, ...] = Field(
        default=(),
        description="Directories, and URLs such as s3://bucket/folder, below which the inputs of "
        "jobs may be read that name a URL; none if empty.",
    )

    @field_validator("pin")
    @classmethod
    def _are_configurations(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            Configuration.parse(text)
        return value

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Sessions to load before the worker registers."""
        return tuple(
            Session(EngineName(name), Configuration.parse(text)) for name, text in self.pin.items()
        )

    @property
    def memory_bytes(self) -> int:
        """Memory budget of resident engines in bytes."""
        return self.memory_mb << 20 or physical_memory_bytes() // 2

    @property
    def memory_limit_bytes(self) -> int:
        """Enforced limit of the memory of engines in bytes; 0 for none."""
        return self.memory_mb << 20

    @property
    def agent_version(self) -> str:
        """Version of the installed package; 0 in a checkout without installation."""
        try:
            return version("synergai")
        except PackageNotFoundError:
            return "0"

    def to_worker_config(self) -> WorkerConfig:
        """Return the configuration of a worker with these settings."""
        return msgspec.convert(self, WorkerConfig, from_attributes=True)


class AgentSettings(WorkerSettings, _HubAddress, env_prefix="SYNERGAI_AGENT_"):
    """Settings of the agent."""

    state: Path = Field(
        default_factory=agent_state,
        description="State directory, which holds the cache of engine descriptions and the "
        "worker's secret.",
    )
    tls_ca: Path | None = Field(
        default=None,
        description="CA certificate (PEM) to verify the gateway with; enables TLS.",
    )
    tls_cert: Path | None = Field(
        default=None, description="Client certificate (PEM), if the gateway requires one."
    )
    tls_key: Path | None = Field(default=None, description="Private key (PEM) of --tls-cert.")
    enrolment_token_file: Path | None = Field(
        default=None,
        description="File with an enrolment token of the gateway, which the agent exchanges for a "
        "secret at its first registration; not needed afterwards.",
    )
    drain_s: Duration = Field(
        default=30.0,
        ge=0,
        description="Seconds to complete outstanding work when the agent is stopped.",
    )
    max_message_bytes: int = Field(
        default=DEFAULT_MAX_MESSAGE_BYTES,
        ge=1 << 20,
        description="Size limit of gRPC messages in bytes.",
    )
    ready_file: Path | None = Field(
        default=None,
        description="File to write once the agent serves: its process id, as JSON. "
        "Engines may still be under inspection.",
    )
    log_level: LogLevel = Field(default="info", description="Log level; logs go to standard error.")

    def to_config(self) -> AgentConfig:
        """Return the configuration of an agent with these settings."""
        return msgspec.convert(self, AgentConfig, from_attributes=True)

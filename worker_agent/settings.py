"""What the operator of an agent can choose."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psutil
from pydantic import AfterValidator, Field, field_validator

from synergai.domain import Configuration, EngineName, Session, validate_name
from synergai.errors import InvalidInput
from synergai.protocol.converters import MAX_THREADS
from synergai.protocol.rpc import DEFAULT_MAX_MESSAGE_BYTES
from synergai.runtime.paths import agent_state, default_worker_class
from synergai.runtime.settings import Address, Cores, LogLevel, Settings
from worker_agent.cpu_affinity import check_thread_counts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.controller import PowerMode


def _default_worker_id() -> str:
    """The host's name, as far as it can be a worker's."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:128] or "worker"


def _checked_threads(threads: tuple[int, ...]) -> tuple[int, ...]:
    for count in threads:
        if not 1 <= count <= MAX_THREADS:
            raise InvalidInput(f"a number of threads is from 1 to {MAX_THREADS}, not {count}")
    return tuple(sorted(set(threads)))


class AgentSettings(Settings, env_prefix="SYNERGAI_AGENT_"):
    """Settings of a worker's agent."""

    gateway: Address = Field(
        default="127.0.0.1:8010", description="The gateway's hub, which the agent dials."
    )
    models: Path = Field(
        default=Path("models"), description="Model directory: one folder per engine."
    )
    models_look_s: float = Field(
        default=5.0,
        gt=0,
        description="How often to look for engines that came, changed or went, in seconds.",
    )
    worker_id: Annotated[str, AfterValidator(lambda name: validate_name(name, "worker id"))] = (
        Field(default_factory=_default_worker_id, description="This worker's name in the fleet.")
    )
    worker_class: Annotated[
        str, AfterValidator(lambda name: validate_name(name, "worker class"))
    ] = Field(
        default_factory=default_worker_class,
        description="What identical machines share a profile under.",
    )
    threads: Annotated[tuple[int, ...], AfterValidator(_checked_threads)] = Field(
        default=(),
        description="Thread counts that engines may run with; 1, 2, 4, … up to the cores if empty.",
    )
    cores: Cores = Field(
        default=(),
        description="Processor cores that engines are kept to, such as 2-5; all if empty. Those "
        "that are left are for the agent, and a gateway on the same machine.",
    )
    memory_mb: int = Field(
        default=0,
        ge=0,
        description="Memory for resident engines, in MB; half of the machine's if 0.",
    )
    preload: dict[str, str] = Field(
        default_factory=dict,
        description="Configurations by engine that are loaded before the worker joins, and stay, "
        "such as onnx_digits=threads=2.",
    )
    power: str = Field(
        default="auto",
        description="How power modes are controlled: nvpmodel, cpufreq, cgroup or none; auto "
        "chooses by the board.",
    )
    power_modes: tuple[str, ...] = Field(
        default=(),
        description="Power modes that engines may run in; all that need no reboot if empty.",
    )
    root: Path = Field(
        default=Path("/"),
        description="Folder that stands for / in all that is about power, as an emulated board.",
    )
    state: Path = Field(
        default_factory=agent_state,
        description="Directory for what the agent remembers of its engines.",
    )
    tls_ca: Path | None = Field(
        default=None,
        description="Authority (PEM) that the gateway's certificate has to be of; with it, the "
        "connection is encrypted.",
    )
    tls_cert: Path | None = Field(
        default=None, description="This worker's certificate (PEM), if the gateway wants one."
    )
    tls_key: Path | None = Field(default=None, description="Private key (PEM) of --tls-cert.")
    listen: Address | None = Field(
        default=None,
        description="Serve the Open Inference Protocol here as well, without a gateway.",
    )
    hang_timeout_s: float = Field(
        default=30.0, gt=0, description="An engine that is silent for so long is restarted."
    )
    drain_s: float = Field(
        default=30.0, ge=0, description="How long it finishes what it has when told to stop."
    )
    max_message_bytes: int = Field(
        default=DEFAULT_MAX_MESSAGE_BYTES,
        ge=1 << 20,
        description="Largest message to and from others.",
    )
    ready_file: Path | None = Field(
        default=None,
        description="File that is written once the agent has read its engines: its address and "
        "process id, as JSON.",
    )
    log_level: LogLevel = Field(
        default="info", description="How much is logged, to standard error."
    )

    def configurations(self, modes: Sequence[PowerMode] = ()) -> tuple[Configuration, ...]:
        """What engines can be run with: by power mode, and by rising number of threads.

        Args:
            modes: what the machine can be switched to; a mode has no more threads than cores.

        Raises:
            InvalidInput: engines are kept to fewer cores than the threads asked for, or all
                modes have fewer.
        """
        check_thread_counts(self.threads, self.cores)
        if not modes:
            cores = len(self.cores) or len(os.sched_getaffinity(0))
            return tuple(Configuration(count) for count in self.threads or _powers_of_two(cores))
        found = tuple(
            Configuration(count, mode.name)
            for mode in modes
            for count in self.threads
            or _powers_of_two(min(mode.cores, len(self.cores) or mode.cores))
            if count <= mode.cores
        )
        if not found:
            most = max(mode.cores for mode in modes)
            raise InvalidInput(
                f"no power mode has cores for {min(self.threads)} threads; the most is {most}"
            )
        return found

    @field_validator("preload")
    @classmethod
    def _are_configurations(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            Configuration.parse(text)
        return value

    @property
    def sessions(self) -> tuple[Session, ...]:
        """What is to be in memory when the worker joins."""
        return tuple(
            Session(EngineName(name), Configuration.parse(text))
            for name, text in self.preload.items()
        )

    @property
    def memory_bytes(self) -> int:
        """Memory for resident engines."""
        if self.memory_mb:
            return self.memory_mb << 20
        total: int = psutil.virtual_memory().total
        return total // 2


def _powers_of_two(cores: int) -> list[int]:
    """1, 2, 4, … below the number of cores, and that."""
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return counts if cores == 1 else [*counts, cores]

"""Settings of the agent."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from synergai.domain import MAX_THREADS, Configuration, EngineName, Session
from synergai.errors import InvalidInput
from synergai.names import validate_name
from synergai.runtime.paths import agent_state, default_worker_class
from synergai.runtime.resources import usable_cores, usable_memory_bytes
from synergai.runtime.setting_types import (
    HUB,
    Address,
    Checked,
    Cores,
    HubAddresses,
    LogLevel,
    Size,
    named,
)
from synergai.runtime.settings import Settings
from synergai.wire.limits import DEFAULT_MAX_MESSAGE_BYTES
from worker_agent.cpu_affinity import check_thread_counts, powers_of_two
from worker_agent.power.selection import AUTO, known_controller
from worker_agent.providers import CPU, Providers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.controller import PowerMode

TOKEN_VARIABLE: Final = "SYNERGAI_AGENT_TOKEN"  # noqa: S105  # a variable's name
"""Environment variable with the token, for an agent without `token_file`."""


def _default_worker_id() -> str:
    """Return the host name, with characters that are invalid in worker ids replaced."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).lstrip("._-")[:128] or "worker"


def _agent_version() -> str:
    """Return the version of the installed package; 0 in a checkout without installation."""
    from importlib.metadata import PackageNotFoundError, version  # takes memory

    try:
        return version("synergai")
    except PackageNotFoundError:
        return "0"


def _checked_threads(threads: tuple[int, ...]) -> tuple[int, ...]:
    for count in threads:
        if not 1 <= count <= MAX_THREADS:
            raise InvalidInput(f"thread counts must be between 1 and {MAX_THREADS}, not {count}")
    return tuple(sorted(set(threads)))


def _checked_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(validate_name(label, "label") for label in labels)


def _checked_libraries(libraries: tuple[str, ...]) -> tuple[str, ...]:
    for library in libraries:
        if not Path(library).is_file():
            raise InvalidInput(f"the library {library!r} does not exist")
    return tuple(map(os.path.abspath, libraries))


def _checked_pins(pins: dict[str, str]) -> dict[str, str]:
    for text in pins.values():
        Configuration.parse(text)
    return pins


class WorkerSettings(Settings, frozen=True, kw_only=True):
    """Settings of a machine as a worker, whichever process its agent runs in."""

    models: Annotated[Path, "Model directory, with one folder per engine."] = Path("models")
    worker_id: Annotated[str, named("worker id"), "Unique id of this worker in the fleet."] = (
        msgspec.field(default_factory=_default_worker_id)
    )
    worker_class: Annotated[
        str,
        named("worker class"),
        "Worker class; machines of one class are identical and share a profile.",
    ] = msgspec.field(default_factory=default_worker_class)
    threads: Annotated[
        tuple[int, ...],
        Checked(_checked_threads),
        "Thread counts of configurations; 1, 2, 4, … up to the whole cores that the agent may use "
        "if empty.",
    ] = ()
    providers: Annotated[
        Providers,
        "Execution providers of configurations, such as CPU,OpenVINO; CPU if empty. "
        "Options are set in the file.",
    ] = ()
    onnx_operators: Annotated[
        tuple[str, ...],
        Checked(_checked_libraries),
        "Shared libraries with custom operators, which ONNX Runtime loads for each engine.",
    ] = ()
    cores: Annotated[
        Cores,
        "CPU cores that engines are restricted to, such as 2-5; all if empty. The "
        "others are left to the agent, and to a gateway on the same machine.",
    ] = ()
    memory_mb: Annotated[
        int,
        "Limit of the memory of engines in MB: idle ones are unloaded, and else the largest is "
        "killed, first of those that load. If 0, idle ones are unloaded above half of the "
        "memory of the machine, container or unit.",
        Meta(ge=0),
    ] = 0
    pin: Annotated[
        dict[str, str],
        Checked(_checked_pins),
        "Sessions to load before the worker registers, and never to evict, as "
        "ENGINE=CONFIGURATION, such as onnx_digits=threads=2.",
    ] = msgspec.field(default_factory=dict)
    labels: Annotated[
        tuple[str, ...],
        Checked(_checked_labels),
        "Names by which operators select this worker, to place engines on it.",
    ] = ()
    disk_budget: Annotated[
        Size,
        "Limit of the engines fetched from the gateway's store, such as 20GB. "
        "Engines that are no longer placed here are kept within it; 0 keeps placed engines only.",
        Meta(ge=0),
    ] = 0
    power: Annotated[
        str,
        Checked(known_controller),
        "Power controller: nvpmodel, cgroup or none; auto detects the board.",
    ] = AUTO
    power_modes: Annotated[
        tuple[str, ...], "Power modes of configurations; all that need no reboot if empty."
    ] = ()
    root: Path = Path("/")  # of the files of power control, such as an emulated board's
    models_look_s: float = 5.0  # interval between two checks of the engines' files
    peer_port: Annotated[
        int,
        "Port at which other agents pull the tensors of stages from this one. "
        "If 0, tensors pass through the gateway.",
        Meta(ge=0, le=65535),
    ] = 0
    agent_version: str = msgspec.field(default_factory=_agent_version)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """Sessions to load before the worker registers."""
        return tuple(
            Session(EngineName(name), Configuration.parse(text)) for name, text in self.pin.items()
        )

    @property
    def memory_bytes(self) -> int:
        """Memory budget of resident engines in bytes."""
        return self.memory_mb * 1_000_000 or usable_memory_bytes() // 2

    @property
    def memory_limit_bytes(self) -> int:
        """Enforced limit of the memory of engines in bytes; 0 for none."""
        return self.memory_mb * 1_000_000

    def configurations(self, modes: Sequence[PowerMode] = ()) -> tuple[Configuration, ...]:
        """Return the available configurations.

        Those on the CPU come last, by increasing speed of the power mode and number of threads.
        """
        on_cpu = self._on_cpu(modes)
        if not self.providers:
            return on_cpu
        ordered = sorted(self.providers, key=lambda choice: choice.name == CPU)
        return tuple(each for choice in ordered for each in choice.configurations(on_cpu))

    def _on_cpu(self, modes: Sequence[PowerMode]) -> tuple[Configuration, ...]:
        check_thread_counts(self.threads, self.cores)
        if not modes:
            counts = self.threads or powers_of_two(usable_cores(self.cores))
            return tuple(map(Configuration, counts))
        found = tuple(
            Configuration(count, mode.name)
            for mode in sorted(modes, key=lambda mode: mode.speed)
            for count in self.threads
            or powers_of_two(min(mode.cores, len(self.cores) or mode.cores))
            if count <= mode.cores
        )
        if not found:
            most = max(mode.cores for mode in modes)
            raise InvalidInput(
                f"no power mode has cores for {min(self.threads)} threads; the maximum is {most}"
            )
        return found


class AgentSettings(Settings, frozen=True, kw_only=True):
    """Settings of the agent."""

    env_prefix = "SYNERGAI_AGENT_"
    has_file = True
    other_variables = (TOKEN_VARIABLE,)

    gateway: Annotated[
        HubAddresses,
        "Address of the gateway's hub; of several, separated by commas, the next one is tried "
        "whenever there is no connection.",
    ] = HUB
    worker: WorkerSettings = msgspec.field(default_factory=WorkerSettings)
    state: Annotated[
        Path, "State directory, which holds the cache of engine descriptions and fetched engines."
    ] = msgspec.field(default_factory=agent_state)
    tls_ca: Annotated[
        Path | None, "CA certificate (PEM) to verify the gateway with; enables TLS."
    ] = None
    tls_cert: Annotated[Path | None, "Client certificate (PEM), if the gateway requires one."] = (
        None
    )
    tls_key: Annotated[Path | None, "Private key (PEM) of --tls-cert."] = None
    token_file: Annotated[
        Path | None,
        "File with the token that the gateway's access table has a row for, from 'synergai access "
        "token ID --worker'.",
    ] = None
    drain_s: Annotated[
        float, "Seconds to complete outstanding work when the agent is stopped.", Meta(ge=0)
    ] = 30.0
    max_message_bytes: Annotated[int, "Size limit of gRPC messages in bytes.", Meta(ge=1 << 20)] = (
        DEFAULT_MAX_MESSAGE_BYTES
    )
    probes: Annotated[
        Address | None,
        "Address for plain HTTP at which Kubernetes asks whether the process is alive (/livez) and "
        "ready (/readyz).",
    ] = None
    ready_file: Path | None = None  # engines may still be under inspection
    log_level: Annotated[LogLevel, "Log level; logs go to standard error."] = "info"

"""Configuration of a running agent: its validated settings, without the library that reads them."""

from __future__ import annotations

import os
from pathlib import Path  # noqa: TC003 - msgspec reads the annotations
from typing import TYPE_CHECKING

from msgspec import Struct

from synergai.domain import Configuration, Session
from synergai.errors import InvalidInput
from worker_agent.cpu_affinity import check_thread_counts
from worker_agent.providers.choice import ProviderSettings  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Sequence

    from synergai.runtime.settings import LogLevel
    from worker_agent.power.controller import PowerMode
    from worker_agent.providers.choice import Offers
else:
    LogLevel = str


class WorkerConfig(Struct, frozen=True, kw_only=True):
    """A machine as a worker; see `WorkerSettings` for the fields that it does not document.

    Attributes:
        agent_version: version of the installed package.
        sessions: sessions to load before the worker registers, and never to evict.
        memory_bytes: memory budget of resident engines.
        memory_limit_bytes: limit that is enforced; 0 for none.
    """

    agent_version: str
    models: Path
    models_look_s: float
    worker_id: str
    worker_class: str
    threads: tuple[int, ...]
    providers: tuple[ProviderSettings, ...]
    cores: tuple[int, ...]
    memory_bytes: int
    memory_limit_bytes: int
    sessions: tuple[Session, ...]
    labels: tuple[str, ...]
    disk_budget: int
    power: str
    power_modes: tuple[str, ...]
    root: Path
    hang_timeout_s: float
    input_roots: tuple[str, ...] = ()


class AgentConfig(WorkerConfig, frozen=True, kw_only=True):
    """Configuration of an agent; see `AgentSettings`."""

    gateway: str
    state: Path
    tls_ca: Path | None
    tls_cert: Path | None
    tls_key: Path | None
    enrolment_token_file: Path | None
    drain_s: float
    max_message_bytes: int
    ready_file: Path | None
    log_level: LogLevel

    def configurations(
        self, modes: Sequence[PowerMode] = (), offers: Offers | None = None
    ) -> tuple[Configuration, ...]:
        """Return the available configurations, without devices that run beside the others.

        Those on the CPU come last, by increasing speed of the power mode and number of threads.

        Args:
            modes: available power modes; thread counts are limited by the cores of each mode.
            offers: the execution providers; None for the CPU alone.

        Raises:
            InvalidInput: `cores`, or every mode, has fewer cores than a thread count.
        """
        on_cpu = self._on_cpu(modes)
        if offers is None:
            return on_cpu
        here = (choice for choice in offers.choices if not choice.parallel)
        found = [each for choice in here for each in choice.configurations(on_cpu)]
        return (*found, *(on_cpu if offers.cpu else ()))

    def _on_cpu(self, modes: Sequence[PowerMode]) -> tuple[Configuration, ...]:
        check_thread_counts(self.threads, self.cores)
        if not modes:
            cores = len(self.cores) or len(os.sched_getaffinity(0))
            return tuple(Configuration(count) for count in self.threads or _powers_of_two(cores))
        found = tuple(
            Configuration(count, mode.name)
            for mode in sorted(modes, key=lambda mode: mode.speed)
            for count in self.threads
            or _powers_of_two(min(mode.cores, len(self.cores) or mode.cores))
            if count <= mode.cores
        )
        if not found:
            most = max(mode.cores for mode in modes)
            raise InvalidInput(
                f"no power mode has cores for {min(self.threads)} threads; the maximum is {most}"
            )
        return found


def _powers_of_two(cores: int) -> list[int]:
    """Return 1, 2, 4, … below the number of cores, and the number of cores."""
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return counts if cores == 1 else [*counts, cores]

"""Memory, descriptors and threads of a fleet's processes, and traces of bugs in their logs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from demo.local_fleet import LocalFleet

_BUGS: Final = re.compile(
    "Traceback \\(most recent|internal error [0-9a-f]{8}|never retrieved|never awaited|"
    "Exception ignored|Fatal Python error"
)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses: resident bytes, open descriptors, threads."""

    rss: int
    descriptors: int
    threads: int


def fleet_processes(fleet: LocalFleet) -> dict[str, psutil.Process]:
    """Return the gateway, the agents and their engine hosts by name."""
    found = {}
    if fleet.gateway is not None:
        found["gateway"] = psutil.Process(fleet.gateway.pid)
    for name, agent in fleet.agents.items():
        found[name] = psutil.Process(agent.pid)
        hosts = sorted(found[name].children(), key=lambda child: child.pid)
        found |= {f"{name}, host {number}": host for number, host in enumerate(hosts, 1)}
    return found


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def usage(processes: Mapping[str, psutil.Process]) -> dict[str, Usage]:
    return {
        name: Usage(process.memory_info().rss, process.num_fds(), process.num_threads())
        for name, process in processes.items()
    }


def find_bugs(directory: Path) -> Iterator[str]:
    """Yield the first trace of a bug in each log of a fleet's directory."""
    for log in sorted(directory.glob("*.log")):
        for number, line in enumerate(log.read_text(errors="replace").splitlines(), 1):
            if _BUGS.search(line):
                yield f"{log.name}, line {number}: {line[:300]}"
                break

"""Run a command with limited CPU time, to emulate heterogeneous workers on one machine.

``python -m worker_agent.power.cgroup --cpus 0.3 -- COMMAND…`` creates a cgroup, executes the
command in it, and removes the group once its last process has exited.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from synergai.errors import SynergaiError
from worker_agent.power.cgroup_versions import CpuLimit
from worker_agent.power.cpu_cgroup import CpuCgroup, new_group_name
from worker_agent.power.files import parse_cpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_REMOVE_RETRY_S: Final = 0.1
_TRIES_WHEN_EMPTY: Final = 100
"""Attempts to remove a group without processes; then the kernel refuses it for good."""
_BEGUN: Final = 3
"""File descriptor of the remover's pipe."""
_CANNOT_RUN: Final = 127


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command with limited CPU time."""
    parser = argparse.ArgumentParser(
        prog="python -m worker_agent.power.cgroup",
        description="Run a command and its child processes with limited CPU time.",
        epilog="Example: python -m worker_agent.power.cgroup --cpus 0.3 -- synergai agent …",
    )
    parser.add_argument("--cpus", type=float, default=0.0, help="0.3 is 30%% of one core")
    parser.add_argument("--cpuset", default="", help="allowed cores, such as 0-1,3")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --")
    options = parser.parse_args(arguments)
    try:
        limit = CpuLimit(options.cpus, parse_cpus(options.cpuset))
        name = new_group_name()
        _fork_remover(CpuCgroup(limit, name=name, create=False))
        CpuCgroup(limit, name=name).enter()
    except SynergaiError as error:
        sys.exit(f"error: {error}")
    # Replacing this process leaves signals and the exit status to the command.
    command = options.command
    try:
        os.execvp(command[0], command)  # noqa: S606  # the purpose of this program
    except OSError as error:
        sys.stderr.write(f"error: cannot run {command[0]}: {error.strerror}\n")
        sys.exit(_CANNOT_RUN)


def _fork_remover(group: CpuCgroup) -> None:
    """Start a daemon that removes the group once its last process has exited.

    It is started before the group is created, so that no group is left behind whenever this
    process is killed. It stays outside the group. A pipe whose writing end this process holds
    until it executes the command, or dies, tells it when to begin.
    """
    reading, _ = os.pipe()  # the writing end closes with the execution or the end
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            _remove_when_empty(group, reading)
        os._exit(0)
    os.close(reading)
    os.waitpid(child, 0)


def _remove_when_empty(group: CpuCgroup, begun: int) -> NoReturn:
    """Close all inherited descriptors but `begun`, and wait until the group can be removed."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    os.dup2(begun, _BEGUN)
    os.closerange(_BEGUN + 1, os.sysconf("SC_OPEN_MAX"))
    os.read(_BEGUN, 1)
    tries_left = _TRIES_WHEN_EMPTY
    while not group.remove() and tries_left:
        time.sleep(_REMOVE_RETRY_S)
        tries_left = _TRIES_WHEN_EMPTY if _has_members(group) else tries_left - 1
    os._exit(0)


def _has_members(group: CpuCgroup) -> bool:
    try:
        return bool(group.members())
    except OSError:
        return False


if __name__ == "__main__":
    main()

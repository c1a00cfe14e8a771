"""Run a command with a share of the processor, so that one machine can play several unlike ones.

``python -m worker_agent.power.cgroup --cpus 0.3 -- COMMAND…`` makes a control group, becomes the
command inside it, and has the group removed when the last process has left it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Final

from synergai.errors import SynergaiError
from worker_agent.power.cgroup_versions import CpuLimit
from worker_agent.power.cpu_cgroup import LimitedGroup
from worker_agent.power.files import parse_cpus

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_LOOK_AGAIN_S: Final = 0.1
_CANNOT_RUN: Final = 127


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command with at most so much of the processor."""
    parser = argparse.ArgumentParser(
        prog="python -m worker_agent.power.cgroup",
        description="Run a command, and all that it starts, with at most so much of the processor.",
        epilog="Example: python -m worker_agent.power.cgroup --cpus 0.3 -- synergai agent …",
    )
    parser.add_argument("--cpus", type=float, default=0.0, help="0.3 is 30%% of one core")
    parser.add_argument("--cpuset", default="", help="cores it may run on, such as 0-1,3")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --")
    options = parser.parse_args(arguments)
    try:
        group = LimitedGroup(CpuLimit(options.cpus, parse_cpus(options.cpuset)))
    except SynergaiError as error:
        sys.exit(f"error: {error}")
    try:
        group.enter()
        _become(options.command, group)
    except SynergaiError as error:
        group.remove()
        sys.exit(f"error: {error}")


def _become(command: list[str], group: LimitedGroup) -> NoReturn:
    """Replace this process by `command`: signals, output and exit status are its own.

    A grandchild of init stays behind outside the group and removes it in the end; a parent
    process could not do so if it were killed.
    """
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            _remove_when_empty(group)
        os._exit(0)
    os.waitpid(child, 0)
    try:
        os.execvp(command[0], command)  # noqa: S606  # to become the command is the purpose
    except OSError as error:
        sys.stderr.write(f"error: cannot run {command[0]}: {error.strerror}\n")
        sys.exit(_CANNOT_RUN)


def _remove_when_empty(group: LimitedGroup) -> NoReturn:
    """Wait, holding nothing of the command's open, until the group can be removed."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    group.leave()
    while not group.remove():
        time.sleep(_LOOK_AGAIN_S)
    os._exit(0)


if __name__ == "__main__":
    main()

"""Shares of the processor as modes: how any Linux machine plays slower ones."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, NotSupported
from worker_agent.power.cgroup_versions import CpuLimit
from worker_agent.power.controller import PowerMode, Reading, Switch, SwitchFailed, find_mode
from worker_agent.power.cpu_cgroup import LimitedGroup
from worker_agent.power.files import parse_cpus
from worker_agent.power.switching import Patience, switch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import Files

_NAME: Final = re.compile(r"(\d+(?:\.\d+)?)cpu(?:_on_(\d+(?:-\d+)?(?:_\d+(?:-\d+)?)*))?")
_SETTLED_AT_ONCE: Final = Patience(settle=0.0, limit=0.0)
_CLOSE: Final = 0.01
"""The kernel keeps whole microseconds, so that a limit read back may differ by so much of it."""


class ProcessorShares:
    """Modes such as ``0.5cpu``, half of a core, or ``2cpu_on_0-1``, two certain ones.

    The process and all that it starts from then on are in a control group of their own.

    Args:
        files: the machine.
        modes: the modes to offer; none means all cores, half of them, and so on down to half of
            one. The first is in force at once.

    Raises:
        InvalidInput: on construction, if a name is not such a mode.
        NotSupported: on construction, if the machine or our rights do not allow it.
    """

    def __init__(self, files: Files, modes: Sequence[str] = ()) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._limits = {name: parse_share(name) for name in modes or _halves(len(cores))}
        self._modes = tuple(
            PowerMode(name=name, cores=len(limit.cpuset) or min(math.ceil(limit.cpus), len(cores)))
            for name, limit in self._limits.items()
        )
        some_on_cores = any(limit.cpuset for limit in self._limits.values())
        # A group without a cpuset cannot be given one later, so it starts with all cores.
        self._all_cores = frozenset(cores) if some_on_cores else frozenset()
        first = next(iter(self._limits))
        self._group = LimitedGroup(self._limit(first), files)
        self._group.enter()

    def modes(self) -> Sequence[PowerMode]:
        """The shares on offer."""
        return self._modes

    def read(self) -> Reading:
        """The mode whose limit the kernel says is in force."""
        try:
            found = self._group.read()
        except (OSError, ValueError) as error:
            return Reading("", f"the control group cannot be read: {error}")
        for name in self._limits:
            limit = self._limit(name)
            if limit.cpuset == found.cpuset and math.isclose(
                limit.cpus, found.cpus, rel_tol=_CLOSE
            ):
                return Reading(name)
        return Reading("", f"the control group is limited to {found.cpus:g} CPUs")

    def switch(self, mode: str) -> Switch:
        """Change the limit; see `PowerController.switch`."""
        found = find_mode(self._modes, mode)
        return switch(found.name, read=self.read, apply=self._apply, patience=_SETTLED_AT_ONCE)

    def close(self) -> None:
        """Leave the group and remove it.

        Raises:
            SwitchFailed: the kernel does not let the process go.
        """
        try:
            self._group.leave()
        except OSError as error:
            raise SwitchFailed(
                f"the process cannot leave its control group: {error.strerror}", self.read()
            ) from error
        self._group.remove()

    def _limit(self, name: str) -> CpuLimit:
        limit = self._limits[name]
        return CpuLimit(limit.cpus, limit.cpuset or self._all_cores)

    def _apply(self, name: str) -> str:
        try:
            self._group.change(self._limit(name))
        except NotSupported as error:
            return str(error)
        return ""


def parse_share(name: str) -> CpuLimit:
    """The limit that a mode's name stands for.

    Raises:
        InvalidInput: it is not such a name, or the share is out of range.
    """
    found = _NAME.fullmatch(name)
    if found is None or float(found[1]) == 0:
        raise InvalidInput(
            f"{name!r} is not a share of the processor: write such as 0.5cpu, or 2cpu_on_0-1"
        )
    return CpuLimit(float(found[1]), parse_cpus((found[2] or "").replace("_", ",")))


def _halves(cores: int) -> list[str]:
    shares = [float(cores)]
    while shares[-1] > 0.5:
        shares.append(shares[-1] / 2)
    return [f"{share:g}cpu" for share in shares]

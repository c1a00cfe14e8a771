"""CPU shares as power modes, with which any Linux machine can emulate slower ones."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, NotSupported
from synergai.runtime.cgroups import usable_cpus
from worker_agent.power.cgroup_versions import CpuLimit, detect_hierarchy
from worker_agent.power.controller import PowerMode, Reading, SwitchFailed, SwitchResult, find_mode
from worker_agent.power.files import parse_cpus
from worker_agent.power.switching import SwitchTiming, switch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from worker_agent.power.files import MachineFiles

_NAME: Final = re.compile(r"(\d+(?:\.\d+)?)cpu(?:_on_(\d+(?:-\d+)?(?:_\d+(?:-\d+)?)*))?")
_NO_SETTLING: Final = SwitchTiming(settle=0.0, timeout=0.0)
_RELATIVE_TOLERANCE: Final = 0.01
"""The kernel keeps whole microseconds, so that a limit read back may differ slightly."""


class CpuShareController:
    """Controller with modes such as ``0.5cpu`` (half a core) or ``2cpu_on_0-1`` (cores 0 and 1).

    The process moves into a cgroup on construction, with the first mode, by default all cores; its
    later children inherit the limit.
    """

    def __init__(self, files: MachineFiles, modes: Sequence[str] = ()) -> None:
        cores = sorted(os.sched_getaffinity(0))
        self._limits = {
            name: parse_share(name) for name in modes or _halves(usable_cpus(root=files.root))
        }
        self._modes = tuple(_mode(name, limit, len(cores)) for name, limit in self._limits.items())
        some_on_cores = any(limit.cpuset for limit in self._limits.values())
        # A group created without a cpuset cannot be given one later, so start with all cores.
        self._all_cores = frozenset(cores) if some_on_cores else frozenset()
        first = next(iter(self._limits))
        self._group = CpuCgroup(self._limit(first), files)
        self._group.enter()

    def modes(self) -> Sequence[PowerMode]:
        """Return the CPU shares as modes."""
        return self._modes

    def read(self) -> Reading:
        """Return the mode that matches the limit in force."""
        try:
            found = self._group.read()
        except (OSError, ValueError, ZeroDivisionError) as error:
            return Reading("", f"cannot read the cgroup: {error}")
        for name in self._limits:
            limit = self._limit(name)
            if limit.cpuset == found.cpuset and math.isclose(
                limit.cpus, found.cpus, rel_tol=_RELATIVE_TOLERANCE
            ):
                return Reading(name)
        return Reading("", f"the cgroup is limited to {found.cpus:g} CPUs")

    def switch(self, mode: str) -> SwitchResult:
        """Change the limit; see `PowerController.switch`."""
        found = find_mode(self._modes, mode)
        return switch(found.name, read=self.read, apply=self._apply, timing=_NO_SETTLING)

    def close(self) -> None:
        """Leave the group and remove it."""
        try:
            self._group.leave()
        except OSError as error:
            raise SwitchFailed(f"cannot leave the cgroup: {error.strerror}", self.read()) from error
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
    """Return the CPU limit that a mode's name encodes."""
    found = _NAME.fullmatch(name)
    if found is None or float(found[1]) == 0:
        raise InvalidInput(
            f"{name!r} is not a CPU share; expected a name such as 0.5cpu or 2cpu_on_0-1"
        )
    return CpuLimit(float(found[1]), parse_cpus((found[2] or "").replace("_", ",")))


def _mode(name: str, limit: CpuLimit, machine_cores: int) -> PowerMode:
    cores = len(limit.cpuset) or min(math.ceil(limit.cpus), machine_cores)
    return PowerMode(name=name, cores=cores, share=min(1.0, limit.cpus / cores))


def _halves(cpus: float) -> list[str]:
    shares = [cpus]
    while shares[-1] > 0.5:
        shares.append(shares[-1] / 2)
    return [f"{share:g}cpu" for share in shares]


class CpuCgroup:
    """Cgroup that this process can enter and leave."""

    def __init__(self, limit: CpuLimit, files: MachineFiles) -> None:
        self._files = files
        self._hierarchy = detect_hierarchy(files)
        self._limit = limit
        self.folders: tuple[str, ...] = ()
        """Directories of the group."""
        self._sweep()
        # Others know by the process when the group may be swept.
        name = f"synergai-{os.getpid()}-{secrets.token_hex(3)}"
        try:
            for folder in self._hierarchy.folders(name, cpuset=bool(limit.cpuset)):
                self._files.make_directory(folder)
                self.folders += (folder,)
                self._hierarchy.prepare(folder)
        except OSError as error:
            self.remove()
            raise NotSupported(
                f"cannot create a cgroup: {error.filename}: {error.strerror}; run as root, "
                "or in a systemd unit with Delegate=cpu cpuset"
            ) from error

    def enter(self) -> None:
        """Move this process into the group and apply the limit; new children inherit it."""
        try:
            for folder in self.folders:
                self._files.write(f"{folder}/cgroup.procs", str(os.getpid()))
            self._hierarchy.after_enter(self._limit)
            self._write(self._limit)
        except OSError as error:
            self.leave()
            raise NotSupported(
                f"cannot limit CPU time: {error.filename}: {error.strerror}; the limit must not "
                "exceed that of the parent group, and with cgroup v2 the parent group must have "
                "no other process (systemd-run --scope creates a group)"
            ) from error

    def leave(self) -> None:
        """Move this process back to its previous group."""
        for folder in self.folders:
            self._hierarchy.before_leave(folder)
            parent = folder.rpartition("/")[0]
            self._files.write(f"{parent}/cgroup.procs", str(os.getpid()))

    def change(self, limit: CpuLimit) -> None:
        """Apply another limit."""
        try:
            self._write(limit)
        except OSError as error:
            raise NotSupported(
                f"the kernel refused a limit of {limit.cpus:g} CPUs: {error.strerror}; the limit "
                "must not exceed that of the parent group"
            ) from error

    def read(self) -> CpuLimit:
        """Return the limit in force, as the kernel reports it."""
        limits = [self._hierarchy.read(folder) for folder in self.folders]
        return CpuLimit(limits[0].cpus, limits[-1].cpuset)

    def remove(self) -> bool:
        """Remove the group; return False if it still has processes."""
        try:
            for folder in self.folders:
                # Another process may have swept it, since the one that it is named after is dead.
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove_directory(folder)
                self.folders = tuple(other for other in self.folders if other != folder)
        except OSError:
            return False
        return True

    def _sweep(self) -> None:
        """Remove groups of processes that died without cleaning up."""
        for folder in self._hierarchy.own_groups():
            for left in self._files.find(folder, "synergai-*-*"):
                pid = left.rpartition("/")[2].split("-")[1]
                if not self._files.exists(f"/proc/{pid}"):
                    with contextlib.suppress(OSError):
                        self._files.remove_directory(left)

    def _write(self, limit: CpuLimit) -> None:
        for folder in self.folders:
            self._hierarchy.limit(folder, limit)

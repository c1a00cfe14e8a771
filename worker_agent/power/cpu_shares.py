"""CPU shares as power modes, with which any Linux machine can emulate slower ones."""

from __future__ import annotations

import contextlib
import math
import os
import re
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, NotSupported
from synergai.runtime.resources import find_cgroup, usable_cpus
from worker_agent.power.controller import (
    PowerMode,
    Reading,
    SwitchFailed,
    SwitchResult,
    SwitchTiming,
    find_mode,
    switch,
)
from worker_agent.power.files import MachineFiles, format_cpus, parse_cpus

if TYPE_CHECKING:
    from collections.abc import Sequence


# Many boards and container hosts mount v1 controllers next to an idle v2 hierarchy.

PERIOD_US: Final = 10_000
"""Short, so that a limited process is throttled evenly instead of stopped for long intervals."""
MIN_QUOTA_US: Final = 1_000
"""The kernel's minimum; smaller shares get a longer period."""


@dataclass(frozen=True)
class CpuLimit:
    """CPU time and cores that a cgroup may use.

    Attributes:
        cpus: CPU seconds per second; 0.3 is 30% of one core, 0 means no limit.
        cpuset: allowed cores; empty means all.
    """

    cpus: float = 0.0
    cpuset: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.cpus != 0 and not 0.01 <= self.cpus <= 8192:
            raise InvalidInput(f"a limit must be from 0.01 to 8192 CPUs, not {self.cpus:g}")

    @property
    def period_us(self) -> int:
        """Accounting period of the quota, in microseconds."""
        return max(PERIOD_US, round(MIN_QUOTA_US / self.cpus)) if self.cpus else PERIOD_US

    @property
    def quota_us(self) -> int:
        """CPU time per period, in microseconds; -1 for no limit, as in v1."""
        return max(MIN_QUOTA_US, round(self.cpus * self.period_us)) if self.cpus else -1


@dataclass(frozen=True)
class _CgroupV1:
    """File operations on groups; `_CgroupV2` has the same."""

    files: MachineFiles
    cpu: str
    cpuset: str

    def own_groups(self) -> tuple[str, ...]:
        """Return the directories of the process's current groups, the parents of new ones."""
        return (self.cpu, *([self.cpuset] if self.cpuset else []))

    def folders(self, name: str, *, cpuset: bool) -> tuple[str, ...]:
        """Return the directories of the group `name` below the process's current groups."""
        if cpuset and not self.cpuset:
            raise NotSupported("this machine has no cpuset hierarchy; omit the cores")
        return tuple(f"{own}/{name}" for own in (self.cpu, *([self.cpuset] if cpuset else [])))

    def prepare(self, folder: str) -> None:
        """Initialise a newly created directory so that a process can enter it."""
        if folder.startswith(f"{self.cpuset}/"):
            # A v1 cpuset cannot be entered while either of its lists is empty.
            for list_name in ("cpuset.mems", "cpuset.cpus"):
                own = self.files.read(f"{self.cpuset}/{list_name}")
                self.files.write(f"{folder}/{list_name}", own)

    def after_enter(self, limit: CpuLimit) -> None:
        """Enable the controllers, once the process has moved to the new group."""

    def before_leave(self, folder: str) -> None:
        """Disable the controllers, before the process moves back."""

    def limit(self, folder: str, limit: CpuLimit) -> None:
        """Write `limit` to the files of a directory."""
        if folder.startswith(f"{self.cpu}/"):
            # Lift the quota first: the kernel validates quota and period separately.
            self.files.write(f"{folder}/cpu.cfs_quota_us", "-1")
            self.files.write(f"{folder}/cpu.cfs_period_us", str(limit.period_us))
            self.files.write(f"{folder}/cpu.cfs_quota_us", str(limit.quota_us))
        else:
            own = self.files.read(f"{self.cpuset}/cpuset.cpus")
            self.files.write(f"{folder}/cpuset.cpus", format_cpus(limit.cpuset) or own)

    def read(self, folder: str) -> CpuLimit:
        """Return the limit in force, as far as this directory holds it."""
        if not folder.startswith(f"{self.cpu}/"):
            return CpuLimit(cpuset=parse_cpus(self.files.read(f"{folder}/cpuset.cpus")))
        quota = int(self.files.read(f"{folder}/cpu.cfs_quota_us"))
        period = int(self.files.read(f"{folder}/cpu.cfs_period_us"))
        return CpuLimit(cpus=max(0, quota) / period)


@dataclass(frozen=True)
class _CgroupV2:
    files: MachineFiles
    own: str

    def own_groups(self) -> tuple[str, ...]:
        return (self.own,)

    def folders(self, name: str, *, cpuset: bool) -> tuple[str, ...]:  # noqa: ARG002  # one tree
        return (f"{self.own}/{name}",)

    def prepare(self, folder: str) -> None:
        pass

    def after_enter(self, limit: CpuLimit) -> None:
        # Not earlier: a group that has processes cannot enable controllers for children.
        wanted = ["cpu", *(["cpuset"] if limit.cpuset else [])]
        enabled = self.files.read(f"{self.own}/cgroup.subtree_control").split()
        missing = " ".join(f"+{name}" for name in wanted if name not in enabled)
        if missing:
            self.files.write(f"{self.own}/cgroup.subtree_control", missing)

    def before_leave(self, folder: str) -> None:
        # For the same reason, unless sibling groups still need the controllers.
        if self.files.find(self.own, "*/cgroup.procs") == [f"{folder}/cgroup.procs"]:
            enabled = self.files.read(f"{self.own}/cgroup.subtree_control").split()
            controllers = " ".join(f"-{name}" for name in ("cpuset", "cpu") if name in enabled)
            if controllers:
                self.files.write(f"{self.own}/cgroup.subtree_control", controllers)

    def limit(self, folder: str, limit: CpuLimit) -> None:
        quota = str(limit.quota_us) if limit.cpus else "max"
        self.files.write(f"{folder}/cpu.max", f"{quota} {limit.period_us}")
        if limit.cpuset or self.files.exists(f"{folder}/cpuset.cpus"):
            self.files.write(f"{folder}/cpuset.cpus", format_cpus(limit.cpuset))

    def read(self, folder: str) -> CpuLimit:
        quota, period = self.files.read(f"{folder}/cpu.max").split()
        cpuset: frozenset[int] = frozenset()
        if self.files.exists(f"{folder}/cpuset.cpus"):
            cpuset = parse_cpus(self.files.read(f"{folder}/cpuset.cpus"))
        return CpuLimit(0.0 if quota == "max" else int(quota) / int(period), cpuset)


def detect_hierarchy(files: MachineFiles) -> _CgroupV1 | _CgroupV2:
    """Return the hierarchy that can limit this process's CPU time."""
    cpu, cpuset = (find_cgroup(name, files.root) for name in ("cpu", "cpuset"))
    if not cpu.levels or not files.exists(f"{cpu.levels[0]}/cgroup.procs"):
        raise NotSupported(
            "cannot limit CPU time on this machine: neither cgroup v2 nor the v1 cpu hierarchy "
            "is mounted"
        )
    if cpu.version == 2:
        return _CgroupV2(files, cpu.levels[0])
    cpuset_folder = cpuset.levels[0] if cpuset.version == 1 else ""
    return _CgroupV1(files, cpu.levels[0], cpuset_folder)


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

"""CPU time limits in cgroup v1 and v2.

Many boards and container hosts mount v1 controllers next to an idle v2 hierarchy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput, NotSupported
from synergai.runtime.cgroups import find_cgroup
from worker_agent.power.files import format_cpus, parse_cpus

if TYPE_CHECKING:
    from worker_agent.power.files import MachineFiles

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

"""Emulation of cgroupfs in a directory, as far as the tests need it."""

import errno
import os
from pathlib import Path

import pytest

from worker_agent.power.files import MachineFiles

V1 = {
    "cpu": {"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"},
    "cpuset": {"cpuset.cpus": "0-3", "cpuset.mems": "0"},
}
V2 = {"cpu.max": "max 100000", "cpuset.cpus": "", "cgroup.subtree_control": ""}


class EmulatedCgroups(MachineFiles):
    """Directory in which new groups have the kernel's files, and processes move between groups."""

    __slots__ = ()

    def make_directory(self, path: str) -> None:
        """Create a group with its files."""
        super().make_directory(path)
        v1 = next((files for name, files in V1.items() if f"/{name}/" in path), None)
        files = dict.fromkeys(v1, "") if v1 is V1["cpuset"] else v1 or V2
        for name, value in {**files, "cgroup.procs": ""}.items():
            (self.path(path) / name).write_text(value)

    def remove_directory(self, path: str) -> None:
        """Remove a group that has no members."""
        if self.read(f"{path}/cgroup.procs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        for file in self.path(path).iterdir():
            file.unlink()
        super().remove_directory(path)

    def write(self, path: str, text: str) -> None:
        """Write; a process that enters a group leaves the one that it was in."""
        if path.endswith("/cgroup.procs"):
            tree = "/".join(path.split("/")[:5]) if "/cpu" in path else "/sys/fs/cgroup"
            for other in self.path(tree).rglob("cgroup.procs"):
                other.write_text("")
        if path.endswith("/cpuset.cpus") and "9" in text:
            raise OSError(errno.ERANGE, os.strerror(errno.ERANGE), path)
        if path.endswith("/cgroup.subtree_control"):
            self._control(path, text)
        else:
            super().write(path, text)

    def _control(self, path: str, text: str) -> None:
        if self.read(f"{path.rpartition('/')[0]}/cgroup.procs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), path)
        enabled = set(self.read(path).split())
        for change in text.split():
            (enabled.add if change[0] == "+" else enabled.discard)(change[1:])
        super().write(path, " ".join(sorted(enabled)))


def _seed(root: Path, files: dict[str, str]) -> EmulatedCgroups:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return EmulatedCgroups(root)


@pytest.fixture
def version_1(tmp_path: Path) -> EmulatedCgroups:
    files = {
        "proc/self/cgroup": "4:memory:/m\n3:cpuset:/\n1:cpu:/box\n0::/\n",
        "proc/self/mountinfo": (
            "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
            "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n"
            "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
        ),
    }
    for name, own in (("cpu", "/box"), ("cpuset", "")):
        for file, value in {**V1[name], "cgroup.procs": str(os.getpid())}.items():
            files[f"sys/fs/cgroup/{name}{own}/{file}"] = value
    return _seed(tmp_path, files)


@pytest.fixture
def version_2(tmp_path: Path) -> EmulatedCgroups:
    files = {
        "proc/self/cgroup": "0::/unit\n",
        "proc/self/mountinfo": "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/unit/cgroup.subtree_control": "",
        "sys/fs/cgroup/unit/cgroup.procs": str(os.getpid()),
    }
    return _seed(tmp_path, files)


@pytest.fixture(params=["version_1", "version_2"])
def groups(request: pytest.FixtureRequest) -> EmulatedCgroups:
    """Both versions of cgroups in turn."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, EmulatedCgroups)
    return found

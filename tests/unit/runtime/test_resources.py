"""CPUs, memory and cgroups of the machine, and limits of processes."""

import math
import os
import resource
from pathlib import Path
from unittest.mock import Mock

import pytest

from synergai.runtime import resources

MIB = 1 << 20
V1_MOUNTS = """\
30 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 30 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 30 0:32 {top} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 30 0:38 {top} /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "31 23 0:28 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
V1_FILES = {
    "cpu,cpuacct{own}/cpu.cfs_quota_us": "50000\n",
    "cpu,cpuacct{own}/cpu.cfs_period_us": "100000\n",
    "memory{own}/memory.limit_in_bytes": f"{600 * MIB}\n",
    "memory{own}/memory.usage_in_bytes": f"{250 * MIB}\n",
    "memory{own}/memory.stat": f"cache 1\ninactive_file 7\ntotal_inactive_file {50 * MIB}\n",
}
V2_FILES = {
    "{own}/cpu.max": "50000 100000\n",
    "{own}/memory.max": f"{600 * MIB}\n",
    "{own}/memory.high": "max\n",
    "{own}/memory.current": f"{250 * MIB}\n",
    "{own}/memory.stat": f"anon 1\ninactive_file {50 * MIB}\n",
}
OWN = "/kubepods/pod1/main"


def a_machine(root: Path, version: int, own: str = OWN, top: str = "/", seen: str = "") -> Path:
    """Create the files of a limited group: its own path, the mount's root, and where it is seen."""
    v1 = version == 1
    lines = f"5:cpuacct,cpu:{own}\n4:memory:{own}\n0::{own}\n" if v1 else f"0::{own}\n"
    write(root, "proc/self/cgroup", lines)
    write(root, "proc/self/mountinfo", (V1_MOUNTS if v1 else V2_MOUNTS).format(top=top))
    write(root, "proc/meminfo", "MemTotal: 9 kB\nMemAvailable: 8388608 kB\n")
    for name, text in (V1_FILES if v1 else V2_FILES).items():
        write(root, f"sys/fs/cgroup/{name.format(own=seen)}", text)
    return root


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 4 << 20))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("own", "top", "seen"),
    [
        ("/system.slice/agent.service", "/", "/system.slice/agent.service"),  # a systemd unit
        (OWN, OWN, ""),  # a container with the paths of the host
        ("/", "/", ""),  # a container with a cgroup namespace
        (OWN, "/", ""),  # one that does not see its own group
        ("/../other", "/", ""),  # a process from outside the namespace
        (OWN, "/docker/x", ""),  # a mount of another group
    ],
)
def test_limits_of_the_own_group_are_found_wherever_it_is_mounted(
    tmp_path: Path, version: int, own: str, top: str, seen: str
) -> None:
    root = a_machine(tmp_path, version, own, top, seen)
    assert resources.usable_cpus(root=root) == 0.5
    assert resources.usable_cores(root=root) == 1
    assert resources.usable_memory_bytes(root) == 600 * MIB
    assert resources.available_memory_bytes(root) == 400 * MIB


@pytest.mark.parametrize(
    ("version", "quota", "memory"),
    [
        (1, {"cpu.cfs_quota_us": "20000", "cpu.cfs_period_us": "100000"}, "memory.limit_in_bytes"),
        (2, {"cpu.max": "20000 100000"}, "memory.high"),
    ],
)
def test_the_lowest_limit_of_a_group_and_its_parents_counts(
    tmp_path: Path, version: int, quota: dict[str, str], memory: str
) -> None:
    root = a_machine(tmp_path, version, seen=OWN)
    cpu, data = ("cpu,cpuacct", "memory") if version == 1 else (".", ".")
    for name, text in quota.items():
        write(root, f"sys/fs/cgroup/{cpu}/kubepods/{name}", text)
    write(root, f"sys/fs/cgroup/{data}/kubepods/pod1/{memory}", str(100 * MIB))
    assert resources.cpu_quota(root) == 0.2
    assert resources.usable_memory_bytes(root) == 100 * MIB
    assert resources.available_memory_bytes(root) == 100 * MIB  # what the pod uses is not known


@pytest.mark.parametrize(
    ("quota", "cores", "cpus", "whole"),
    [
        ("max 100000", [], 4, 4),
        ("250000 100000", [], 2.5, 2),
        ("250000 100000", [0, 1], 2, 2),
        ("900000 100000", [], 4, 4),
        ("1000 100000", [], 0.01, 1),
    ],
)
def test_threads_are_the_whole_cores_of_quota_affinity_and_own_cores(
    tmp_path: Path, quota: str, cores: list[int], cpus: float, whole: int
) -> None:
    root = a_machine(tmp_path, 2)
    write(root, "sys/fs/cgroup/cpu.max", quota)
    assert (resources.usable_cpus(cores, root), resources.usable_cores(cores, root)) == (
        cpus,
        whole,
    )


@pytest.mark.parametrize(
    ("version", "name", "text"),
    [
        (2, "proc/self/cgroup", "garbage"),
        (2, "proc/self/mountinfo", "31 23\n"),
        (2, "proc/self/mountinfo", ""),
        (2, "sys/fs/cgroup/cpu.max", ""),
        (2, "sys/fs/cgroup/cpu.max", "-5 x"),
        (2, "sys/fs/cgroup/cpu.max", "50000 0"),
        (1, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1"),
        (1, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", ""),
    ],
)
def test_what_cannot_be_read_limits_nothing(
    tmp_path: Path, version: int, name: str, text: str
) -> None:
    root = a_machine(tmp_path, version)
    write(root, name, text)
    assert resources.cpu_quota(root) == math.inf


@pytest.mark.parametrize("text", ["", "max", "0", "9223372036854771712"])
def test_without_a_memory_limit_the_physical_memory_is_usable(tmp_path: Path, text: str) -> None:
    root = a_machine(tmp_path, 1)
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", text)
    assert resources.usable_memory_bytes(root) == 16 << 30
    assert resources.available_memory_bytes(root) == 8 << 30


def test_a_machine_without_cgroups_has_no_limits(tmp_path: Path) -> None:
    assert resources.find_cgroup("cpu", tmp_path).levels == ()
    assert (resources.cpu_quota(tmp_path), list(resources.memory_limits(tmp_path))) == (
        math.inf,
        [],
    )


def test_escaped_characters_of_mounts_are_read(tmp_path: Path) -> None:
    root = a_machine(tmp_path, 2)
    line = "31 23 0:28 / /my\\040cgroups rw - cgroup2 cgroup rw\n"
    write(root, "proc/self/mountinfo", line)
    write(root, "my cgroups/cpu.max", "30000 100000")
    assert resources.cpu_quota(root) == 0.3


def test_peak_begins_anew_once_it_is_forgotten() -> None:
    large = b"x" * (256 << 20)
    del large
    assert resources.forget_peak_rss(os.getpid())
    assert resources.peak_rss_bytes(os.getpid()) < resources.rss_bytes(os.getpid()) + (64 << 20)


def test_peak_of_a_process_that_has_exited_cannot_be_forgotten() -> None:
    assert not resources.forget_peak_rss(2**30)


UNLIMITED = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "raised"),
    [
        (1024, 4096, 4096),
        (1024, 1 << 20, resources.MAX_DESCRIPTORS),
        (1024, UNLIMITED, resources.MAX_DESCRIPTORS),
        (4096, 4096, None),
        (1 << 20, 1 << 20, None),
        (UNLIMITED, UNLIMITED, None),
    ],
)
def test_soft_limit_is_raised_to_the_hard_one_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, raised: int | None
) -> None:
    setter = Mock()
    monkeypatch.setattr("resource.getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr("resource.setrlimit", setter)
    resources.raise_descriptor_limit()
    expected = [] if raised is None else [(resource.RLIMIT_NOFILE, (raised, hard))]
    assert [call.args for call in setter.call_args_list] == expected

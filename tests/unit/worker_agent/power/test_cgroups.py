"""CPU limits in both versions of cgroups, and CPU shares as modes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from synergai.errors import InvalidInput, NotSupported
from worker_agent.power.controller import Reading, SwitchFailed
from worker_agent.power.cpu_shares import CpuCgroup, CpuLimit, CpuShareController, parse_share
from worker_agent.power.files import MachineFiles

PID = str(os.getpid())


def directories(files: MachineFiles) -> list[str]:
    return files.find("/sys/fs/cgroup", "**/synergai-*")


@contextmanager
def entered(limit: CpuLimit, files: MachineFiles) -> Iterator[CpuCgroup]:
    group = CpuCgroup(limit, files)
    group.enter()
    yield group
    group.leave()
    assert group.remove()


def members(group: CpuCgroup, files: MachineFiles) -> set[int]:
    found = (files.read(f"{folder}/cgroup.procs") for folder in group.folders)
    return {int(pid) for pids in found for pid in pids.split()}


def test_no_limit_is_written_in_the_kernels_notation(groups: MachineFiles) -> None:
    with entered(CpuLimit(), groups) as group:
        assert group.read() == CpuLimit()
        words = {groups.read(path) for path in groups.find(group.folders[0], "cpu.*")}
        assert words & {"-1", "max 10000"}


def test_after_a_refusal_the_process_is_back_in_its_group(groups: MachineFiles) -> None:
    group = CpuCgroup(CpuLimit(1.0, frozenset({9})), groups)
    with pytest.raises(NotSupported, match=r"cpuset.cpus.*Numerical result out of range"):
        group.enter()
    assert members(group, groups) == set()
    assert group.remove()


def test_a_group_with_processes_is_not_removed(groups: MachineFiles) -> None:
    group = CpuCgroup(CpuLimit(1.0), groups)
    group.enter()
    assert not group.remove()
    group.leave()
    assert group.remove()
    assert directories(groups) == []


def test_controllers_of_version_2_stay_on_while_another_group_needs_them(
    version_2: MachineFiles,
) -> None:
    version_2.make_directory("/sys/fs/cgroup/unit/other")
    with entered(CpuLimit(1.0), version_2):
        pass
    assert version_2.read("/sys/fs/cgroup/unit/cgroup.subtree_control") == "cpu"


def test_groups_of_dead_processes_are_removed(version_1: MachineFiles) -> None:
    left = "/sys/fs/cgroup/cpu/box/synergai-999999999-abc"
    version_1.make_directory(left)
    version_1.make_directory(alive := f"/sys/fs/cgroup/cpu/box/synergai-{PID}-abc")
    version_1.path(f"/proc/{PID}").mkdir()
    CpuCgroup(CpuLimit(1.0), version_1)
    assert not version_1.exists(left)
    assert version_1.exists(alive)


def test_group_that_another_process_removed_is_gone(groups: MachineFiles) -> None:
    group = CpuCgroup(CpuLimit(1.0), groups)
    for folder in group.folders:
        groups.remove_directory(folder)
    assert group.remove()
    assert group.folders == ()


def test_a_machine_without_control_groups_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="neither cgroup v2 nor the v1 cpu hierarchy"):
        CpuCgroup(CpuLimit(1.0), MachineFiles(tmp_path))


@pytest.mark.parametrize("cpus", [-1.0, 0.001, float("nan"), float("inf"), 1e6])
def test_a_limit_out_of_range_is_refused(cpus: float) -> None:
    with pytest.raises(InvalidInput):
        CpuLimit(cpus)


# --- modes ------------------------------------------------------------------------------


def test_shares_are_switched_and_read_back(groups: MachineFiles) -> None:
    power = CpuShareController(groups, ["2cpu_on_0-1", "1cpu", "0.25cpu_on_0_2"])
    assert [mode.cores for mode in power.modes()] == [2, 1, 2]
    assert power.read() == Reading("2cpu_on_0-1")
    for name in ("0.25cpu_on_0_2", "1cpu", "2cpu_on_0-1"):
        assert power.switch(name).mode == name
        assert power.read() == Reading(name)
    power.close()
    assert directories(groups) == []


def test_the_default_shares_are_all_cores_and_repeated_halves(
    groups: MachineFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    power = CpuShareController(groups)
    assert [mode.name for mode in power.modes()] == ["4cpu", "2cpu", "1cpu", "0.5cpu"]


def test_the_default_shares_begin_at_the_limit_of_the_container(version_2: MachineFiles) -> None:
    version_2.path("/sys/fs/cgroup/unit/cpu.max").write_text("75000 100000")
    power = CpuShareController(version_2)
    assert [mode.name for mode in power.modes()] == ["0.75cpu", "0.375cpu"]


@pytest.mark.parametrize(
    ("version", "name", "text"),
    [
        ("version_1", "cpu.cfs_period_us", "0"),
        ("version_1", "cpu.cfs_quota_us", ""),
        ("version_2", "cpu.max", ""),
        ("version_2", "cpu.max", "many 10000"),
        ("version_2", "cpu.max", "5 100000"),
        ("version_2", "cpuset.cpus", "all"),
    ],
)
def test_a_limit_that_cannot_be_read_matches_no_mode(
    request: pytest.FixtureRequest, version: str, name: str, text: str
) -> None:
    groups = request.getfixturevalue(version)
    power = CpuShareController(groups, ["1cpu"])
    (folder,) = [each for each in directories(groups) if groups.exists(f"{each}/{name}")]
    groups.path(f"{folder}/{name}").write_text(text)
    reading = power.read()
    assert reading.mode == ""
    assert reading.detail


def test_a_limit_written_by_another_program_matches_no_mode(version_2: MachineFiles) -> None:
    power = CpuShareController(version_2, ["1cpu", "0.5cpu"])
    (folder,) = directories(version_2)
    version_2.write(f"{folder}/cpu.max", "7000 10000")
    assert power.read() == Reading("", "the cgroup is limited to 0.7 CPUs")


def test_a_refused_share_leaves_the_mode_that_was_in_force(version_1: MachineFiles) -> None:
    power = CpuShareController(version_1, ["1cpu_on_0", "1cpu_on_9"])
    with pytest.raises(SwitchFailed, match="kernel refused") as failed:
        power.switch("1cpu_on_9")
    assert failed.value.reading == power.read() == Reading("1cpu_on_0")


@pytest.mark.parametrize("name", ["", "cpu", "-1cpu", "0cpu", "1cpus", "1cpu_on_", "1cpu_on_a"])
def test_a_malformed_share_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="not a CPU share"):
        parse_share(name)

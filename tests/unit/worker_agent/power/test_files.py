"""Paths below a root, and CPU lists in the kernel's notation."""

from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from worker_agent.power.files import MachineFiles, format_cpus, parse_cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "1-2-3", "0-9999999999", "٣"])
def test_a_malformed_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_cpus(text)


@pytest.mark.parametrize("text", ["", "0", "0-3,6", "1,3,5-7"])
def test_a_cpu_list_round_trips(text: str) -> None:
    assert format_cpus(parse_cpus(text)) == text


@pytest.mark.parametrize("path", ["sys/kernel", "/sys/../etc/passwd", ""])
def test_a_path_outside_the_root_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInput):
        MachineFiles(tmp_path).path(path)


def test_writing_never_creates_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="scaling_max_freq"):
        MachineFiles(tmp_path).write("/scaling_max_freq", "1")

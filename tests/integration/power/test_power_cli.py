"""The operator's commands, as processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulated_board.board import EmulatedBoard


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, check=False
    )


def checked(root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SYNERGAI_AGENT_ROOT", str(root))
    return run("synergai", "agent", "check").stdout


def test_modes_are_listed_with_the_one_in_force(
    nx: EmulatedBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = checked(nx.root, monkeypatch)
    assert "MODE_20W_6CORE" in table
    [in_force] = [line for line in table.splitlines() if line.endswith("in force")]
    assert in_force.startswith("MODE_10W_4CORE")


def test_a_machine_without_modes_lists_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "mode  " not in checked(tmp_path, monkeypatch)


def test_a_dry_run_only_prints_the_steps_and_what_they_would_fail_for() -> None:
    environment = {**os.environ, "PATH": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-m", "synergai", "agent", "install", "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("this would fail: systemd is not running on this machine\n")
    assert "\nwrite /etc/systemd/system/synergai-agent.service (644):\n" in done.stdout
    assert "\nrun systemctl daemon-reload\n" in done.stdout
    assert "    SYNERGAI_AGENT_GATEWAY=127.0.0.1:8010\n" in done.stdout

"""The operator's commands, as processes."""

import json
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


def modes_of(
    root: Path | str, monkeypatch: pytest.MonkeyPatch, *options: str
) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("SYNERGAI_AGENT_ROOT", str(root))
    return run("synergai", "agent", "modes", *options)


def test_modes_are_listed_with_the_one_in_force(
    nx: EmulatedBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = modes_of(nx.root, monkeypatch, "--json")
    listed = json.loads(done.stdout)
    assert listed["in_force"] == {"mode": "MODE_10W_4CORE", "detail": ""}
    assert len(listed["modes"]) == 9
    table = modes_of(nx.root, monkeypatch).stdout
    assert "MODE_20W_6CORE" in table
    assert table.count("in force") == 1


def test_a_machine_without_modes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = modes_of(tmp_path, monkeypatch)
    assert (done.stdout, done.returncode) == ("This machine has no power modes.\n", 0)


def test_a_dry_run_only_prints_the_steps() -> None:
    options = [
        "--gateway",
        "10.0.0.1:8010",
        "--worker-class",
        "agx-xavier",
        "--programs",
        "/opt/synergai/bin",
    ]
    done = run("synergai", "agent", "install", *options, "--power", "none", "--dry-run")
    assert done.returncode == 0
    assert "run systemctl restart synergai-agent.service\n" in done.stdout
    assert "    SYNERGAI_AGENT_GATEWAY=10.0.0.1:8010\n" in done.stdout
    assert done.stdout.startswith("check that services can run synergai and synergai-power in /opt")


def test_a_dry_run_needs_no_options_and_marks_the_steps_that_would_fail() -> None:
    environment = {**os.environ, "PATH": "/nonexistent"}
    done = subprocess.run(
        [sys.executable, "-m", "synergai", "agent", "install", "--dry-run"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "run systemctl daemon-reload\n"
        "  would fail: systemctl not found; this needs a machine with systemd\n"
    ) in done.stdout
    assert "    SYNERGAI_AGENT_GATEWAY=127.0.0.1:8010\n" in done.stdout


def test_a_private_directory_is_refused_with_an_alternative() -> None:
    done = run(
        *("synergai", "agent", "install", "--gateway", "g:9", "--worker-class", "c"),
        *("--models", "/home/me/models", "--programs", "/home/me/bin"),
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: cannot check that services can run synergai and synergai-power in /home/me/bin: "
        "the service cannot access /home/me/bin, a private directory; use another, like /opt"
    )

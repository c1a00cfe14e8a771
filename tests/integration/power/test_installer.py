"""Files and commands of an installation, with a directory as the machine and a fake systemd."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from synergai.errors import InvalidInput, Unavailable
from worker_agent.installer import (
    ENVIRONMENT,
    STATE,
    Installation,
    WriteFile,
    execute,
    removal_steps,
)
from worker_agent.power.files import Files
from worker_agent.power.helper import ALLOWED

if TYPE_CHECKING:
    from worker_agent.emulated_board.board import EmulatedBoard

PROGRAMS = Path("/opt/synergai/bin")
UNIT = "/etc/systemd/system/synergai-agent.service"


def wanted(power: str = "auto", gateway: str = "10.0.0.1") -> Installation:
    return Installation(gateway=gateway, worker_class="agx-xavier", power=power, programs=PROGRAMS)


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake programs that log their calls; return the log file."""
    calls = tmp_path / "calls"
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("systemctl", "systemd-sysusers"):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    return calls


def test_modes_that_need_no_reboot_are_put_on_the_helpers_list(
    agx: EmulatedBoard, systemd: Path
) -> None:
    execute(list(wanted().steps(agx.files)), agx.files)
    allowed = agx.files.read(ALLOWED).splitlines()[1:]
    assert "MODE_30W_ALL" in allowed
    assert "MODE_10W" not in allowed
    assert agx.files.read(ENVIRONMENT).splitlines() == [
        "SYNERGAI_AGENT_GATEWAY=10.0.0.1:8010",
        "SYNERGAI_AGENT_WORKER_CLASS=agx-xavier",
        "SYNERGAI_AGENT_MODELS=/var/lib/synergai-agent/models",
        "SYNERGAI_AGENT_POWER=auto",
    ]
    assert stat.S_IMODE(agx.files.path(ENVIRONMENT).stat().st_mode) == 0o640
    assert systemd.read_text().splitlines() == [
        "systemd-sysusers /etc/sysusers.d/synergai.conf",
        "systemctl daemon-reload",
        "systemctl enable --now synergai-power.socket synergai-agent.service",
        "systemctl try-restart synergai-agent.service",
    ]


def test_units_run_the_programs_of_this_installation(tmp_path: Path) -> None:
    elsewhere = Installation(
        gateway="gw:9", worker_class="x86", programs=Path("/srv/synergai/bin"), power="none"
    )
    texts = [step.text for step in elsewhere.steps(Files(tmp_path)) if isinstance(step, WriteFile)]
    assert any("ExecStart=/srv/synergai/bin/synergai agent\n" in text for text in texts)
    assert not any("/opt/synergai" in text for text in texts)


@pytest.mark.usefixtures("systemd")
def test_installing_again_updates_and_keeps_the_owners_changes(agx: EmulatedBoard) -> None:
    execute(list(wanted().steps(agx.files)), agx.files)
    agx.files.write(ALLOWED, "MODE_15W\n")
    agx.files.write(UNIT, "changed by hand\n")
    execute(list(wanted(gateway="10.0.0.2").steps(agx.files)), agx.files)
    assert agx.files.read(ALLOWED) == "MODE_15W"
    assert "10.0.0.2:8010" in agx.files.read(ENVIRONMENT)
    assert "10.0.0.1:8010" in agx.files.read(f"{ENVIRONMENT}.old")
    assert agx.files.read(f"{UNIT}.old") == "changed by hand"


@pytest.mark.usefixtures("systemd")
def test_uninstalling_keeps_settings_and_state_unless_purged(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    files = Files(root)
    execute(list(wanted("cgroup").steps(files)), files)
    (files.path(STATE) / "models").mkdir(parents=True)
    assert files.exists("/etc/systemd/system/synergai-agent.service.d/cgroup.conf")
    execute(list(removal_steps()), files)
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert left == ["etc/synergai/agent.env", "etc/sysusers.d/synergai.conf"]
    assert files.exists(STATE)
    execute(list(removal_steps(purge=True)), files)
    assert not [path for path in root.rglob("*") if path.is_file()]
    assert not files.exists(STATE)


def test_a_failed_command_ends_the_installation_with_its_error(
    tmp_path: Path, systemd: Path
) -> None:
    program = shutil.which("systemctl")
    assert program is not None
    Path(program).write_text("#!/bin/sh\necho 'no bus' >&2\nexit 1\n")
    with pytest.raises(Unavailable, match="systemctl daemon-reload failed: no bus"):
        execute(list(wanted("none").steps(Files(tmp_path))), Files(tmp_path))
    assert "systemd-sysusers" in systemd.read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"gateway": "10.0.0.1:x"},
        {"gateway": ""},
        {"worker_class": "a b"},
        {"worker_id": "../x"},
        {"models": "models"},
        {"models": "/home/me/models"},
        {"models": "/srv/a b"},
        {"models": "/srv/x\nUser=root"},
        {"programs": Path("/root/venv/bin")},
        {"power": "turbo"},
    ],
)
def test_invalid_options_are_refused_before_any_step(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"gateway": "gw", "worker_class": "x86", "programs": PROGRAMS}
    with pytest.raises(InvalidInput):
        Installation(**{**fields, **change})  # type: ignore[arg-type]  # wrong on purpose

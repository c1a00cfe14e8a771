"""Files and commands of an installation, with a directory as the machine and a fake systemd."""

import shutil
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from synergai.errors import InvalidInput, NotSupported, Unavailable
from synergai.runtime.installation import Installer
from tests.emulated_board.board import EmulatedBoard
from tests.fake_systemd import PROGRAMS, fake_systemd, put_programs
from worker_agent.cli import ENVIRONMENT, STATE, AgentInstallation, app, remove
from worker_agent.power.files import MachineFiles
from worker_agent.power.helper import ALLOWED

UNIT = "/etc/systemd/system/synergai-agent.service"


def wanted(power: str = "auto", gateway: str = "10.0.0.1:8010") -> AgentInstallation:
    return AgentInstallation(
        gateway=gateway, worker_class="agx-xavier", power=power, programs=PROGRAMS
    )


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake_systemd(tmp_path, monkeypatch)


def test_modes_that_need_no_reboot_are_put_on_the_helpers_list(
    agx: EmulatedBoard, systemd: Path
) -> None:
    put_programs(agx.root)
    wanted().install(Installer(root=agx.root), agx.files)
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
        "systemctl enable --now synergai-power.socket",
        "systemctl enable synergai-agent.service",
        "systemctl restart synergai-agent.service",
    ]


def test_units_run_the_programs_of_this_installation(tmp_path: Path) -> None:
    elsewhere = AgentInstallation(
        gateway="gw:9", worker_class="x86", programs="/srv/synergai/bin", power="none"
    )
    shown: list[str] = []
    elsewhere.install(Installer(shown.append, tmp_path), MachineFiles(tmp_path))
    texts = [step for step in shown if step.startswith("write")]
    assert any("ExecStart=/srv/synergai/bin/synergai agent\n" in text for text in texts)
    assert not any("/opt/synergai" in text for text in texts)


@pytest.mark.usefixtures("systemd")
def test_installing_again_updates_and_keeps_the_owners_changes(agx: EmulatedBoard) -> None:
    put_programs(agx.root)
    wanted().install(Installer(root=agx.root), agx.files)
    agx.files.write(ALLOWED, "MODE_15W\n")
    agx.files.write(UNIT, "changed by hand\n")
    wanted(gateway="10.0.0.2:8010").install(Installer(root=agx.root), agx.files)
    assert agx.files.read(ALLOWED) == "MODE_15W"
    assert "10.0.0.2:8010" in agx.files.read(ENVIRONMENT)
    assert "10.0.0.1:8010" in agx.files.read(f"{ENVIRONMENT}.old")
    assert agx.files.read(f"{UNIT}.old") == "changed by hand"


@pytest.mark.usefixtures("systemd")
def test_kept_settings_determine_the_other_files(agx: EmulatedBoard) -> None:
    put_programs(agx.root)
    wanted("cgroup").install(Installer(root=agx.root), agx.files)
    settings = agx.files.read(ENVIRONMENT)
    again = AgentInstallation(
        worker_class="x", gateway="gw:9", programs=PROGRAMS, keep_settings=True
    )
    shown: list[str] = []
    again.install(Installer(shown.append), agx.files)
    assert any("cgroup.conf" in step for step in shown)
    again.install(Installer(root=agx.root), agx.files)
    assert agx.files.read(ENVIRONMENT) == settings
    assert not agx.files.exists(ALLOWED)


def test_settings_are_kept_unless_an_option_is_given() -> None:
    for options, kept in (([], True), (["--worker-class", "x86"], False)):
        done = CliRunner().invoke(app, ["install", "--dry-run", *options])
        assert done.exit_code == 0
        assert (f"write {ENVIRONMENT} (640), unless it exists" in done.output) is kept


@pytest.mark.usefixtures("systemd")
def test_only_an_installation_refers_to_the_services_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for method in ("require", "write", "run", "remove"):
        monkeypatch.setattr(Installer, method, lambda *_, **__: None)
    installed = CliRunner().invoke(app, ["install"])
    assert "systemctl status synergai-" in installed.output
    removed = CliRunner().invoke(app, ["uninstall"])
    assert removed.output.startswith("removed synergai-")


@pytest.mark.usefixtures("systemd")
def test_uninstalling_keeps_settings_and_state_unless_purged(
    tmp_path: Path,
) -> None:
    root = put_programs(tmp_path / "root")
    files = MachineFiles(root)
    wanted("cgroup").install(Installer(root=root), files)
    (files.path(STATE) / "models").mkdir(parents=True)
    assert files.exists("/etc/systemd/system/synergai-agent.service.d/cgroup.conf")
    shutil.rmtree(root / "opt")
    remove(Installer(root=root))
    left = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert left == ["etc/synergai/agent.env", "etc/sysusers.d/synergai.conf"]
    assert files.exists(STATE)
    remove(Installer(root=root), purge=True)
    assert not [path for path in root.rglob("*") if path.is_file()]
    assert not files.exists(STATE)


def test_a_failed_command_ends_the_installation_with_its_error(
    tmp_path: Path, systemd: Path
) -> None:
    program = shutil.which("systemctl")
    assert program is not None
    Path(program).write_text("#!/bin/sh\necho 'no bus' >&2\nexit 1\n")
    put_programs(tmp_path)
    with pytest.raises(Unavailable, match="systemctl daemon-reload failed: no bus"):
        wanted("none").install(Installer(root=tmp_path), MachineFiles(tmp_path))
    assert "systemd-sysusers" in systemd.read_text()


@pytest.mark.parametrize(
    "change",
    [
        {"gateway": "10.0.0.1:x"},
        {"gateway": "10.0.0.1"},
        {"gateway": ""},
        {"worker_class": "a b"},
        {"power": "turbo"},
    ],
)
def test_invalid_options_are_refused_before_any_step(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"gateway": "gw:9", "worker_class": "x86", "programs": PROGRAMS}
    with pytest.raises(InvalidInput):
        AgentInstallation(**{**fields, **change})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.usefixtures("systemd")
@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"programs": "/root/venv/bin"}, "the service cannot access /root/venv/bin"),
        ({"programs": "/srv/bin"}, "/srv/bin has no program synergai"),
        ({"power": "nvpmodel"}, "nvpmodel"),
    ],
)
def test_unmet_precondition_is_shown_with_the_whole_plan_and_changes_nothing(
    tmp_path: Path, systemd: Path, change: dict[str, str], problem: str
) -> None:
    root = put_programs(tmp_path / "root")
    fields = {"gateway": "gw:9", "worker_class": "x86", "power": "none", "programs": PROGRAMS}
    options = AgentInstallation(**{**fields, **change})  # type: ignore[arg-type]  # only strings
    shown: list[str] = []

    options.install(Installer(shown.append, root), MachineFiles(root))

    [found] = [step for step in shown if step.startswith("this would fail")]
    assert problem in found
    assert "run systemctl enable" in shown[-2]
    with pytest.raises(NotSupported, match="nothing was changed: "):
        options.install(Installer(root=root), MachineFiles(root))
    assert not (root / "etc").exists()
    assert not systemd.exists()


@pytest.mark.usefixtures("systemd")
def test_services_need_systemd_and_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(NotSupported, match="it needs root; run it with sudo"):
        Installer()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NotSupported, match="systemd is not running on this machine"):
        Installer()

"""Plan of the gateway's installation, with a directory as the machine and a fake systemd."""

import stat
from pathlib import Path
from typing import Any

import pytest

from gateway.installer import (
    ENVIRONMENT,
    LOCAL_ENVIRONMENT,
    SERVICE,
    STATE_DIRECTORIES,
    GatewayInstallation,
    removal_steps,
)
from synergai.errors import InvalidInput
from synergai.runtime.installation import execute, read_unit
from tests.fake_systemd import fake_systemd, put_programs

UNIT = f"etc/systemd/system/{SERVICE}"


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake_systemd(tmp_path, monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return put_programs(tmp_path / "root", "/srv/synergai/bin")


def wanted(listen: str = "", hub: str = "", http: str = "") -> GatewayInstallation:
    return GatewayInstallation(listen=listen, hub=hub, http=http, programs="/srv/synergai/bin")


def test_installation_writes_the_settings_and_starts_the_unit(root: Path, systemd: Path) -> None:
    options = GatewayInstallation(
        listen="0.0.0.0:8001",
        hub="0.0.0.0:8010",
        work_port=8011,
        insecure=True,
        programs="/srv/synergai/bin",
    )
    execute(list(options.steps(root)), root)
    settings = root / ENVIRONMENT.lstrip("/")
    assert settings.read_text().splitlines()[1:] == [
        "SYNERGAI_GATEWAY_LISTEN=0.0.0.0:8001",
        "SYNERGAI_GATEWAY_HUB=0.0.0.0:8010",
        "SYNERGAI_GATEWAY_WORK_PORT=8011",
        "SYNERGAI_GATEWAY_INSECURE=true",
    ]
    assert stat.S_IMODE(settings.stat().st_mode) == 0o640
    unit = (root / UNIT).read_text()
    assert "ExecStart=/srv/synergai/bin/synergai gateway\n" in unit
    for directive in ("DynamicUser=yes", "StateDirectory=synergai-gateway", "ProtectSystem=strict"):
        assert f"{directive}\n" in unit
    assert systemd.read_text().splitlines() == [
        "systemctl daemon-reload",
        f"systemctl enable {SERVICE}",
        f"systemctl restart {SERVICE}",
    ]


@pytest.mark.usefixtures("systemd")
def test_further_settings_are_read_last_and_stay_until_purged(root: Path) -> None:
    further = root / LOCAL_ENVIRONMENT.lstrip("/")
    further.parent.mkdir(parents=True)
    further.write_text("SYNERGAI_GATEWAY_POLICY=edf\n")
    execute(list(wanted(hub="0.0.0.0:8010").steps(root)), root)
    execute(list(removal_steps()), root)
    assert further.read_text() == "SYNERGAI_GATEWAY_POLICY=edf\n"
    files = [line for line in read_unit(SERVICE).splitlines() if line.startswith("Environment")]
    assert files == [f"EnvironmentFile=-{ENVIRONMENT}", f"EnvironmentFile=-{LOCAL_ENVIRONMENT}"]
    execute(list(removal_steps(purge=True)), root)
    assert not further.exists()


@pytest.mark.usefixtures("systemd")
def test_uninstalling_keeps_settings_and_jobs_unless_purged(root: Path) -> None:
    execute(list(wanted().steps(root)), root)
    link, state = (root / path.lstrip("/") for path in STATE_DIRECTORIES)
    state.mkdir(parents=True)
    link.symlink_to(state)
    execute(list(removal_steps()), root)
    assert not (root / UNIT).exists()
    assert (root / ENVIRONMENT.lstrip("/")).exists()
    assert state.exists()
    execute(list(removal_steps(purge=True)), root)
    assert not (root / ENVIRONMENT.lstrip("/")).exists()
    assert not state.exists()
    assert not link.is_symlink()


@pytest.mark.parametrize("change", [{"listen": "8001"}, {"hub": "0.0.0.0:x"}, {"http": ":"}])
def test_invalid_address_is_refused(change: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        wanted(**change)


TLS = "".join(
    f"SYNERGAI_GATEWAY_{name}=/etc/synergai/{name}\n"
    for name in ("TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA")
)


@pytest.mark.parametrize(
    ("options", "local", "refusal"),
    [
        ({}, "", ""),
        ({"hub": "127.0.0.1:8010"}, "", ""),
        (
            {"hub": "0.0.0.0:8010"},
            "",
            "--hub 0.0.0.0:8010 needs --tls-cert and --tls-key and --tls",
        ),
        ({"hub": "0.0.0.0:8010"}, f"# keys\n{TLS}", ""),
        ({"hub": "0.0.0.0:8010", "insecure": True}, "", ""),
        ({"hub": "127.0.0.1:8010"}, "SYNERGAI_GATEWAY_HUB=0.0.0.0:8010\n", "--hub 0.0.0.0:8010"),
        ({"listen": "0.0.0.0:8001"}, TLS, "--listen 0.0.0.0:8001 needs --access"),
    ],
)
def test_gateway_that_will_refuse_to_start_is_foretold(
    root: Path, options: dict[str, Any], local: str, refusal: str
) -> None:
    file = root / LOCAL_ENVIRONMENT.lstrip("/")
    file.parent.mkdir(parents=True)
    file.write_text(local)
    found = GatewayInstallation(**options, programs="/srv/synergai/bin").refusal(root)
    assert refusal in found if refusal else not found


@pytest.mark.usefixtures("systemd")
def test_refusal_of_an_update_follows_from_the_settings_that_stay(root: Path) -> None:
    execute(list(wanted(hub="0.0.0.0:8010").steps(root)), root)
    assert "--hub 0.0.0.0:8010" in wanted().refusal(root)

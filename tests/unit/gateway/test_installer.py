"""Settings of a gateway, and its installation."""

import stat
from pathlib import Path
from typing import Final

import pytest

from gateway.gateway_settings import GatewaySettings
from gateway.installer import (
    ENVIRONMENT,
    SERVICE,
    STATE_DIRECTORIES,
    find_refusal,
    installation_steps,
    removal_steps,
)
from gateway.serve.serve_settings import ServeSettings
from synergai.errors import InvalidSettings
from synergai.runtime.installation import execute
from synergai.runtime.settings import options_of
from tests.fake_systemd import fake_systemd, put_programs

UNIT = f"etc/systemd/system/{SERVICE}"


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return fake_systemd(tmp_path, monkeypatch)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return put_programs(tmp_path / "root", "/srv/synergai/bin")


def install(root: Path) -> None:
    execute(list(installation_steps("/srv/synergai/bin", root)), root)


def write_settings(root: Path, text: str) -> Path:
    file = root / ENVIRONMENT.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def test_installation_starts_the_unit_with_a_file_for_settings(root: Path, systemd: Path) -> None:
    install(root)
    assert stat.S_IMODE((root / ENVIRONMENT.lstrip("/")).stat().st_mode) == 0o640
    unit = (root / UNIT).read_text()
    assert "ExecStart=/srv/synergai/bin/synergai gateway\n" in unit
    assert f"EnvironmentFile=-{ENVIRONMENT}\n" in unit
    for directive in ("DynamicUser=yes", "StateDirectory=synergai-gateway", "ProtectSystem=strict"):
        assert f"{directive}\n" in unit
    assert systemd.read_text().splitlines() == [
        "systemctl daemon-reload",
        f"systemctl enable {SERVICE}",
        f"systemctl restart {SERVICE}",
    ]


@pytest.mark.usefixtures("systemd")
def test_uninstalling_keeps_settings_and_jobs_unless_purged(root: Path) -> None:
    settings = write_settings(root, "SYNERGAI_GATEWAY_POLICY=edf\n")
    install(root)
    link, state = (root / path.lstrip("/") for path in STATE_DIRECTORIES)
    state.mkdir(parents=True)
    link.symlink_to(state)
    execute(list(removal_steps()), root)
    assert not (root / UNIT).exists()
    assert settings.read_text() == "SYNERGAI_GATEWAY_POLICY=edf\n"
    assert state.exists()
    execute(list(removal_steps(purge=True)), root)
    assert not settings.exists()
    assert not state.exists()
    assert not link.is_symlink()


TLS: Final = {name: f"/etc/synergai/{name}" for name in ("TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA")}
HUB: Final = {"HUB": "0.0.0.0:8010"}


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ({}, ""),
        ({"HUB": "127.0.0.1:8010"}, ""),
        ({"HUB": "0.0.0.0:x"}, "0.0.0.0:x"),
        (HUB, "--hub 0.0.0.0:8010 needs --tls-cert and --tls-key and --tls"),
        (HUB | TLS, ""),
        (HUB | {"INSECURE": "true"}, ""),
        ({"LISTEN": "0.0.0.0:8001"} | TLS, "--listen 0.0.0.0:8001 needs --access"),
    ],
)
def test_gateway_that_will_refuse_to_start_is_foretold(
    root: Path, settings: dict[str, str], refusal: str
) -> None:
    lines = (f"SYNERGAI_GATEWAY_{name}={value}\n" for name, value in settings.items())
    write_settings(root, "# keys\n" + "".join(lines))
    found = find_refusal(root)
    assert refusal in found if refusal else not found


def test_unknown_policy_is_refused_with_the_known_ones_before_anything_starts() -> None:
    with pytest.raises(InvalidSettings, match=r"--policy: 'nope' is not in .*available.*edf, fifo"):
        GatewaySettings.load({"policy": "nope"})
    assert GatewaySettings.load({"policy": "fifo"}).scheduling.policy == "fifo"


@pytest.mark.parametrize("settings", [GatewaySettings, ServeSettings])
def test_rare_settings_of_connections_are_no_options_but_variables_and_keys(
    settings: type[GatewaySettings | ServeSettings],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def found(file: Path | None = None) -> tuple[float, float]:
        loaded = settings.load(file=file)
        gateway = loaded.gateway if isinstance(loaded, ServeSettings) else loaded
        return gateway.http_keep_alive_s, gateway.max_connection_age_grace_s

    names = ("http_keep_alive_s", "max_connection_age_grace_s")
    assert not any(options_of(settings)[name].description for name in names)
    assert found() == (75.0, 0.0)
    file = tmp_path / "settings.toml"
    file.write_text("http_keep_alive_s = 620\nmax_connection_age_grace_s = 3\n")
    assert found(file) == (620.0, 3.0)
    for name in names:
        monkeypatch.setenv(settings.env_var(name), "9")
    assert found(file) == (9.0, 9.0)
    monkeypatch.setenv(settings.env_var("http_keep_alive_s"), "0.5")
    with pytest.raises(InvalidSettings, match=r"HTTP_KEEP_ALIVE_S: '0\.5' is not"):
        found()

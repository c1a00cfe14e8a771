"""Ports that other machines can reach."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.entry.access.exposure import check_exposure
from gateway.gateway_settings import GatewaySettings
from gateway.serve.serve_settings import ServeSettings
from gateway.serve.server import LocalServer
from synergai.errors import InvalidInput

TLS = {"tls_cert": "server.pem", "tls_key": "server.key"}


ACCESS = {"access": "access.toml"}


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A table without rows."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "access.toml"
    path.touch()
    return path


def check(options: Mapping[str, object], *, warns: bool = False) -> None:
    check_exposure(GatewaySettings.load(options), warns=warns)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.0.0.2"])
@pytest.mark.parametrize("port", ["listen", "hub", "http"])
def test_loopback_needs_nothing(port: str, host: str) -> None:
    check({port: f"{host}:0"})


async def test_serve_checks_addresses_before_it_starts_its_worker(tmp_path: Path) -> None:
    settings = ServeSettings(gateway=GatewaySettings(listen="0.0.0.0:0"), models=tmp_path)
    with pytest.raises(InvalidInput, match=r"--listen 0\.0\.0\.0:0 needs"):
        async with LocalServer(settings):
            pytest.fail("it has started")


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "gateway.example.org"])
@pytest.mark.parametrize(
    ("port", "given", "missing"),
    [
        ("listen", {}, "needs --tls-cert and --tls-key and --access"),
        ("listen", TLS, "needs --access"),
        ("listen", ACCESS, "needs --tls-cert and --tls-key"),
        ("listen", TLS | ACCESS, ""),
        ("hub", {}, r"needs --tls-cert and --tls-key and --tls-client-ca \(or \[\[workers\]\]"),
        ("hub", TLS, "needs --tls-client-ca"),
        ("hub", TLS | ACCESS, "needs --tls-client-ca"),
        ("hub", TLS | {"tls_client_ca": "ca.pem"}, ""),
        ("http", {}, "needs --tls-cert and --tls-key and --access"),
        ("http", TLS | ACCESS, ""),
    ],
)
def test_other_addresses_need_encryption_and_authentication(
    port: str, host: str, given: Mapping[str, object], missing: str
) -> None:
    options = {**given, port: f"{host}:8001"}
    if not missing:
        check(options)
        return
    with pytest.raises(InvalidInput, match=missing) as error:
        check(options)
    assert f"--{port} {host}:8001" in str(error.value)
    assert "--insecure" in str(error.value)


def test_rows_of_workers_authenticate_them(table: Path) -> None:
    table.write_text('[[workers]]\nid = "w1"\ncertificate = "w1"\nworker_class = "nx"\n')
    check({"hub": "0.0.0.0:8010", **ACCESS, **TLS})
    table.write_text("[[clients]]\n")
    with pytest.raises(InvalidInput, match=r"access\.toml"):
        check({"hub": "0.0.0.0:8010", **ACCESS, **TLS})


def test_insecure_gateway_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    check({"listen": "0.0.0.0:0", "insecure": True})
    assert not caplog.records
    check({"listen": "0.0.0.0:0", "insecure": True}, warns=True)
    assert "--listen 0.0.0.0:0 needs --tls-cert and --tls-key and --access" in caplog.text

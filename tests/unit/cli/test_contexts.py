"""Saved contexts: which gateway a command calls, and with whose token."""

import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler.loadgen.loadgen_settings import TargetSettings
from synergai.cli.gateway_client import GatewayAccess, GatewayAddress, context_app
from synergai.errors import InvalidInput, NotFound

DEFAULT = GatewayAccess("127.0.0.1:8001")
LAB = GatewayAccess("lab:8001", Path("/tls/ca.pem"), Path("/tokens/lab"))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("SYNERGAI_TARGET", "SYNERGAI_TOKEN", "SYNERGAI_TOKEN_FILE", "SYNERGAI_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str) -> str:
    result = CliRunner().invoke(context_app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def add_lab() -> None:
    assert LAB.tls_ca
    assert LAB.token_file
    files = ("--tls-ca", str(LAB.tls_ca), "--token-file", str(LAB.token_file))
    run("add", "lab", "--target", LAB.target, *files)


def test_a_context_is_used_from_when_it_is_added_until_another_is_chosen() -> None:
    assert GatewayAddress().resolved() == DEFAULT
    add_lab()
    run("add", "home", "--target", "127.0.0.1:9")
    assert GatewayAddress().resolved() == GatewayAccess("127.0.0.1:9")
    run("use", "lab")
    assert GatewayAddress().resolved() == LAB
    run("use")
    assert GatewayAddress().resolved() == DEFAULT
    with pytest.raises(NotFound, match="no context 'elsewhere'; known: lab, home"):
        run("use", "elsewhere")


def test_a_target_that_is_given_gets_neither_token_nor_authority_of_the_context() -> None:
    add_lab()
    assert GatewayAddress("other:8001").resolved() == GatewayAccess("other:8001")
    load = TargetSettings.load({"engine": "digits", "target": "other:8001"})
    assert load.target == "other:8001"
    assert load.connection()["tls_ca"] is None


def test_files_of_the_environment_go_before_the_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    add_lab()
    mine = Path("/tokens/mine")
    monkeypatch.setenv("SYNERGAI_TOKEN_FILE", str(mine))
    assert GatewayAddress().resolved() == LAB._replace(token_file=mine)
    monkeypatch.delenv("SYNERGAI_TOKEN_FILE")
    monkeypatch.setenv("SYNERGAI_TOKEN", "secret")
    assert GatewayAddress().resolved() == LAB._replace(token_file=None)
    load = TargetSettings.load({"engine": "digits"})
    assert (load.target, load.connection()["tls_ca"]) == (LAB.target, LAB.tls_ca)


def test_paths_are_kept_for_other_directories_and_only_the_owner_can_read_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    (home / "lab.token").write_text("the secret")
    (home / "cells.toml").write_text('[vision]\ngateways = "lab:8001"\n')
    run("add", "lab", "--target", "@cells.toml:vision", "--token-file", "lab.token")
    expected = GatewayAccess(f"@{home}/cells.toml:vision", token_file=home / "lab.token")
    assert GatewayAddress().resolved() == expected
    file = home / "synergai" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "the secret" not in file.read_text() + run("list", "--json")


def test_the_list_marks_the_context_in_use_until_it_is_removed() -> None:
    add_lab()
    assert run("list").splitlines()[-1].startswith("*")
    run("remove", "lab")
    assert "lab" not in run("list")
    assert GatewayAddress().resolved() == DEFAULT


def test_a_target_that_no_command_could_call_is_not_saved() -> None:
    for target in ("http://lab:8001", "@missing.toml"):
        with pytest.raises(InvalidInput):
            run("add", "lab", "--target", target)
    assert "lab" not in run("list")

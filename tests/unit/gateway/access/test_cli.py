import hashlib
from pathlib import Path

import pytest

from gateway.entry.access.table import read_access_table
from synergai.cli.main import main


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(["access", *arguments])
    code = exit_.value.code
    assert isinstance(code, int)
    return code


def test_token_is_printed_once_and_the_rows_have_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("token", "camera-7", "--tenant", "vision") == 0
    printed = capsys.readouterr()
    token = printed.out.strip()
    table = tmp_path / "access.toml"
    table.write_text(printed.err)
    [client] = read_access_table(table).clients
    assert (client.name, client.tenant) == ("camera-7", "vision")
    assert client.token_sha256 == hashlib.sha256(token.encode()).hexdigest()
    assert len(token) >= 43
    assert token not in printed.err


def test_check_prints_who_may_do_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "access.toml"
    table.write_text(
        '[[clients]]\nname = "cam"\ntenant = "vision"\ncertificate = "cam.example.org"\n'
        '[[clients]]\nname = "idle"\ncertificate = "idle"\nexpires = 2020-01-01T00:00:00Z\n'
        '[[grants]]\nto = ["cam"]\nroles = ["observe", "infer"]\nengines = ["resnet*"]\n'
        'tenants = ["lab"]\n'
        '[[grants]]\nto = ["anonymous"]\nroles = ["infer"]\n'
        '[[grants]]\nto = ["nobody-*"]\nroles = ["infer"]\n'
    )
    assert run("check", str(table)) == 0
    printed = capsys.readouterr()
    lines = [" ".join(line.split()) for line in printed.out.splitlines()]
    assert "cam certificate cam.example.org vision infer, observe resnet* vision, lab" in lines
    assert "anonymous none infer * its own" in lines
    assert "the credentials of 'idle' have expired" in printed.err
    assert "client 'idle' may do nothing" in printed.err
    assert "grant 3 is for no client: nobody-*" in printed.err


def test_check_names_web_tokens_only_for_grants_that_they_can_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "access.toml"
    table.write_text(
        '[[jwt]]\nissuer = "i"\naudience = "a"\nkeys = "jwks.json"\n'
        '[[grants]]\nto = ["ops-*", "group:cameras", "anonymous"]\nroles = ["infer"]\n'
        '[[grants]]\nto = ["jwt:alice", "*", "j?t:*", "[jk]*"]\nroles = ["observe"]\n'
        '[[grants]]\nto = ["ops-*", "jwtalice"]\nroles = ["operate"]\n'
    )
    assert run("check", str(table)) == 0
    printed = capsys.readouterr()
    lines = [" ".join(line.split()) for line in printed.out.splitlines()]
    assert "jwt: group:cameras JSON web token by claim infer * its own" in lines
    assert "jwt: jwt:alice, *, j?t:*, [jk]* JSON web token by claim observe * its own" in lines
    assert "operate" not in printed.out
    assert "grant 3 is for no client: ops-*, jwtalice" in printed.err

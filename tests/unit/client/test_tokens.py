from pathlib import Path

import pytest

from synergai.client.client import Client
from synergai.client.target import connection
from synergai.errors import InvalidInput
from synergai.wire.credentials import token_metadata

HEADER = (("authorization", "Bearer secret"),)


@pytest.mark.parametrize(
    "target",
    ["127.0.0.1:8001", "localhost:8001", "[::1]:8001", "dns:///localhost:1", "unix:/run/gateway"],
)
def test_token_is_sent_to_this_machine_without_encryption(target: str) -> None:
    assert token_metadata("secret", target, encrypted=False, insecure=False) == HEADER


@pytest.mark.parametrize(
    "target", ["gateway:8001", "10.0.0.1:8001", "dns:///gateway:1", "localhost.x.org:1"]
)
def test_token_is_not_sent_to_other_machines_without_encryption(target: str) -> None:
    with pytest.raises(InvalidInput, match="without encryption"):
        token_metadata("secret", target, encrypted=False, insecure=False)
    with pytest.raises(InvalidInput, match="without encryption"):
        Client(target, token="secret")
    assert token_metadata("secret", target, encrypted=True, insecure=False) == HEADER
    assert token_metadata("secret", target, encrypted=False, insecure=True) == HEADER


@pytest.mark.parametrize("token", ["two words", "new\nline", "ü", "x" * 9000])
def test_malformed_token_is_refused(token: str) -> None:
    with pytest.raises(InvalidInput):
        token_metadata(token, "localhost:1", encrypted=True, insecure=False)


def test_token_comes_from_a_file_or_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    monkeypatch.delenv("SYNERGAI_TOKEN", raising=False)
    monkeypatch.delenv("SYNERGAI_TOKEN_FILE", raising=False)
    assert connection()["token"] == ""
    monkeypatch.setenv("SYNERGAI_TOKEN", "from-environment")
    assert connection()["token"] == "from-environment"
    monkeypatch.setenv("SYNERGAI_TOKEN_FILE", str(file))
    assert connection()["token"] == "from-file"
    monkeypatch.setenv("SYNERGAI_TOKEN_FILE", str(tmp_path / "missing"))
    with pytest.raises(InvalidInput, match="No such file"):
        connection()

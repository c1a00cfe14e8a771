"""Certificates and keys from files: what is wrong with them is said before anything listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from synergai.protocol.tls import Identity, channel_credentials, server_credentials

FILES = Path(__file__).parents[2] / "integration" / "tls"
CERT, KEY, CA = FILES / "server.pem", FILES / "server.key", FILES / "ca.pem"


def test_without_files_nothing_is_encrypted() -> None:
    assert Identity.read(None, None) is None
    assert server_credentials(None, None) is None
    assert channel_credentials(None) is None


def test_files_that_belong_together_are_taken() -> None:
    identity = Identity.read(CERT, KEY)
    assert server_credentials(CERT, KEY, CA) is not None
    assert channel_credentials(CA, identity) is not None


@pytest.mark.parametrize(
    ("certificate", "key", "text"),
    [
        (CERT, None, "given together"),
        (None, KEY, "given together"),
        (CERT, FILES / "missing.key", "missing.key cannot be read: No such file"),
        (CERT, FILES / "agent.key", "key values mismatch"),
        (KEY, KEY, "not a PEM certificate and its PEM key"),
    ],
)
def test_files_that_do_not_fit_are_named(
    certificate: Path | None, key: Path | None, text: str
) -> None:
    with pytest.raises(InvalidInput, match=text):
        Identity.read(certificate, key)


def test_key_with_a_password_is_refused_instead_of_asked_for() -> None:
    with pytest.raises(InvalidInput, match=r"locked\.key are not a PEM certificate"):
        Identity.read(CERT, FILES / "locked.key")


@pytest.mark.parametrize("content", [b"nonsense", b"\xff\xfe"])
def test_authority_without_certificates_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match="contains no PEM certificates"):
        channel_credentials(file)


def test_options_that_need_others_say_so() -> None:
    with pytest.raises(InvalidInput, match="needs --tls-cert"):
        server_credentials(None, None, CA)
    with pytest.raises(InvalidInput, match="need --tls-ca"):
        channel_credentials(None, Identity.read(CERT, KEY))

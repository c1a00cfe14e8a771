"""Invalid certificates and keys are reported before a server listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from synergai.protocol.tls import Identity, channel_credentials, server_credentials

FILES = Path(__file__).parents[2] / "integration" / "tls"
CERT, KEY, CA = FILES / "server.pem", FILES / "server.key", FILES / "ca.pem"


def test_tls_is_disabled_without_files() -> None:
    assert Identity.read(None, None) is None
    assert server_credentials(None, None) is None
    assert channel_credentials(None) is None


def test_matching_certificate_and_key_are_accepted() -> None:
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
def test_invalid_files_are_named(certificate: Path | None, key: Path | None, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        Identity.read(certificate, key)


def test_encrypted_key_is_rejected_without_a_prompt() -> None:
    with pytest.raises(InvalidInput, match=r"locked\.key are not a PEM certificate"):
        Identity.read(CERT, FILES / "locked.key")


@pytest.mark.parametrize("content", [b"nonsense", b"\xff\xfe"])
def test_authority_without_certificates_is_rejected(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(content)
    with pytest.raises(InvalidInput, match="contains no PEM certificates"):
        channel_credentials(file)


def test_incomplete_options_are_rejected() -> None:
    with pytest.raises(InvalidInput, match="needs --tls-cert"):
        server_credentials(None, None, CA)
    with pytest.raises(InvalidInput, match="need --tls-ca"):
        channel_credentials(None, Identity.read(CERT, KEY))

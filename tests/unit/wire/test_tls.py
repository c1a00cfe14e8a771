"""TLS files are validated before a server listens, and verified in every handshake."""

import contextlib
import re
import ssl
import subprocess
from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from synergai.wire.credentials import ClientTls, Identity, channel_credentials, server_context

FILES = Path(__file__).parents[2] / "integration" / "tls"
GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "security.md"
CERT, KEY, CA = FILES / "server.pem", FILES / "server.key", FILES / "ca.pem"
AGENT = (FILES / "agent.pem", FILES / "agent.key")
OTHER = (FILES / "other.pem", FILES / "other.key")
EXPIRED = (FILES / "expired.pem", FILES / "expired.key")
EXPIRED_CA = FILES / "expired_ca.pem"


def handshake(server: ssl.SSLContext | None, client: ssl.SSLContext | None) -> ssl.SSLObject:
    """Shake hands in memory; return the client's end.

    Raises:
        ssl.SSLError: of the end that refuses first.
    """
    assert server is not None
    assert client is not None
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_end = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    server_end = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (client_end, server_end):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert server_end.version() == client_end.version() == "TLSv1.3"
    return client_end


def test_tls_is_disabled_without_files() -> None:
    assert Identity.read(None, None) is None
    assert channel_credentials(None) is None
    assert server_context(None, None) is None
    assert ClientTls.read(None) == ClientTls(None, None)


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
        server_context(None, None, CA)
    with pytest.raises(InvalidInput, match="given together"):
        server_context(CERT, None)
    with pytest.raises(InvalidInput, match="need --tls-ca"):
        channel_credentials(None, Identity.read(CERT, KEY))
    with pytest.raises(InvalidInput, match="need --tls-ca"):
        ClientTls.read(None, CERT, KEY)


# --- handshakes of sockets --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("client", "reason"),
    [
        ((CA,), "peer did not return a certificate"),
        ((CA, *OTHER), "certificate verify failed: self-signed certificate"),
        ((CA, *EXPIRED), "certificate verify failed: unable to get local issuer"),
        ((OTHER[0], *AGENT), "certificate verify failed: self-signed certificate in"),
    ],
)
def test_socket_of_another_authority_is_refused(client: tuple[Path, ...], reason: str) -> None:
    with pytest.raises(ssl.SSLError, match=reason):
        handshake(server_context(CERT, KEY, CA), ClientTls.read(*client).socket)


def test_expired_certificate_is_refused_by_either_end() -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(server_context(*EXPIRED), ClientTls.read(EXPIRED_CA).socket)
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate has expired"):
        handshake(server_context(CERT, KEY, EXPIRED_CA), ClientTls.read(CA, *EXPIRED).socket)


def test_renewed_files_apply_to_the_next_handshake(tmp_path: Path) -> None:
    certificate, key, authority = (tmp_path / name for name in ("cert", "key", "authority"))

    def renew(file: Path, source: Path) -> None:
        new = tmp_path / "new"
        new.write_bytes(source.read_bytes())
        new.replace(file)

    renew(certificate, CERT)
    renew(key, KEY)
    renew(authority, CA)
    server = server_context(certificate, key, authority)
    first = handshake(server, ClientTls.read(CA, *AGENT).socket)
    renew(certificate, OTHER[0])  # does not match the key yet
    second = handshake(server, ClientTls.read(CA, *AGENT).socket)
    assert first.getpeercert() == second.getpeercert()
    renew(key, OTHER[1])
    handshake(server, ClientTls.read(OTHER[0], *AGENT).socket)
    renew(authority, OTHER[0])
    handshake(server, ClientTls.read(OTHER[0], *OTHER).socket)
    with pytest.raises(ssl.SSLError, match="certificate verify failed"):
        handshake(server, ClientTls.read(OTHER[0], *AGENT).socket)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify certificates as Python 3.13 and later do."""
    create = ssl.create_default_context

    def create_strict(*, cadata: str) -> ssl.SSLContext:
        context = create(cadata=cadata)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", create_strict)


def run_the_guides_commands(folder: Path, *, without: str = "") -> None:
    """Make an authority and a server's certificate as docs/guide/security.md says."""
    [commands] = re.findall(r"(?s)```\n(openssl req -x509.*?)```", GUIDE.read_text())
    assert without in commands
    commands = commands.replace("192.168.1.10", "127.0.0.1").replace(without, "")
    subprocess.run(["bash", "-ec", commands], cwd=folder, capture_output=True, check=True)


@pytest.mark.usefixtures("strict")
def test_certificates_of_the_guide_pass_strict_verification(tmp_path: Path) -> None:
    run_the_guides_commands(tmp_path)
    server = server_context(tmp_path / "gateway.pem", tmp_path / "gateway.key")
    handshake(server, ClientTls.read(tmp_path / "ca.pem").socket)


@pytest.mark.usefixtures("strict")
def test_authority_without_key_usage_is_refused_before_the_first_handshake(tmp_path: Path) -> None:
    run_the_guides_commands(tmp_path, without='-addext "keyUsage=critical,keyCertSign,cRLSign"')
    with pytest.raises(InvalidInput, match=r"ca.pem has no key usage.*keyCertSign"):
        ClientTls.read(tmp_path / "ca.pem")

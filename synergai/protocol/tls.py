"""TLS credentials from PEM files.

Servers present a certificate, which clients and agents verify against an authority. A server with a
client authority requires clients to present a certificate as well (mutual TLS).
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Certificate chain and its private key, both PEM."""

    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, certificate: Path | None, key: Path | None) -> Identity | None:
        """Read an identity from its two files; None if neither is given.

        Raises:
            InvalidInput: only one file is given, or the files cannot be read, are damaged, or do
                not match.
        """
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise InvalidInput("--tls-cert and --tls-key must be given together")
        identity = cls(_read(certificate), _read(key))
        try:
            # gRPC itself would only report that it cannot open the port.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInput(
                f"{certificate} and {key} are not a PEM certificate and its PEM key: "
                f"{_reason(error)}"
            ) from None
        return identity


def server_credentials(
    certificate: Path | None, key: Path | None, client_authority: Path | None = None
) -> grpc.ServerCredentials | None:
    """Create the credentials of a server; None if TLS is not configured.

    The files are checked for changes on every handshake, so renewed certificates take effect
    without a restart.

    Args:
        certificate: certificate chain of the server; None disables TLS.
        key: private key of `certificate`.
        client_authority: authority that must have signed the clients' certificates; None accepts
            clients without a certificate.

    Raises:
        InvalidInput: a file is invalid, or an option is missing.
    """
    files = _ServerFiles(certificate, key, client_authority)
    configuration = files.read()
    if configuration is None:
        if client_authority is not None:
            raise InvalidInput("--tls-client-ca needs --tls-cert and --tls-key")
        return None
    return grpc.dynamic_ssl_server_credentials(
        configuration,
        files.reload,  # type: ignore[arg-type]  # None for unchanged is missing in the stubs
        require_client_authentication=client_authority is not None,
    )


class _ServerFiles:
    """Certificate files of a server, reloaded on change; called by gRPC from its own threads."""

    def __init__(
        self, certificate: Path | None, key: Path | None, client_authority: Path | None
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._client_authority = client_authority
        self._stamps = self._stat()

    def read(self) -> grpc.ServerCertificateConfiguration | None:
        """Read the files; None without a certificate.

        Raises:
            InvalidInput: a file is invalid.
        """
        identity = Identity.read(self._certificate, self._key)
        if identity is None:
            return None
        clients = self._client_authority
        authority = None if clients is None else _read_authority(clients)
        return grpc.ssl_server_certificate_configuration(
            [(identity.key, identity.certificate)], root_certificates=authority
        )

    def reload(self) -> grpc.ServerCertificateConfiguration | None:
        """Read the files if they changed since the last read, and return None otherwise."""
        stamps = self._stat()
        if stamps == self._stamps:
            return None
        # The files are renewed one by one; a mismatched pair is read again after the next change.
        self._stamps = stamps
        try:
            configuration = self.read()
        except InvalidInput as error:
            _log.warning("keeping the previous certificate: %s", error)
            return None
        _log.info("reloaded %s", self._certificate)
        return configuration

    def _stat(self) -> list[tuple[int, int] | None]:
        """Return inode and modification time of each file; None for a missing one."""
        files = filter(None, (self._certificate, self._key, self._client_authority))
        return [_stamp(file) for file in files]


def channel_credentials(
    authority: Path | None, identity: Identity | None = None
) -> grpc.ChannelCredentials | None:
    """Create the credentials of a client; None if TLS is not configured.

    Args:
        authority: authority that must have signed the server's certificate; None disables TLS.
        identity: identity of the client for mutual TLS.

    Raises:
        InvalidInput: the authority's file is invalid, or an identity is given without authority.
    """
    if authority is None:
        if identity is not None:
            raise InvalidInput("--tls-cert and --tls-key need --tls-ca")
        return None
    return grpc.ssl_channel_credentials(
        _read_authority(authority),
        private_key=None if identity is None else identity.key,
        certificate_chain=None if identity is None else identity.certificate,
    )


def open_channel(
    target: str, options: list[tuple[str, int]], credentials: grpc.ChannelCredentials | None
) -> grpc.aio.Channel:
    """Open a channel to ``host:port``, with TLS if `credentials` are given."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, credentials, options)


def _read_authority(path: Path) -> bytes:
    content = _read(path)
    try:
        ssl.create_default_context(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidInput(f"{path} contains no PEM certificates: {_reason(error)}") from None
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return "it is not text"


def _no_password() -> str:
    # By default OpenSSL prompts on the terminal.
    raise ValueError

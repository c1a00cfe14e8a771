"""Encrypted connections: credentials from the certificates and keys in files.

A server shows its certificate; clients and agents check it against an authority. If the server
names an authority itself, whoever connects has to show a certificate of it too.
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
    """A certificate chain and the private key that belongs to it, both PEM."""

    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, certificate: Path | None, key: Path | None) -> Identity | None:
        """What the two files hold; None if neither is given.

        Raises:
            InvalidInput: only one is given, or they cannot be read, are damaged, or do not belong
                to each other.
        """
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise InvalidInput("--tls-cert and --tls-key are given together or not at all")
        identity = cls(_read(certificate), _read(key))
        try:
            # gRPC itself would only say that the port cannot be opened.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
        except (ssl.SSLError, ValueError) as error:
            raise InvalidInput(
                f"{certificate} and {key} are not a certificate and its key, both as PEM: "
                f"{_reason(error)}"
            ) from None
        return identity


def server_credentials(
    certificate: Path | None, key: Path | None, client_authority: Path | None = None
) -> grpc.ServerCredentials | None:
    """What a server listens with; None if it does not encrypt.

    The files are looked at whenever somebody connects: once they are renewed, whoever connects
    is shown what is in them.

    Args:
        certificate: what it shows; None if it does not encrypt.
        key: what belongs to that.
        client_authority: whose certificates clients have to show; anybody may come if None.

    Raises:
        InvalidInput: a file is no good, or an option lacks its other.
    """
    files = _ServerFiles(certificate, key, client_authority)
    configuration = files.read()
    if configuration is None:
        if client_authority is not None:
            raise InvalidInput("--tls-client-ca needs --tls-cert and --tls-key")
        return None
    return grpc.dynamic_ssl_server_credentials(
        configuration,
        files.renewed,  # type: ignore[arg-type]  # may be None, for nothing new; the stubs forget it
        require_client_authentication=client_authority is not None,
    )


class _ServerFiles:
    """The files of a server, which may be renewed; gRPC asks for that in threads of its own."""

    def __init__(
        self, certificate: Path | None, key: Path | None, client_authority: Path | None
    ) -> None:
        self._certificate = certificate
        self._key = key
        self._client_authority = client_authority
        self._stamps = self._look()

    def read(self) -> grpc.ServerCertificateConfiguration | None:
        """What the files hold; None without a certificate.

        Raises:
            InvalidInput: they are no good.
        """
        identity = Identity.read(self._certificate, self._key)
        if identity is None:
            return None
        authority = None if self._client_authority is None else _authority(self._client_authority)
        return grpc.ssl_server_certificate_configuration(
            [(identity.key, identity.certificate)], root_certificates=authority
        )

    def renewed(self) -> grpc.ServerCertificateConfiguration | None:
        """What the files hold, if it is something else than when they were last read."""
        stamps = self._look()
        if stamps == self._stamps:
            return None
        # One after the other is renewed: what does not fit yet is read again when more has come.
        self._stamps = stamps
        try:
            configuration = self.read()
        except InvalidInput as error:
            _log.warning("the certificate before is still in use: %s", error)
            return None
        _log.info("%s has been renewed", self._certificate)
        return configuration

    def _look(self) -> list[tuple[int, int] | None]:
        """Which files they are, and when each was changed; None of one that is not there."""
        files = filter(None, (self._certificate, self._key, self._client_authority))
        return [_stamp(file) for file in files]


def channel_credentials(
    authority: Path | None, identity: Identity | None = None
) -> grpc.ChannelCredentials | None:
    """What a client connects with; None if it does not encrypt.

    Args:
        authority: whose certificate the server has to show.
        identity: what the client shows.

    Raises:
        InvalidInput: the authority's file is no good, or missing beside an identity.
    """
    if authority is None:
        if identity is not None:
            raise InvalidInput("--tls-cert and --tls-key need --tls-ca")
        return None
    return grpc.ssl_channel_credentials(
        _authority(authority),
        private_key=None if identity is None else identity.key,
        certificate_chain=None if identity is None else identity.certificate,
    )


def open_channel(
    target: str, options: list[tuple[str, int]], credentials: grpc.ChannelCredentials | None
) -> grpc.aio.Channel:
    """A channel to ``host:port``, encrypted if there are credentials."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, credentials, options)


def _authority(path: Path) -> bytes:
    content = _read(path)
    try:
        ssl.create_default_context(cadata=content.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise InvalidInput(f"{path} has no certificates as PEM: {_reason(error)}") from None
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
    # Without this, OpenSSL would ask on the terminal.
    raise ValueError

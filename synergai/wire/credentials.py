"""Credentials: TLS from PEM files, for gRPC and for work sockets, and bearer tokens of clients.

Servers present a certificate, which clients and agents verify against an authority. A server with a
client authority requires clients to present a certificate as well (mutual TLS). A token is sent
only where nobody can read it on its way.
"""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar, cast

import grpc

from synergai.errors import InvalidInput
from synergai.runtime.addresses import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Metadata: TypeAlias = tuple[tuple[str, str], ...]

T = TypeVar("T")

_KEY_USAGE: Final = bytes.fromhex("0603551d0f")
"""Identifier of the extension, as it is encoded in certificates."""
_TOKEN: Final = re.compile("[!-~]{1,8192}")
_LOCAL: Final = ("unix:", "unix-abstract:")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Certificate chain and its private key, both PEM."""

    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, certificate: Path | None, key: Path | None) -> Identity | None:
        """Read an identity from its two files; None if neither is given."""
        if certificate is None and key is None:
            return None
        if certificate is None or key is None:
            raise InvalidInput("--tls-cert and --tls-key must be given together")
        identity = cls(_read(certificate), _read(key))
        # gRPC itself would only report that it cannot open the port.
        _load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)
        return identity


# --- servers ------------------------------------------------------------------------------


def server_context(
    certificate: Path | None,
    key: Path | None,
    client_authority: Path | None = None,
    *,
    http2: bool = False,
) -> ssl.SSLContext | None:
    """Create the context of a server; None if TLS is not configured.

    The files are checked for changes before every handshake, so renewed certificates take effect
    without a restart.
    """

    def read() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if certificate is not None and key is not None:
            _load_chain(context, certificate, key)
        if client_authority is not None:
            context.load_verify_locations(cadata=_read_authority(client_authority).decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
        if http2:
            context.set_alpn_protocols(["h2"])
        return context

    if Identity.read(certificate, key) is None:
        if client_authority is not None:
            raise InvalidInput("--tls-client-ca needs --tls-cert and --tls-key")
        return None
    context = _ReloadingContext(ssl.PROTOCOL_TLS_SERVER)
    context.current = read()
    context.renewals = _Renewals(read, certificate, key, client_authority)
    return context


def server_credentials(
    certificate: Path | None, key: Path | None, client_authority: Path | None = None
) -> grpc.ServerCredentials | None:
    """Create what a server of grpcio needs in place of `server_context`."""
    if certificate is None or key is None:
        server_context(certificate, key, client_authority)  # raises if files are missing
        return None

    def read() -> grpc.ServerCertificateConfiguration:
        server_context(certificate, key, client_authority)  # which checks the files
        authority = None if client_authority is None else _read(client_authority)
        pair = _read(key), _read(certificate)
        return grpc.ssl_server_certificate_configuration([pair], authority)

    return grpc.dynamic_ssl_server_credentials(
        read(),
        _Renewals(read, certificate, key, client_authority).take,  # type: ignore[arg-type]  # it may return None
        require_client_authentication=client_authority is not None,
    )


class _ReloadingContext(ssl.SSLContext):
    """Server context that reads renewed files before each handshake.

    asyncio keeps the context of a listening socket for its lifetime, but wraps every connection
    by `wrap_bio`. A context with another certificate or authority is a new one: trust in a
    previous authority cannot be taken back.
    """

    current: ssl.SSLContext
    renewals: _Renewals[ssl.SSLContext]

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Wrap a connection with the current context."""
        self.current = self.renewals.take() or self.current
        return self.current.wrap_bio(*args, **options)


class _Renewals(Generic[T]):
    """What is read from files, again when one of them has changed."""

    def __init__(self, read: Callable[[], T], *paths: Path | None) -> None:
        self._read = read
        self._paths = tuple(filter(None, paths))
        self._stamps = [_stamp(path) for path in self._paths]

    def take(self) -> T | None:
        """Return the new content; None if it has not changed, or is invalid."""
        stamps = [_stamp(path) for path in self._paths]
        if stamps == self._stamps:
            return None
        # They are renewed one by one; a mismatched pair is read again after the next change.
        self._stamps = stamps
        try:
            content = self._read()
        except InvalidInput as error:
            _log.warning("keeping the previous certificate: %s", error)
            return None
        _log.info("reloaded %s", self._paths[0])
        return content


# --- clients ------------------------------------------------------------------------------


def channel_credentials(
    authority: Path | None, identity: Identity | None = None
) -> grpc.ChannelCredentials | None:
    """Create the credentials of a client; None if TLS is not configured."""
    if authority is None:
        if identity is not None:
            raise InvalidInput("--tls-cert and --tls-key need --tls-ca")
        return None
    return grpc.ssl_channel_credentials(
        _read_authority(authority),
        private_key=None if identity is None else identity.key,
        certificate_chain=None if identity is None else identity.certificate,
    )


@dataclass(frozen=True, slots=True)
class ClientTls:
    """TLS of a client's gRPC channels and asyncio sockets; None stands for plaintext."""

    channel: grpc.ChannelCredentials | None = None
    socket: ssl.SSLContext | None = None

    @classmethod
    def read(
        cls, authority: Path | None, certificate: Path | None = None, key: Path | None = None
    ) -> ClientTls:
        channel = channel_credentials(authority, Identity.read(certificate, key))
        if authority is None:
            return cls()
        socket = ssl.create_default_context(cadata=_read_authority(authority).decode("ascii"))
        _check_key_usage(socket, authority)
        if certificate is not None and key is not None:
            _load_chain(socket, certificate, key)
        return cls(channel, socket)


def open_channel(
    target: str, options: list[tuple[str, int | str]], credentials: grpc.ChannelCredentials | None
) -> grpc.aio.Channel:
    """Open a channel to ``host:port``, with TLS if `credentials` are given."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options)
    return grpc.aio.secure_channel(target, credentials, options)


# --- files --------------------------------------------------------------------------------


def _load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{certificate} and {key} are not a PEM certificate and its PEM key: {_reason(error)}"
        ) from None


def _check_key_usage(context: ssl.SSLContext, authority: Path) -> None:
    """Check the authority for what Python 3.13 and later require of it in every handshake."""
    strict = context.verify_flags & ssl.VERIFY_X509_STRICT
    if strict and not any(_KEY_USAGE in each for each in context.get_ca_certs(binary_form=True)):
        raise InvalidInput(
            f"{authority} has no key usage, which this Python requires of an authority: make a new "
            "one with keyUsage=critical,keyCertSign, and certificates of it, as "
            "docs/guide/security.md says"
        )


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
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is not text"


def _no_password() -> str:
    # By default OpenSSL prompts on the terminal.
    raise ValueError


def token_metadata(token: str, target: str, *, encrypted: bool, insecure: bool) -> Metadata:
    """Return the metadata that presents a token, if it cannot be read on its way.

    Without TLS, it goes to other machines only if that is `insecure` on purpose. Several targets
    are separated by commas.
    """
    if not token:
        return ()
    if _TOKEN.fullmatch(token) is None:
        raise InvalidInput("the token has spaces or other characters that no token has")
    remote = [each for each in target.split(",") if not _is_local(each)]
    if remote and not (encrypted or insecure):
        raise InvalidInput(
            f"the token would be sent to {remote[0]} without encryption: use TLS "
            "(SYNERGAI_TLS_CA, tls_ca=), or accept the risk with SYNERGAI_INSECURE=1 "
            "(insecure=True)"
        )
    return (("authorization", f"Bearer {token}"),)


def _is_local(target: str) -> bool:
    if target.startswith(_LOCAL):
        return True
    address = target.rpartition("/")[2]
    return is_loopback(address.rpartition(":")[0] or address)


class _AuthorizedChannel:
    """A channel whose calls present credentials; has what stubs need.

    Not an interceptor of gRPC, which would add a task to each call.
    """

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        self._metadata = metadata
        self.unary_unary = partial(self._authorize, channel.unary_unary)
        self.unary_stream = partial(self._authorize, channel.unary_stream)
        self.stream_unary = partial(self._authorize, channel.stream_unary)
        self.stream_stream = partial(self._authorize, channel.stream_stream)

    def _authorize(
        self, make: Callable[..., Any], *args: Any, **options: Any
    ) -> Callable[..., Any]:
        method = make(*args, **options)

        def call(*args: Any, metadata: Metadata = (), **options: Any) -> Any:
            return method(*args, metadata=(*metadata, *self._metadata), **options)

        return call


def authorized(channel: grpc.aio.Channel, metadata: Metadata) -> grpc.aio.Channel:
    """Return a channel for stubs whose calls have `metadata`; the channel itself if it is empty."""
    if not metadata:
        return channel
    return cast("grpc.aio.Channel", _AuthorizedChannel(channel, metadata))

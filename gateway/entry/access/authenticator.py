"""Authentication of calls: from credentials to callers."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gateway.entry.access.caller import ANONYMOUS, Caller
from gateway.entry.access.jwt_tokens import JwtTokens
from synergai.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AsyncExitStack

    from gateway.entry.access.table import AccessTable, AllowedClient, LiveTable


class PeerCertificate(Struct, frozen=True):
    """A client's certificate, whose chain TLS has verified."""

    names: tuple[str, ...]
    alternative_names: frozenset[str] = frozenset()


def peer_certificate(der: bytes | None) -> PeerCertificate | None:
    """Return the certificate of a client by its DER; None without one."""
    return None if der is None else _parse(der)


@lru_cache(maxsize=256)
def _parse(der: bytes) -> PeerCertificate:
    # Imported on demand: most gateways verify no certificates of clients.
    from cryptography import x509

    certificate = x509.load_der_x509_certificate(der)
    common = certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    alternative: list[str] = []
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        pass
    else:
        alternative = [str(name.value) for name in extension.value]
    names = (*(str(attribute.value) for attribute in common), *alternative)
    return PeerCertificate(tuple(dict.fromkeys(names)), frozenset(alternative))


AUTHORIZATION: Final = "authorization"
"""Metadata and header with the bearer token."""
_MAX_TOKEN: Final = 8192
"""Longest token in characters."""


class Clients:
    """Callers of the table's clients, by the one kind of credential that `key` returns."""

    def __init__(self, kind: str, key: Callable[[AllowedClient], str | None]) -> None:
        self._kind = kind
        self._key = key
        self._callers: dict[str, Caller] = {}

    def apply(self, table: AccessTable) -> None:
        """Follow a change of the table; callers of open streams change as well."""
        previous, self._callers = self._callers, {}
        for client in table.clients:
            key = self._key(client)
            if key is None:
                continue
            caller = previous.get(key)
            if caller is None or caller.name != client.name:
                caller = Caller(client.name, "", (), credential=self._kind)
            else:
                del previous[key]
            tenant = client.tenant or client.name
            caller.update(
                tenant,
                table.grants_of(client.name, client.groups),
                max_priority=table.quota_of(tenant).max_priority,
                expires_at=None if client.expires is None else client.expires.timestamp(),
            )
            self._callers[key] = caller
        for caller in previous.values():
            caller.revoke(f"the credentials of {caller.name!r} have been revoked; get new ones")

    def find(self, key: str) -> Caller | None:
        return self._callers.get(key)


class Authenticator:
    """Finds the caller of each call.

    A token comes before the certificate of the connection. A call with neither is anonymous; one
    whose credentials are invalid never is. The table has only the hashes of tokens.
    """

    def __init__(self, table: LiveTable, stack: AsyncExitStack) -> None:
        self._anonymous = Caller(ANONYMOUS, "", ())
        self._tokens = Clients("token", lambda client: client.token_sha256)
        self._certificates = Clients("certificate", lambda client: client.certificate)
        self._jwt = JwtTokens()
        stack.push_async_callback(self._jwt.close)
        self.failures = 0
        table.follow(self._follow_grants)
        for method in (self._tokens, self._certificates, self._jwt):
            table.follow(method.apply)

    async def authenticate(
        self, authorization: Sequence[str], certificate: PeerCertificate | None
    ) -> Caller:
        try:
            if authorization:
                caller = await self._of_token(_bearer_token(authorization))
            elif certificate is not None:
                caller = self._of_certificate(certificate)
            else:
                caller = self._anonymous
            caller.check_valid()
        except Unauthenticated:
            self.failures += 1
            raise
        return caller

    async def _of_token(self, token: str) -> Caller:
        # A lookup by hash takes a time that says nothing about how much of a token is right.
        caller = self._tokens.find(hashlib.sha256(token.encode()).hexdigest())
        caller = caller or await self._jwt.authenticate(token)
        if caller is None:
            raise Unauthenticated(
                "the token is unknown, or has been revoked; check that it is the right gateway's, "
                "or get a new one"
            )
        return caller

    def _of_certificate(self, certificate: PeerCertificate) -> Caller:
        for name in certificate.names:
            if (caller := self._certificates.find(name)) is not None:
                return caller
        names = " or ".join(map(repr, certificate.names)) or "without a name"
        raise Unauthenticated(f"the gateway's access table has no client with certificate {names}")

    def _follow_grants(self, table: AccessTable) -> None:
        self._anonymous.update(
            "", table.grants_of(ANONYMOUS), max_priority=table.quota_of("").max_priority
        )


def _bearer_token(authorization: Sequence[str]) -> str:
    scheme, _, token = authorization[0].partition(" ")
    token = token.strip()
    if len(authorization) > 1 or scheme.lower() != "bearer" or not 0 < len(token) <= _MAX_TOKEN:
        raise Unauthenticated("send one token, as 'authorization: Bearer TOKEN'")
    return token

"""Authentication of calls: from credentials to callers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from gateway.access.clients import Anonymous, Certificates, Tokens
from gateway.access.jwt_tokens import JwtTokens
from synergai.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AsyncExitStack

    from gateway.access.caller import Caller
    from gateway.access.peer_certificate import PeerCertificate
    from gateway.access.table import AccessTable, LiveTable

AUTHORIZATION: Final = "authorization"
"""Metadata and header with the bearer token."""
_MAX_TOKEN: Final = 8192
"""Longest token in characters."""

CredentialT = TypeVar("CredentialT", contravariant=True)


class AuthenticationMethod(Protocol[CredentialT]):
    """One way to authenticate."""

    def apply(self, table: AccessTable) -> None:
        """Follow a change of the access table."""

    async def authenticate(self, credential: CredentialT, /) -> Caller | None:
        """Return the caller with a credential; None if this method does not know it."""


class Authenticator:
    """Finds the caller of each call.

    A token comes before the certificate of the connection. A call with neither is anonymous; one
    whose credentials are invalid never is.
    """

    def __init__(self, table: LiveTable, stack: AsyncExitStack) -> None:
        self._anonymous = Anonymous()
        jwt = JwtTokens()
        stack.push_async_callback(jwt.close)
        self._tokens: tuple[AuthenticationMethod[str], ...] = (Tokens(), jwt)
        self._certificates: AuthenticationMethod[PeerCertificate] = Certificates()
        self.failures = 0
        for method in (self._anonymous, *self._tokens, self._certificates):
            table.follow(method.apply)

    async def authenticate(
        self, authorization: Sequence[str], certificate: PeerCertificate | None
    ) -> Caller:
        """Return the caller of a call."""
        try:
            caller = await self._find(authorization, certificate)
            caller.check_valid()
        except Unauthenticated:
            self.failures += 1
            raise
        return caller

    async def _find(
        self, authorization: Sequence[str], certificate: PeerCertificate | None
    ) -> Caller:
        if not authorization:
            if certificate is None:
                return self._anonymous.caller
            caller = await self._certificates.authenticate(certificate)
        else:
            token = _bearer_token(authorization)
            for method in self._tokens:
                caller = await method.authenticate(token)
                if caller is not None:
                    break
        if caller is None:
            raise Unauthenticated(
                "the token is unknown, or has been revoked; check that it is the right gateway's, "
                "or get a new one"
            )
        return caller


def _bearer_token(authorization: Sequence[str]) -> str:
    scheme, _, token = authorization[0].partition(" ")
    token = token.strip()
    if len(authorization) > 1 or scheme.lower() != "bearer" or not 0 < len(token) <= _MAX_TOKEN:
        raise Unauthenticated("send one token, as 'authorization: Bearer TOKEN'")
    return token

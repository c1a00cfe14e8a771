"""Callers of the access table's clients, by token or by certificate."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from gateway.access.caller import Caller
from gateway.access.roles import ANONYMOUS
from synergai.errors import Unauthenticated

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.access.peer_certificate import PeerCertificate
    from gateway.access.table import AccessTable, Client


class Clients:
    """Callers of the table's clients, by the one kind of credential that `key` returns."""

    def __init__(self, kind: str, key: Callable[[Client], str | None]) -> None:
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
        """Return the caller with a credential; None if it is unknown."""
        return self._callers.get(key)


class Tokens:
    """Authenticates bearer tokens. The table has only their hashes."""

    def __init__(self) -> None:
        self._clients = Clients("token", lambda client: client.token_sha256)
        self.apply = self._clients.apply

    async def authenticate(self, token: str) -> Caller | None:
        """Return the client with a token; None if it is unknown."""
        # A lookup by hash takes a time that says nothing about how much of a token is right.
        return self._clients.find(hashlib.sha256(token.encode()).hexdigest())


class Certificates:
    """Authenticates the certificates of connections, which TLS has verified."""

    def __init__(self) -> None:
        self._clients = Clients("certificate", lambda client: client.certificate)
        self.apply = self._clients.apply

    async def authenticate(self, certificate: PeerCertificate) -> Caller:
        """Return the client of a certificate."""
        for name in certificate.names:
            caller = self._clients.find(name)
            if caller is not None:
                return caller
        names = " or ".join(map(repr, certificate.names)) or "without a name"
        raise Unauthenticated(f"the gateway's access table has no client with certificate {names}")


class Anonymous:
    """The caller without credentials."""

    def __init__(self) -> None:
        self.caller = Caller(ANONYMOUS, "", ())

    def apply(self, table: AccessTable) -> None:
        """Follow a change of the table."""
        self.caller.update(
            "", table.grants_of(ANONYMOUS), max_priority=table.quota_of("").max_priority
        )

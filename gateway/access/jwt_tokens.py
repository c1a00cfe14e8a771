"""JSON web tokens as bearer tokens."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from gateway.access.caller import Caller
from gateway.access.key_set import KeySet
from gateway.access.roles import JWT_PREFIX
from synergai.errors import InvalidInput, Unauthenticated
from synergai.names import validate_name
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from gateway.access.table import AccessTable, Jwt

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Accepted algorithms. All are asymmetric: a published key must not be able to sign."""
_LEEWAY_S: Final = 10
"""Tolerated difference of the clocks of issuer and gateway."""
_MAX_CACHED: Final = 4096
_MAX_SUBJECT: Final = 256


class _Claims(Struct, frozen=True):
    """Verified claims of a token, and the row of the issuer by which they were read."""

    issuer: Jwt
    subject: str
    tenant: str
    groups: frozenset[str]
    expires_at: float


class JwtTokens:
    """Authenticates JSON web tokens of the issuers in the access table.

    A token is verified once, and found by its hash until it expires.
    """

    def __init__(self) -> None:
        self._table: AccessTable
        self._issuers: dict[str, Jwt] = {}
        self._keys: dict[str, KeySet] = {}
        self._closing = TaskBag()
        self._verified: OrderedDict[bytes, Caller] = OrderedDict()
        self._claims: WeakKeyDictionary[Caller, _Claims] = WeakKeyDictionary()

    async def close(self) -> None:
        """Stop refreshing keys."""
        await asyncio.gather(*(keys.close() for keys in self._keys.values()), self._closing.wait())

    def apply(self, table: AccessTable) -> None:
        """Follow a change of the table; callers of open streams change as well."""
        self._table = table
        self._issuers = {jwt.issuer: jwt for jwt in table.jwt}
        wanted = {jwt.keys for jwt in table.jwt}
        for location in self._keys.keys() - wanted:
            self._closing.start(self._keys.pop(location).close())
        for location in wanted - self._keys.keys():
            self._keys[location] = KeySet(location)
        for caller, claims in list(self._claims.items()):
            if self._issuers.get(claims.issuer.issuer) != claims.issuer:
                caller.revoke("the token's issuer was changed or removed; send the token again")
                self._verified.clear()
            else:
                self._update(caller, claims)

    async def authenticate(self, token: str) -> Caller | None:
        """Return the caller with a token; None if it is not a JSON web token."""
        if not self._issuers or token.count(".") != 2:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        caller = self._verified.get(digest)
        if caller is None:
            claims = await self._verify(token)
            caller = Caller(f"{JWT_PREFIX}{claims.subject}", "", (), credential="jwt")
            self._update(caller, claims)
            self._claims[caller] = claims
            self._verified[digest] = caller
            if len(self._verified) > _MAX_CACHED:
                self._verified.popitem(last=False)
        else:
            self._verified.move_to_end(digest)
        return caller

    def _update(self, caller: Caller, claims: _Claims) -> None:
        table = self._table
        caller.update(
            claims.tenant,
            table.grants_of(caller.name, claims.groups),
            max_priority=table.quota_of(claims.tenant).max_priority,
            expires_at=claims.expires_at,
        )

    async def _verify(self, token: str) -> _Claims:
        # Imported on demand: most gateways have clients with other credentials.
        import jwt

        try:
            unverified = jwt.decode_complete(token, options={"verify_signature": False})
            header, issuer = unverified["header"], self._issuers.get(unverified["payload"]["iss"])
            if issuer is None:
                raise Unauthenticated("the token's issuer is not trusted by this gateway")
            algorithm = header["alg"]
            if algorithm not in ALGORITHMS:
                raise Unauthenticated(f"tokens may not be signed with {algorithm!r}")
            key = await self._keys[issuer.keys].find(str(header.get("kid", "")))
            claims: dict[str, Any] = jwt.decode(
                token,
                jwt.PyJWK(key, algorithm=key.get("alg", algorithm)),
                algorithms=ALGORITHMS,
                audience=issuer.audience,
                issuer=issuer.issuer,
                leeway=_LEEWAY_S,
                options={
                    "require": ["exp", "sub", "iss", "aud"],
                    "enforce_minimum_key_length": True,
                },
            )
        except (jwt.PyJWTError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise Unauthenticated(f"the token is not valid: {error}") from None
        return _read_claims(claims, issuer)


def _read_claims(claims: dict[str, Any], issuer: Jwt) -> _Claims:
    subject = claims["sub"]
    if not 0 < len(subject) <= _MAX_SUBJECT or not subject.isprintable():
        raise Unauthenticated(f"the token's subject is longer than {_MAX_SUBJECT} characters")
    tenant = claims.get(issuer.tenant_claim, subject)
    try:
        validate_name(tenant, f"tenant (claim {issuer.tenant_claim!r}, or else the subject)")
    except (InvalidInput, TypeError) as error:
        raise Unauthenticated(f"the token has no valid tenant: {error}") from None
    groups = claims.get(issuer.groups_claim, ())
    if isinstance(groups, str):
        groups = (groups,)
    if not isinstance(groups, list | tuple) or not all(isinstance(each, str) for each in groups):
        raise Unauthenticated(f"the token's claim {issuer.groups_claim!r} is not a list of names")
    expires = int(claims["exp"])
    if expires > time.time() + issuer.max_lifetime_s + _LEEWAY_S:
        raise Unauthenticated(
            "the token expires too late: this gateway accepts tokens of its issuer that expire "
            f"within {issuer.max_lifetime_s:,} s"
        )
    return _Claims(
        issuer=issuer,
        subject=subject,
        tenant=tenant,
        groups=frozenset(groups),
        expires_at=expires + _LEEWAY_S,
    )

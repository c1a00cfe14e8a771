"""JSON web tokens as bearer tokens."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Struct

from gateway.entry.access.caller import JWT_PREFIX, Caller
from synergai.errors import InvalidInput, Unauthenticated, Unavailable
from synergai.names import validate_name
from synergai.runtime.tasks import TaskBag

if TYPE_CHECKING:
    from gateway.entry.access.table import AccessTable, Jwt

_log = logging.getLogger(__name__)

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Accepted algorithms. All are asymmetric: a published key must not be able to sign."""
_LEEWAY_S: Final = 10
"""Tolerated difference of the clocks of issuer and gateway."""
_MAX_CACHED: Final = 4096
_MAX_SUBJECT: Final = 256
REFRESH_S: Final = 300.0
"""Interval between two refreshes."""
UNKNOWN_KEY_REFRESH_S: Final = 30.0
"""Shortest time between two refreshes because of unknown keys, which anyone can name."""
_TIMEOUT_S: Final = 5.0


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


class _Keys(Struct):
    keys: list[dict[str, Any]]


class KeySet:
    """The signing keys of an issuer by key id, from an ``https`` URL or a file."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._keys: dict[str, dict[str, Any]] | None = None
        self._asked_at = -UNKNOWN_KEY_REFRESH_S
        self._tasks = TaskBag()
        self._loading = self._tasks.start(self._load())
        self._tasks.start(self._refresh())

    async def close(self) -> None:
        await self._tasks.close()

    async def find(self, key_id: str) -> dict[str, Any]:
        """Return a key as a JWK; an empty id means the only key."""
        key = self._find(key_id)
        if key is None:
            now = time.monotonic()
            if self._loading.done() and now >= self._asked_at + UNKNOWN_KEY_REFRESH_S:
                self._asked_at = now
                self._loading = self._tasks.start(self._load())
            # A server that sends byte by byte keeps within the timeout of the connection.
            await asyncio.wait([self._loading], timeout=2 * _TIMEOUT_S)
            key = self._find(key_id)
        if key is not None:
            return key
        if self._keys is None or not self._loading.done():
            raise Unavailable("the keys of the token's issuer cannot be loaded; try later")
        raise Unauthenticated("the token is signed with a key that its issuer does not publish")

    def _find(self, key_id: str) -> dict[str, Any] | None:
        if self._keys is None:
            return None
        if not key_id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            await self._load()

    async def _load(self) -> None:
        """Load the keys; keep the previous ones if that fails."""
        # Imported on demand, like above.
        from jwt import PyJWKClientError

        try:
            content = await asyncio.to_thread(_read, self._location)
            keys = msgspec.convert(content, _Keys).keys
        except (OSError, ValueError, RecursionError, PyJWKClientError) as error:
            _log.error("the keys at %s cannot be loaded: %s", self._location, error)
            return
        self._keys = {
            str(key.get("kid", "")): key for key in keys if key.get("use", "sig") == "sig"
        }


def _read(location: str) -> Any:
    from jwt import PyJWKClient

    if location.startswith("https://"):
        # It follows no redirects, which could lead to plain HTTP.
        return PyJWKClient(location, cache_jwk_set=False, timeout=_TIMEOUT_S).fetch_data()
    return json.loads(Path(location).read_bytes())

"""The access table: a TOML file with clients, grants, tenants and workers.

Its format is in docs/guide/security.md. It is validated as a whole, so that a mistake cannot half
apply.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter
from datetime import datetime  # noqa: TC003  # msgspec needs the types of fields
from typing import TYPE_CHECKING, Annotated, Final, Generic, TypeVar

from msgspec import Meta, Struct

from gateway.entry.access.caller import ANONYMOUS, ANY, Grant, matches
from synergai.errors import InvalidInput
from synergai.jobs import MAX_PRIORITY
from synergai.names import validate_name
from synergai.runtime.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

T = TypeVar("T")

_log = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
"""Interval between two looks at the file."""
_WILDCARDS: Final = frozenset("*?[")
_AMBIGUOUS: Final = re.compile(r"\}[A-Za-z0-9._-]*\{")
"""Placeholders that only characters of names separate."""

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Limit = Annotated[int, Meta(ge=0)]
Rate = Annotated[float, Meta(gt=0)]


class AllowedClient(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A client with a token or a certificate.

    Attributes:
        tenant: its tenant; by default, its name.
        token_sha256: SHA-256 of its bearer token, in hexadecimal digits.
    """

    name: str
    tenant: str = ""
    groups: frozenset[str] = frozenset()
    token_sha256: Sha256 | None = None
    certificate: str | None = None
    expires: Annotated[datetime, Meta(tz=True)] | None = None

    def __post_init__(self) -> None:
        validate_name(self.name, "client name")
        if self.name == ANONYMOUS:
            raise ValueError(f"the name {self.name!r} is reserved")
        if self.tenant:
            validate_name(self.tenant, "tenant name")
        if (self.token_sha256 is None) == (self.certificate is None):
            raise ValueError(f"client {self.name!r} needs either token_sha256 or certificate")


class Jwt(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An issuer of JSON web tokens. Its clients are named ``jwt:SUBJECT``.

    `keys` is an ``https`` URL or file (JWKS). Without a tenant claim, the subject is the tenant.
    """

    issuer: str
    audience: str
    keys: str
    tenant_claim: str = "tenant"
    groups_claim: str = "groups"
    max_lifetime_s: Annotated[int, Meta(gt=0)] = 24 * 3600

    def __post_init__(self) -> None:
        if "://" in self.keys and not self.keys.startswith("https://"):
            raise ValueError(f"keys must be an https URL or a file, not {self.keys!r}")


class Quota(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a tenant; None stands for no limit. Rates allow bursts of one second."""

    max_priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] = MAX_PRIORITY
    requests_per_s: Rate | None = None
    bytes_per_s: Rate | None = None
    requests_in_flight: Limit | None = None
    unfinished_jobs: Limit | None = None
    queries_per_job: Limit | None = None
    stored_bytes: Limit | None = None


class AllowedWorkers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers that may join, and what they may serve.

    Attributes:
        digests: digests that each of these engines, or of their versions ``NAME/N``, may have;
            engines that are not listed may have any.
        token_sha256: SHA-256 of the agent's token, in hexadecimal digits.
        certificate: subject alternative name that the agent's certificate must have, in which
            ``{id}`` and ``{class}`` stand for the worker's.
    """

    id: str
    worker_class: str = ANY
    engines: tuple[str, ...] = (ANY,)
    digests: dict[str, frozenset[Sha256]] = {}
    token_sha256: Sha256 | None = None
    certificate: str | None = None

    def __post_init__(self) -> None:
        if (self.token_sha256 is None) == (self.certificate is None):
            raise ValueError(f"worker {self.id!r} needs either token_sha256 or certificate")
        if self.certificate is None:
            return
        # Otherwise one certificate could stand for several workers or classes.
        for name, pattern in (("{id}", self.id), ("{class}", self.worker_class)):
            if name not in self.certificate and set(pattern) & _WILDCARDS:
                raise ValueError(
                    f"certificate {self.certificate!r} needs {name}, because {pattern!r} is a "
                    "pattern"
                )
        if _AMBIGUOUS.search(self.certificate):
            raise ValueError(
                f"certificate {self.certificate!r} needs a character between {{id}} and {{class}} "
                "that names do not have, such as '/'"
            )

    @property
    def shares_token(self) -> bool:
        """Whether several workers have the same token."""
        return self.token_sha256 is not None and bool(set(self.id) & _WILDCARDS)

    def covers(self, worker_id: str, worker_class: str) -> bool:
        return matches(self.id, worker_id) and matches(self.worker_class, worker_class)

    def certificate_name(self, worker_id: str, worker_class: str) -> str:
        """Return the subject alternative name of this worker's certificate; empty if none."""
        template = self.certificate or ""
        return template.replace("{class}", worker_class).replace("{id}", worker_id)


_NO_QUOTA: Final = Quota()


class AccessTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Content of the file. Without a grant, a client may do nothing.

    None as workers leaves the agents' port as it is without a table.
    """

    clients: tuple[AllowedClient, ...] = ()
    grants: tuple[Grant, ...] = ()
    jwt: tuple[Jwt, ...] = ()
    tenants: dict[str, Quota] = {}
    workers: tuple[AllowedWorkers, ...] | None = None

    def __post_init__(self) -> None:
        _check_unique("two clients have the name", [client.name for client in self.clients])
        _check_unique("two clients have the token_sha256", [c.token_sha256 for c in self.clients])
        _check_unique("two clients have the certificate", [c.certificate for c in self.clients])
        # A row for a worker may be repeated, such as to replace its token.
        tokens = {(row.token_sha256, row.id) for row in self.workers or ()}
        _check_unique(
            "two workers, or a client and a worker, have the token_sha256",
            [*{client.token_sha256 for client in self.clients}, *(token for token, _ in tokens)],
        )
        _check_unique("two [[jwt]] have the issuer", [jwt.issuer for jwt in self.jwt])

    def grants_of(self, name: str, groups: frozenset[str] = frozenset()) -> tuple[Grant, ...]:
        return tuple(grant for grant in self.grants if grant.is_for(name, groups))

    def quota_of(self, tenant: str) -> Quota:
        return self.tenants.get(tenant) or self.tenants.get("default") or _NO_QUOTA


def read_access_table(path: Path) -> AccessTable:
    return read_toml(path, AccessTable, f"access table {path}")


def _check_unique(fault: str, values: list[str] | list[str | None]) -> None:
    for value, count in Counter(values).items():
        if value is not None and count > 1:
            raise ValueError(f"{fault} {value!r}")


class WatchedFile(Generic[T]):
    """Content of a file, which follows its changes.

    A file that is invalid after a change leaves the previous content in force.
    """

    def __init__(self, what: str, path: Path, read: Callable[[], T]) -> None:
        self._what = what
        self._path = path
        self._read = read
        self._stamp = _stamp(path)
        self._listeners: list[Callable[[T], None]] = []
        self.content = read()
        self.rejected = 0

    def follow(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the content now and after each change, on the event loop."""
        self._listeners.append(listener)
        listener(self.content)

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Apply a change of the file, if there is one and it is complete."""
        stamp = await asyncio.to_thread(_stamp, self._path)
        if stamp == self._stamp:
            return
        content, error = await asyncio.to_thread(self._try_to_read)
        if await asyncio.to_thread(_stamp, self._path) != stamp:
            return  # it is being written; the next look reads it
        self._stamp = stamp
        if content is None:
            self.rejected += 1
            bug = None if isinstance(error, InvalidInput) else error
            _log.error("keeping the previous %s: %s", self._what, error, exc_info=bug)
            return
        self.content = content
        for listener in self._listeners:
            try:
                listener(content)
            except Exception:  # noqa: BLE001 - a bug in one of them
                # The others still follow, this change and further ones.
                _log.exception("a part of the gateway did not follow the %s", self._what)
        _log.info("reloaded the %s", self._what)

    def _try_to_read(self) -> tuple[T, None] | tuple[None, Exception]:
        try:
            return self._read(), None
        except Exception as error:  # noqa: BLE001 - the previous content is kept in any case
            return None, error


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """Return what tells two versions of a file apart; None if it is missing."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


class LiveTable(WatchedFile[AccessTable]):
    """The access table in force."""

    def __init__(self, path: Path) -> None:
        super().__init__("access table", path, lambda: read_access_table(path))

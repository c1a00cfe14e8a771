"""Callers, and what they may do: roles, and the grants that give them.

The servers' authentication binds the caller to the context of the call's task. Servicers read it
with `current_caller` and pass it on explicitly: everything behind them takes it as an argument.
"""

from __future__ import annotations

import enum
import re
import time
from contextvars import ContextVar
from fnmatch import translate
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from synergai.errors import JobNotFound, PermissionDenied, Unauthenticated
from synergai.jobs import MAX_PRIORITY, JobSpec, JobStatus
from synergai.names import engine_of_stage, is_stage, split_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from synergai.domain import EngineName

_MAX_DECISIONS: Final = 1024
"""Decisions remembered per caller; clients choose the engine's name."""
_MAX_REMEMBERED: Final = 512
"""Characters of the names of a remembered decision: a message may have a name of megabytes."""
JWT_PREFIX: Final = "jwt:"
"""Prefix of the names of clients with JSON web tokens."""
_WILDCARD: Final = re.compile(r"[*?[]")
ANY: Final = "*"
"""Pattern that every name matches."""
ANONYMOUS: Final = "anonymous"
"""Name of callers without credentials. Only a grant with exactly this name is for them: patterns
such as ``*`` mean clients that are known."""


class Role(enum.StrEnum):
    """A set of permissions. No role includes another one."""

    INFER = "infer"
    """Run single requests."""
    SUBMIT = "submit"
    """Submit and stream jobs; follow and cancel jobs of the tenants in scope."""
    OBSERVE = "observe"
    """Read engines, workers, statistics, metrics and the dictionary; follow jobs."""
    OPERATE = "operate"
    """Load, unload and push engines, place them on workers, and cancel jobs."""


class Grant(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the access table: roles, and where they apply.

    ``group:NAME`` in `to` means all members of a group. `tenants` come in addition to the caller's
    own.
    """

    to: tuple[str, ...]
    roles: frozenset[Role]
    engines: tuple[str, ...] = (ANY,)
    tenants: tuple[str, ...] = ()

    def is_for(self, name: str, groups: frozenset[str]) -> bool:
        if name == ANONYMOUS:
            return ANONYMOUS in self.to
        return any(
            pattern.removeprefix("group:") in groups
            if pattern.startswith("group:")
            else matches(pattern, name)
            for pattern in self.to
        )

    def to_subjects(self) -> tuple[str, ...]:
        """Return the patterns and groups that can be for a client with a JSON web token."""
        return tuple(
            to for to in self.to if to.startswith("group:") or _can_start_with(JWT_PREFIX, to)
        )


def _can_start_with(prefix: str, pattern: str) -> bool:
    """Return whether a name with this prefix may match; only the text before wildcards decides."""
    text = _WILDCARD.split(pattern, maxsplit=1)[0]
    return text.startswith(prefix) or (text != pattern and prefix.startswith(text))


def matches(pattern: str, name: str) -> bool:
    """Return whether `name` matches a shell-style pattern; case counts."""
    return pattern == ANY or _matcher(pattern)(name) is not None


def matches_any(patterns: tuple[str, ...], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)


@lru_cache(maxsize=4096)
def _matcher(pattern: str) -> Callable[[str], re.Match[str] | None]:
    return re.compile(translate(pattern)).match


class Caller:
    """An authenticated client, or an anonymous one.

    Streams keep their caller for as long as they are open. A change of the access table therefore
    changes the caller itself, by `update` or `revoke`.

    Args:
        expires_at: Unix time after which its credentials are invalid; None for never.
    """

    def __init__(
        self,
        name: str,
        tenant: str,
        grants: tuple[Grant, ...],
        *,
        max_priority: int = MAX_PRIORITY,
        expires_at: float | None = None,
        credential: str = "none",
    ) -> None:
        self._revoked = ""
        self.credential = credential
        self.name = name
        self.update(tenant, grants, max_priority=max_priority, expires_at=expires_at)

    def __repr__(self) -> str:
        return f"Caller({self.name!r}, tenant={self.tenant!r})"

    def update(
        self,
        tenant: str,
        grants: tuple[Grant, ...],
        *,
        max_priority: int = MAX_PRIORITY,
        expires_at: float | None = None,
    ) -> None:
        """Replace what the access table says about the caller; for the arguments see the class."""
        self.tenant = tenant
        self.max_priority = max_priority
        self.expires_at = expires_at
        self._set_grants(grants)

    def revoke(self, reason: str) -> None:
        """Make the caller's credentials invalid, for calls that are still open."""
        self._revoked = reason
        self._set_grants(())

    def _set_grants(self, grants: tuple[Grant, ...]) -> None:
        # In this order, and new decisions: the journal's thread may be deciding with the old ones.
        self._grants = grants
        self._decisions: dict[tuple[tuple[Role, ...], str | None, str | None], bool] = {}

    @property
    def anonymous(self) -> bool:
        """Whether it has no credentials."""
        return self.name == ANONYMOUS

    @property
    def has_grants(self) -> bool:
        """Whether it may do anything at all."""
        return any(grant.roles for grant in self._grants)

    def may(self, *roles: Role, engine: str | None = None, tenant: str | None = None) -> bool:
        """Return whether the caller has one of some roles, for an engine and a tenant.

        No engine stands for any, no tenant for the caller's own. Patterns do not tell versions
        apart. A stage is a part of its engine, and whoever may use the engine may use it.
        """
        decisions = self._decisions
        key = roles, engine, tenant
        decision = decisions.get(key)
        if decision is None:
            decision = self._decide(*key)
            if len(engine or "") + len(tenant or "") <= _MAX_REMEMBERED:
                if len(decisions) >= _MAX_DECISIONS:
                    decisions.clear()
                decisions[key] = decision
        return decision

    def _decide(self, roles: tuple[Role, ...], engine: str | None, tenant: str | None) -> bool:
        return any(
            not grant.roles.isdisjoint(roles)
            and (engine is None or matches_any(grant.engines, _pattern_name(engine)))
            and (tenant in (None, self.tenant) or matches_any(grant.tenants, tenant or ""))
            for grant in self._grants
        )

    def check_valid(self) -> None:
        if self._revoked:
            raise Unauthenticated(self._revoked)
        if self.expires_at is not None and time.time() >= self.expires_at:
            raise Unauthenticated(f"the credentials of {self.name!r} have expired; get new ones")

    def check(self, *roles: Role, engine: str | None = None, tenant: str | None = None) -> None:
        """Check that the caller has one of some roles; see `may`."""
        if self.expires_at is not None or self._revoked:
            self.check_valid()
        if self.may(*roles, engine=engine, tenant=tenant):
            return
        where = "" if engine in (None, "*") else f" for engine {engine!r}"
        if engine == "*":
            where = " for all engines"
        where += "" if tenant in (None, self.tenant) else f" in tenant {tenant!r}"
        needed = ", ".join(repr(role.value) for role in roles[:-1])
        needed += (" or " if needed else "") + repr(roles[-1].value)
        if self.anonymous:
            raise Unauthenticated(
                f"this call requires the role {needed}{where}: send credentials, such as a "
                "token in the header 'authorization: Bearer TOKEN', or in SYNERGAI_TOKEN"
            )
        raise PermissionDenied(
            f"{self.name!r} does not have the role {needed}{where}; the gateway's access table "
            "can grant it"
        )

    def tenant_of(self, requested: str, role: Role, *, engine: str) -> str:
        """Return the tenant of a request or job, which names one or means the caller's own."""
        tenant = requested or self.tenant
        self.check(role, engine=engine, tenant=tenant)
        return tenant

    def check_priority(self, priority: int) -> None:
        if priority > self.max_priority:
            raise PermissionDenied(
                f"priority {priority} exceeds the limit of {self.name!r}, which is "
                f"{self.max_priority}"
            )


def _pattern_name(engine: str) -> str:
    return split_version(engine_of_stage(engine))[0]


class _Unrestricted(Caller):
    """A caller that may do everything, without a look into the table."""

    def may(self, *_roles: Role, engine: str | None = None, tenant: str | None = None) -> bool:
        del engine, tenant
        return True

    def check(self, *_roles: Role, engine: str | None = None, tenant: str | None = None) -> None:
        """Accept the call."""


UNRESTRICTED: Final[Caller] = _Unrestricted(
    ANONYMOUS, "", (Grant(to=(ANONYMOUS,), roles=frozenset(Role), tenants=(ANY,)),)
)
"""Every caller, where no access table is configured."""

_caller: Final = ContextVar("caller", default=UNRESTRICTED)

current_caller: Final = _caller.get
"""Returns the caller of the current call."""


def bind_caller(caller: Caller) -> None:
    """Set the caller of the call that the current task handles, and of tasks that it starts."""
    _caller.set(caller)


READERS: Final = (Role.INFER, Role.SUBMIT, Role.OBSERVE)
"""Roles that may read an engine's metadata, which clients of these roles need."""


def is_visible(caller: Caller, engine: str) -> bool:
    return caller.may(*READERS, engine=engine)


def visible_engines(caller: Caller, engines: Iterable[EngineName]) -> list[EngineName]:
    """Return the engines that a caller may see, without stages, which are parts."""
    return [each for each in engines if not is_stage(each) and is_visible(caller, each)]


# A job outside a caller's scope is not found: its id reveals nothing.


def in_tenant(caller: Caller, spec: JobSpec) -> JobSpec:
    tenant = caller.tenant_of(spec.tenant, Role.SUBMIT, engine=spec.engine)
    return spec if tenant == spec.tenant else replace(spec, tenant=tenant)


def may_see(caller: Caller, engine: str, tenant: str) -> bool:
    """Return whether a caller may follow the jobs of an engine and tenant."""
    return caller.may(Role.SUBMIT, Role.OBSERVE, engine=engine, tenant=tenant)


def check_visible(caller: Caller, status: JobStatus) -> None:
    caller.check_valid()
    if not may_see(caller, status.spec.engine, status.spec.tenant):
        raise JobNotFound(status.id)


def check_cancel(caller: Caller, status: JobStatus) -> None:
    spec = status.spec
    if not caller.may(Role.SUBMIT, Role.OPERATE, engine=spec.engine, tenant=spec.tenant):
        check_visible(caller, status)
    caller.check(Role.SUBMIT, Role.OPERATE, engine=spec.engine, tenant=spec.tenant)

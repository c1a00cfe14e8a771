"""The caller of the current call, and what it may do.

The servers' authentication binds the caller to the context of the call's task. Servicers read it
with `current_caller` and pass it on explicitly: everything behind them takes it as an argument.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from gateway.access.roles import ANY, Grant, Role, matches_any
from synergai.domain import MAX_PRIORITY
from synergai.errors import PermissionDenied

_MAX_DECISIONS: Final = 1024
"""Decisions remembered per caller; clients choose the engine's name."""


class Caller:
    """An authenticated client, or an anonymous one.

    Args:
        name: name under which it is logged.
        tenant: its tenant; empty is the default tenant.
        grants: the rows of the access table that are for it.
        max_priority: highest priority that its requests and jobs may have.
    """

    __slots__ = ("_decisions", "_grants", "max_priority", "name", "tenant")

    def __init__(
        self,
        name: str,
        tenant: str,
        grants: tuple[Grant, ...],
        *,
        max_priority: int = MAX_PRIORITY,
    ) -> None:
        self.name = name
        self.tenant = tenant
        self.max_priority = max_priority
        self._grants = grants
        self._decisions: dict[tuple[Role, str | None, str | None], bool] = {}

    def __repr__(self) -> str:
        return f"Caller({self.name!r}, tenant={self.tenant!r})"

    def may(self, role: Role, *, engine: str | None = None, tenant: str | None = None) -> bool:
        """Return whether the caller has a role.

        Args:
            role: the role.
            engine: the engine concerned; None asks whether it has the role for any engine.
            tenant: the tenant concerned; None stands for the caller's own.
        """
        key = role, engine, tenant
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= _MAX_DECISIONS:
                self._decisions.clear()
            decision = self._decisions[key] = any(
                role in grant.roles
                and (engine is None or matches_any(grant.engines, engine))
                and (tenant in (None, self.tenant) or matches_any(grant.tenants, tenant or ""))
                for grant in self._grants
            )
        return decision

    def check(self, role: Role, *, engine: str | None = None, tenant: str | None = None) -> None:
        """Check that the caller has a role; see `may`.

        Raises:
            PermissionDenied: it has not.
        """
        if not self.may(role, engine=engine, tenant=tenant):
            where = "" if engine is None else f" for engine {engine!r}"
            where += "" if tenant in (None, self.tenant) else f" in tenant {tenant!r}"
            raise PermissionDenied(f"{self.name!r} does not have the role {role.value!r}{where}")

    def tenant_of(self, requested: str, role: Role, *, engine: str) -> str:
        """Return the tenant of a request or job.

        Args:
            requested: the tenant that it names; empty for the caller's own.
            role: the role that it needs.
            engine: its engine.

        Raises:
            PermissionDenied: the caller lacks the role for this engine and tenant.
        """
        tenant = requested or self.tenant
        self.check(role, engine=engine, tenant=tenant)
        return tenant

    def check_priority(self, priority: int) -> None:
        """Check the priority of a request or job.

        Raises:
            PermissionDenied: it exceeds the caller's limit.
        """
        if priority > self.max_priority:
            raise PermissionDenied(
                f"priority {priority} exceeds the limit of {self.name!r}, which is "
                f"{self.max_priority}"
            )


UNRESTRICTED: Final = Caller(
    "anonymous", "", (Grant(to=(ANY,), roles=frozenset(Role), tenants=(ANY,)),)
)
"""Every caller, where no access table is configured."""

_caller: Final = ContextVar("caller", default=UNRESTRICTED)


def current_caller() -> Caller:
    """Return the caller of the current call."""
    return _caller.get()


def bind_caller(caller: Caller) -> None:
    """Set the caller of the call that the current task handles, and of tasks that it starts."""
    _caller.set(caller)

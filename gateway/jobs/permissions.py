"""Permissions of callers for jobs.

A job outside a caller's scope is not found: its id reveals nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from gateway.entry.access.roles import Role
from synergai.errors import JobNotFound

if TYPE_CHECKING:
    from gateway.entry.access.caller import Caller
    from synergai.domain import JobSpec
    from synergai.jobs import JobStatus


def in_tenant(caller: Caller, spec: JobSpec) -> JobSpec:
    """Return a submitted specification with its tenant."""
    tenant = caller.tenant_of(spec.tenant, Role.SUBMIT, engine=spec.engine)
    return spec if tenant == spec.tenant else replace(spec, tenant=tenant)


def may_see(caller: Caller, engine: str, tenant: str) -> bool:
    """Return whether a caller may follow the jobs of an engine and tenant."""
    return caller.may(Role.SUBMIT, Role.OBSERVE, engine=engine, tenant=tenant)


def check_visible(caller: Caller, status: JobStatus) -> None:
    """Check that a caller may follow a job."""
    caller.check_valid()
    if not may_see(caller, status.spec.engine, status.spec.tenant):
        raise JobNotFound(status.id)


def check_cancel(caller: Caller, status: JobStatus) -> None:
    """Check that a caller may cancel a job."""
    spec = status.spec
    if not caller.may(Role.SUBMIT, Role.OPERATE, engine=spec.engine, tenant=spec.tenant):
        check_visible(caller, status)
    caller.check(Role.SUBMIT, Role.OPERATE, engine=spec.engine, tenant=spec.tenant)

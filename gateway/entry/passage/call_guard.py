"""Authentication, permission, quotas and audit of a call, whatever its transport."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from gateway.entry.access.caller import bind_caller, current_caller
from gateway.entry.access.methods import check_call
from gateway.entry.audit.calls import AuditedCall, bind_call

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from gateway.entry.access.authenticator import Authenticator
    from gateway.entry.access.methods import Permission
    from gateway.entry.access.peer_certificate import PeerCertificate
    from gateway.entry.admission.admission import Admission
    from gateway.entry.audit.log import AuditLog


class CallGuard:
    """What each call passes before its handler: `audit`, `admit` and `count`, in this order."""

    def __init__(
        self, authenticator: Authenticator | None, admission: Admission, log: AuditLog | None
    ) -> None:
        self._authenticator = authenticator
        self._admission = admission
        self._log = log

    @property
    def is_needed(self) -> bool:
        """Whether calls have anything to pass."""
        return self._authenticator is not None or self._log is not None

    def audit(self, name: str, peer: str) -> AuditedCall | None:
        """Return the current task's call for the audit log; None without one."""
        if self._log is None:
            return None
        call = AuditedCall(self._log, name, peer)
        bind_call(call)
        return call

    async def admit(
        self,
        permission: Permission | None,
        authorization: Sequence[str],
        certificate: PeerCertificate | None,
    ) -> None:
        """Authenticate the caller, bind it to the current task and check that it may call."""
        if self._authenticator is not None:
            caller = await self._authenticator.authenticate(authorization, certificate)
            bind_caller(caller)  # first: the audit log of a refusal has the caller
            check_call(permission, caller)

    def count(
        self, permission: Permission | None, peer: str, *, stream: bool = False
    ) -> AbstractContextManager[None]:
        """Return a context in which the call of the bound caller counts, unless it is public."""
        if self._authenticator is None or (permission is not None and permission.public):
            return nullcontext()
        return self._admission.call(current_caller().tenant, peer, stream=stream)

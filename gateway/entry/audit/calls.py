"""Calls that the audit log records, of gRPC and HTTP."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from gateway.entry.access.caller import current_caller
from gateway.entry.audit.log import Entry
from synergai.errors import PermissionDenied, QuotaExceeded, Unauthenticated
from synergai.wire.status import status_code

if TYPE_CHECKING:
    from gateway.entry.audit.log import AuditLog
    from synergai.errors import SynergaiError

REFUSALS: Final = (Unauthenticated, PermissionDenied, QuotaExceeded)
"""Errors of refused calls."""


class AuditedCall:
    """A call in progress.

    What it concerns is set once it is known; `worker` is empty if a client calls.
    """

    def __init__(self, audit: AuditLog, name: str, peer: str) -> None:
        self._audit = audit
        self.name = name
        self.peer = peer
        self.object = self.tenant = self.worker = ""
        self.credential = "none"
        self.refused = False

    def refuse(self, result: str, reason: str, quota: str = "") -> None:
        """Record that the call, or a message of its stream, was refused."""
        self.refused = True
        self._record(result, reason, quota, refused=True)

    def fail(self, error: SynergaiError, *, change: bool) -> None:
        """Record the error that ended the call, if the log wants it."""
        result = status_code(error).name
        if isinstance(error, REFUSALS):
            if not self.refused:
                self.refuse(result, str(error), getattr(error, "quota", ""))
        elif change:
            self.end(result)

    def end(self, result: str = "OK", reason: str = "") -> None:
        """Record the end of a call that changes something."""
        self._record(result, reason, "", refused=False)

    def _record(self, result: str, reason: str, quota: str, *, refused: bool) -> None:
        caller = current_caller()
        self._audit.record(
            Entry(
                caller=self.worker or caller.name,
                tenant=self.tenant or caller.tenant,
                credential=self.credential if self.worker else caller.credential,
                peer=self.peer,
                call=self.name,
                object=self.object,
                result=result,
                reason=reason,
                quota=quota,
                refused=refused,
            )
        )


_call: Final = ContextVar[AuditedCall | None]("call", default=None)


def bind_call(call: AuditedCall) -> None:
    """Set the call that the current task handles, and tasks that it starts."""
    _call.set(call)


def current_call() -> AuditedCall | None:
    """Return the call that the current task handles; None without an audit log."""
    return _call.get()


def record_refusal(error: SynergaiError, engine: str) -> None:
    """Record that a request for an engine was refused, which need not end the call."""
    call = current_call()
    if call is not None:
        call.object = engine
        call.refused = False
        call.fail(error, change=False)

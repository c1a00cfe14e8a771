"""Calls that the audit log records, of gRPC and HTTP."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import grpc

from gateway.entry.access.caller import current_caller
from gateway.entry.audit.log import Entry
from synergai.errors import (
    Cancelled,
    PermissionDenied,
    QuotaExceeded,
    SynergaiError,
    Unauthenticated,
    Unavailable,
)
from synergai.wire.rpc import Malformed, RawRequest
from synergai.wire.status import status_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.entry.audit.log import AuditLog

_HUB: Final = "/synergai.v1.Hub/Control"
_OIP: Final = "/inference.GRPCInferenceService"
_JOBS: Final = "/synergai.v1.Jobs"
REFUSALS: Final = (Unauthenticated, PermissionDenied, QuotaExceeded)
"""Errors of refused calls."""
_LOST: Final = (Cancelled, Unavailable)
"""Errors of connections with agents that were not refused."""


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

    def fail(self, error: SynergaiError, *, change: bool, is_refused: bool = False) -> None:
        """Record the error that ended the call, if the log wants it."""
        result = status_code(error).name
        if is_refused or isinstance(error, REFUSALS):
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


class GrpcRecord:
    """What the audit log has to say of a call: a change, or a refusal."""

    def __init__(self, call: AuditedCall, request: object) -> None:
        call.object = _object_of(request)
        self._call = call
        self._request = request
        self._changes = call.name in _CHANGES

    def on_response(self, response: Any) -> None:
        """Record a change at its first response."""
        if self._changes:
            self._changes = False
            if (describe := _CHANGES[self._call.name]) is not None:
                describe(self._call, self._request, response)
            self._call.end()

    def on_failure(self, failure: BaseException) -> None:
        """Record a refusal, or a change that failed."""
        cause = failure.__cause__ if isinstance(failure, grpc.aio.AbortError) else None
        # What else ends a call is that its client or the server has gone.
        error = cause if isinstance(cause, SynergaiError) else Cancelled("")
        is_refused = self._call.name == _HUB and not isinstance(error, _LOST)
        self._call.fail(error, change=self._changes, is_refused=is_refused)


def _object_of(request: object) -> str:
    message: Any = request.parsed.message if isinstance(request, RawRequest) else request
    if isinstance(message, Malformed):
        return ""
    for field in ("job_id", "model_name", "repository_name", "engine", "name"):
        if name := getattr(message, field, ""):
            return str(name)
    spec = getattr(message, "spec", None)
    return "" if spec is None else str(spec.engine)


def _describe_job(call: AuditedCall, _request: Any, job: Any) -> None:
    call.object, call.tenant = job.id, job.spec.tenant


def _describe_entries(call: AuditedCall, request: Any, _response: Any) -> None:
    call.object = ",".join(sorted({entry.engine for entry in request.entries}))


def _describe_policy(call: AuditedCall, _request: Any, policy: Any) -> None:
    """Name the version that requests get from now on, or a share of them."""
    version = policy.rollout.version or policy.base
    call.object = f"{policy.engine}/{version}" if version else policy.engine


def _describe_version(call: AuditedCall, request: Any, _response: Any) -> None:
    call.object = f"{request.engine}:{request.version}"


_CHANGES: Final[dict[str, Callable[[AuditedCall, Any, Any], None] | None]] = {
    f"{_JOBS}/Submit": _describe_job,
    f"{_JOBS}/Cancel": _describe_job,
    f"{_JOBS}/Upload": None,  # the service names the upload by the stream's first message
    f"{_OIP}/RepositoryModelLoad": None,  # the request names the engine
    f"{_OIP}/RepositoryModelUnload": None,
    "/synergai.v1.Fleet/PutDictionary": _describe_entries,
    "/synergai.v1.Fleet/ForgetEngine": None,
    "/synergai.v1.Store/Publish": _describe_version,
    "/synergai.v1.Store/Place": _describe_version,
    "/synergai.v1.Store/Remove": _describe_version,
    "/synergai.v1.Fleet/SetVersionPolicy": _describe_policy,
}
"""Calls that change something, and what sets their object and tenant, if that is known later."""

"""The audit log: calls of gRPC and HTTP that change something or are refused, as lines of a file.

Changes are written one by one, refusals at most once a second for each peer and kind, so that a
flood of them cannot fill the disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import threading
import time
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from gateway.entry.access.caller import current_caller
from synergai.errors import (
    Cancelled,
    InvalidInput,
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
    from pathlib import Path

    _Kind: TypeAlias = tuple[str, ...]

INTERVAL_S: Final = 1.0
"""Interval at which repeated refusals are written."""
MAX_KINDS: Final = 64
"""Kinds of refusals, by peer, that have lines of their own in an interval."""
_OTHERS: Final = "others"
"""Peer and caller of the refusals beyond them."""
MAX_TEXT: Final = 256
"""Longest value in characters; clients choose some of them."""
_TEXTS: Final = ("caller", "tenant", "credential", "peer", "call", "object", "result", "reason")
"""Fields of a line, in its order."""

_MAX_QUEUED: Final = 8192
"""Lines that wait for the disk."""
_MAX_BATCH: Final = 256
_CLOSE_WITHIN_S: Final = 5.0
_HUB: Final = "/synergai.v1.Hub/Control"
_OIP: Final = "/inference.GRPCInferenceService"
_JOBS: Final = "/synergai.v1.Jobs"
REFUSALS: Final = (Unauthenticated, PermissionDenied, QuotaExceeded)
"""Errors of refused calls."""
_LOST: Final = (Cancelled, Unavailable)
"""Errors of connections with agents that were not refused."""

_log = logging.getLogger(__name__)


class Entry(Struct, frozen=True, kw_only=True):
    """One line of the log. Values never contain tensors, tokens or secrets, and are cut.

    Attributes:
        credential: how the caller authenticated: ``token``, ``jwt``, ``certificate`` or ``none``.
        result: name of the gRPC status code.
        refused: whether it was refused for want of permission or quota.
    """

    caller: str
    tenant: str = ""
    credential: str = "none"
    peer: str
    call: str
    object: str = ""
    result: str = "OK"
    reason: str = ""
    quota: str = ""
    refused: bool = False

    def __post_init__(self) -> None:
        # Here rather than in the line: refusals are kept for a while, and a name may be as long
        # as a message.
        for name in _TEXTS:
            if len(text := getattr(self, name)) > MAX_TEXT:
                force_setattr(self, name, text[:MAX_TEXT])


def to_line(entry: Entry, unix_time: float, count: int = 1) -> str:
    at = datetime.fromtimestamp(unix_time, UTC).isoformat(timespec="milliseconds")
    texts = {name: getattr(entry, name) for name in _TEXTS}
    content = {"time": at.replace("+00:00", "Z"), **texts, "count": count}
    return json.dumps(content, separators=(",", ":")) + "\n"


class _Burst:
    """Refusals of one kind since the last line about them."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry
        self.at = 0.0
        self.count = 0


class AuditLog:
    """Record of changes and refusals; `append` writes a line, without blocking."""

    def __init__(
        self,
        append: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] | None = None,
    ) -> None:
        self._append = append
        self._clock = clock
        self._call_later = call_later or asyncio.get_running_loop().call_later
        self._bursts: dict[_Kind, _Burst] = {}
        self._timer: asyncio.TimerHandle | None = None

    def record(self, entry: Entry) -> None:
        now = self._clock()
        if not entry.refused:
            self._append(to_line(entry, now))
            return
        kind = _kind(entry)
        burst = self._bursts.get(kind)
        if burst is None and len(self._bursts) >= MAX_KINDS:
            entry = replace(entry, caller=_OTHERS, peer=_OTHERS, tenant="", object="")
            kind = (_OTHERS, entry.result)
            burst = self._bursts.get(kind)
        if burst is None:
            self._bursts[kind] = _Burst(entry)
            self._append(to_line(entry, now))
            if self._timer is None:
                self._timer = self._call_later(INTERVAL_S, self.flush)
            return
        burst.entry = entry
        burst.at = now
        burst.count += 1

    def close(self) -> None:
        """Write the refusals that have only been counted."""
        self.flush()
        if self._timer is not None:
            self._timer.cancel()

    def flush(self) -> None:
        """Write the repeated refusals; forget the kinds that were not repeated."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        for kind, burst in list(self._bursts.items()):
            if not burst.count:
                del self._bursts[kind]
                continue
            self._append(to_line(burst.entry, burst.at, burst.count))
            burst.count = 0
        if self._bursts:
            self._timer = self._call_later(INTERVAL_S, self.flush)


def _kind(entry: Entry) -> _Kind:
    """Return what repeated refusals have in common; a peer may use many ports."""
    host = entry.peer.rpartition(":")[0]
    return host, entry.caller, entry.call, entry.result, entry.quota


class AuditFile:
    """A file that lines are appended to.

    It is opened again if another file, or none, is at its path, so that it can be rotated. Lines
    that cannot be written are dropped.
    """

    def __init__(self, path: Path, *, max_queued: int = _MAX_QUEUED) -> None:
        self.path = path
        self._queue: queue.Queue[str | None] = queue.Queue(max_queued)
        self._not_queued = self._not_written = 0
        self._failing = self._torn = False
        try:
            self._descriptor = _open(path)
        except OSError as error:
            raise InvalidInput(f"audit log {path} cannot be opened: {error.strerror}") from None
        self._thread = threading.Thread(target=self._run, name="audit log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        # Two counters, since two threads count.
        return self._not_queued + self._not_written

    def append(self, line: str) -> None:
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._not_queued += 1

    def close(self) -> None:
        """Write the queued lines and close the file; give up on a disk that hangs. It blocks."""
        try:
            self._queue.put(None, timeout=_CLOSE_WITHIN_S)
        except queue.Full:
            return
        self._thread.join(_CLOSE_WITHIN_S)

    # --- writer thread ------------------------------------------------------------------------

    def _run(self) -> None:
        closing = False
        while not closing:
            lines: list[str] = []
            line = self._queue.get()
            while line is not None:
                lines.append(line)
                if len(lines) == _MAX_BATCH or self._queue.empty():
                    break
                line = self._queue.get_nowait()
            closing = line is None
            if lines:
                self._write(lines)
        os.close(self._descriptor)

    def _write(self, lines: list[str]) -> None:
        try:
            self._reopen_if_moved()
            # A line that a full disk has cut short stays one invalid line.
            data = (("\n" if self._torn else "") + "".join(lines)).encode("ascii")
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._fail(len(lines), error.strerror)
            return
        if written < len(data):
            self._torn = True
            self._fail(data[written:].count(b"\n"), "the disk is full")
            return
        self._torn = False
        if self._failing:
            self._failing = False
            _log.warning("the audit log %s is written again", self.path)

    def _fail(self, count: int, reason: str | None) -> None:
        self._not_written += count
        if not self._failing:
            self._failing = True
            _log.error("the audit log %s cannot be written: %s", self.path, reason)

    def _reopen_if_moved(self) -> None:
        ours = os.fstat(self._descriptor)
        try:
            current = self.path.stat()
        except FileNotFoundError:
            pass
        else:
            if (current.st_dev, current.st_ino) == (ours.st_dev, ours.st_ino):
                return
        moved, self._descriptor = self._descriptor, _open(self.path)
        self._torn = False
        with suppress(OSError):  # of a file server; it concerns what the moved file lacks
            os.close(moved)


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


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

    def end(self, result: str = "OK") -> None:
        """Record the end of a call that changes something."""
        self._record(result, "", "", refused=False)

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
    "/synergai.v1.Fleet/ForgetEngine": None,
    "/synergai.v1.Store/Publish": _describe_version,
    "/synergai.v1.Store/Place": _describe_version,
    "/synergai.v1.Store/Remove": _describe_version,
    "/synergai.v1.Fleet/SetVersionPolicy": _describe_policy,
}
"""Calls that change something, and what sets their object and tenant, if that is known later."""

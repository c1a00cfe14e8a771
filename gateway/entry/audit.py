"""The audit log: calls of gRPC and HTTP that change something or are refused, as lines of a file.

Changes are written one by one. Refusals are counted by peer and kind and written once a second,
so that a flood of them cannot fill the disk.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import queue
import sys
import time
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from logging.handlers import QueueListener, WatchedFileHandler
from typing import TYPE_CHECKING, Any, Final

import grpc
from msgspec import Struct
from msgspec.structs import asdict

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
    from io import TextIOWrapper
    from pathlib import Path

INTERVAL_S: Final = 1.0
"""Interval at which refusals are written."""
MAX_KINDS: Final = 64
"""Kinds of refusals, by peer, that have lines of their own in an interval."""
_OTHERS: Final = "others"
"""Peer and caller of the refusals beyond them."""
MAX_TEXT: Final = 256
"""Longest value in characters; clients choose some of them."""

_MAX_QUEUED: Final = 8192
"""Lines that wait for the disk."""
_HUB: Final = "/synergai.v1.Hub/Control"
_OIP: Final = "/inference.GRPCInferenceService"
_JOBS: Final = "/synergai.v1.Jobs"
REFUSALS: Final = (Unauthenticated, PermissionDenied, QuotaExceeded)
"""Errors of refused calls."""
_LOST: Final = (Cancelled, Unavailable)
"""Errors of connections with agents that were not refused."""

_log = logging.getLogger(__name__)


class Entry(Struct, kw_only=True):
    """One line of the log, in its order. Values have no tensors, tokens or secrets, and are cut.

    Attributes:
        credential: how the caller authenticated: ``token``, ``jwt``, ``certificate`` or ``none``.
        result: name of the gRPC status code.
    """

    time: str = ""
    caller: str
    tenant: str = ""
    credential: str = "none"
    peer: str
    call: str
    object: str = ""
    result: str = "OK"
    reason: str = ""
    count: int = 1

    def __post_init__(self) -> None:
        # Here rather than in the line: refusals are kept for a while, and a name may be as long
        # as a message.
        for name, value in asdict(self).items():
            if isinstance(value, str) and len(value) > MAX_TEXT:
                setattr(self, name, value[:MAX_TEXT])


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
        self._refusals: dict[tuple[str, ...], Entry] = {}
        self._timer: asyncio.TimerHandle | None = None

    def record_change(self, entry: Entry) -> None:
        entry.time = self._now()
        self._write(entry)

    def record_refusal(self, entry: Entry) -> None:
        # Without the port: a peer may use many.
        kind: tuple[str, ...] = (
            entry.peer.rpartition(":")[0],
            entry.caller,
            entry.call,
            entry.result,
        )
        if kind not in self._refusals and len(self._refusals) >= MAX_KINDS:
            entry.caller = entry.peer = _OTHERS
            entry.tenant = entry.object = ""
            kind = (_OTHERS, entry.result)
        entry.time = self._now()
        if (previous := self._refusals.get(kind)) is not None:
            entry.count += previous.count
        self._refusals[kind] = entry
        if self._timer is None:
            self._timer = self._call_later(INTERVAL_S, self.flush)

    def flush(self) -> None:
        """Write the refusals that have been counted."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        for entry in self._refusals.values():
            self._write(entry)
        self._refusals.clear()

    def _now(self) -> str:
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        return at.replace("+00:00", "Z")

    def _write(self, entry: Entry) -> None:
        self._append(json.dumps(asdict(entry), separators=(",", ":")))


class AuditFile:
    """A file that lines are appended to, by a thread of its own.

    Lines that cannot be written count as dropped, even if some are written once the disk has
    space again.
    """

    def __init__(self, path: Path, *, max_queued: int = _MAX_QUEUED) -> None:
        self._not_queued = 0
        self._queue: queue.Queue[logging.LogRecord | None] = queue.Queue(max_queued)
        try:
            self._file = _PrivateFile(path)
        except OSError as error:
            raise InvalidInput(f"audit log {path} cannot be opened: {error.strerror}") from None
        self._writer = QueueListener(self._queue, self._file)
        self._writer.start()

    @property
    def dropped(self) -> int:
        # Two counters, since two threads count.
        return self._not_queued + self._file.not_written

    def append(self, line: str) -> None:
        try:
            self._queue.put_nowait(logging.makeLogRecord({"msg": line}))
        except queue.Full:
            self._not_queued += 1

    def close(self) -> None:
        """Write the queued lines and close the file. It blocks."""
        self._queue.join()
        self._writer.stop()
        with suppress(OSError):  # of a full disk, which has been logged
            self._file.close()


class _PrivateFile(WatchedFileHandler):
    """A file for its owner, opened again if another one, or none, is at its path."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.not_written = 0
        self._failing = False

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="ascii", opener=_open_private)

    def emit(self, record: logging.LogRecord) -> None:
        lost = self.not_written
        try:
            super().emit(record)
        except OSError:  # of a file that was moved; the next line opens the new one
            self.handleError(record)
            with suppress(OSError, ValueError):  # it may be closed already
                self.close()
        if self._failing and self.not_written == lost:
            self._failing = False
            _log.warning("the audit log %s is written again", self.baseFilename)

    def handleError(self, _record: logging.LogRecord) -> None:  # noqa: N802 - of the base
        self.not_written += 1
        if not self._failing:
            self._failing = True
            error = sys.exc_info()[1]
            _log.error("the audit log %s cannot be written: %s", self.baseFilename, error)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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

    def refuse(self, result: str, reason: str) -> None:
        """Record that the call, or a message of its stream, was refused."""
        self.refused = True
        self._audit.record_refusal(self._entry(result, reason))

    def fail(self, error: SynergaiError, *, change: bool, is_refused: bool = False) -> None:
        """Record the error that ended the call, if the log wants it."""
        result = status_code(error).name
        if is_refused or isinstance(error, REFUSALS):
            if not self.refused:
                self.refuse(result, str(error))
        elif change:
            self.end(result)

    def end(self, result: str = "OK") -> None:
        """Record the end of a call that changes something."""
        self._audit.record_change(self._entry(result))

    def _entry(self, result: str, reason: str = "") -> Entry:
        caller = current_caller()
        return Entry(
            caller=self.worker or caller.name,
            tenant=self.tenant or caller.tenant,
            credential=self.credential if self.worker else caller.credential,
            peer=self.peer,
            call=self.name,
            object=self.object,
            result=result,
            reason=reason,
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

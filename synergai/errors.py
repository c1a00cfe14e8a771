"""Exceptions of the domain.

They know no transport: ``synergai.wire.status`` maps each class to a gRPC code, and the command
line prints the message. A message states what is wrong, where, and what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAMED: Final = 5
"""Known engines that an error names."""
_QUOTED: Final = 40
"""Characters of an invalid version that an error quotes; it may be as long as a message."""


class SynergaiError(Exception):
    """Base class of all errors that this project raises deliberately.

    Attributes:
        request_id: the request that failed with it, for ``synergai explain``; empty if unknown.
    """

    request_id = ""


class InvalidInput(SynergaiError, ValueError):
    """The caller's input is invalid; retrying cannot help."""


class InvalidSettings(InvalidInput):
    """An option, environment variable or key of a settings file is invalid."""


class NotFound(SynergaiError):
    """The named object does not exist."""


class EngineNotFound(NotFound):
    """No worker has an engine of this name."""

    def __init__(self, engine: str, similar: Sequence[str] = (), known: Sequence[str] = ()) -> None:
        hint = ""
        if similar:
            hint = f"; did you mean {' or '.join(map(repr, similar))}?"
        elif known:
            more = ", …" if len(known) > _NAMED else ""
            hint = f"; there are {', '.join(map(repr, known[:_NAMED]))}{more}"
        # The beginning is Triton's text, which programs written for its server look for.
        super().__init__(f"Request for unknown model: no worker serves engine {engine!r}{hint}")
        self.engine = engine


class VersionNotFound(NotFound):
    """No worker has this version of an engine."""

    def __init__(self, engine: str, version: str, versions: Sequence[str]) -> None:
        super().__init__(
            f"engine {engine!r} has no version {version[:_QUOTED]!r}; it has {', '.join(versions)}"
        )
        self.engine = engine
        self.version = version


class JobNotFound(NotFound):
    """The gateway has no job with this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}")
        self.job_id = job_id


class UploadNotFound(NotFound):
    """The tenant has no upload with this id."""

    def __init__(self, upload_id: str) -> None:
        super().__init__(
            f"there is no upload {upload_id!r}; it may have expired: upload the inputs again"
        )
        self.upload_id = upload_id


class WrongState(SynergaiError):
    """The object exists, but not in a state in which this can be done; retrying cannot help."""


class UploadUsed(WrongState):
    """An upload can be used by one job, and has been; without an id, one is just being accepted."""

    def __init__(self, upload_id: str, job_id: str = "") -> None:
        super().__init__(
            f"upload {upload_id!r} was used by {f'job {job_id}' if job_id else 'a job'}; upload "
            "the inputs again under a new id"
        )
        self.upload_id = upload_id
        self.job_id = job_id


class Conflict(SynergaiError):
    """The object to create already exists with different content."""


class IdempotencyConflict(Conflict):
    """The idempotency key was already used with another engine, other inputs or other options."""

    def __init__(self, key: str, differing: Sequence[str]) -> None:
        super().__init__(
            f"idempotency key {key!r} was already used for a job with other values of "
            f"{', '.join(differing)}; use a new key"
        )
        self.key = key


class EngineUnusable(SynergaiError):
    """The engine exists but cannot be loaded or run."""


class ConfigurationUnusable(EngineUnusable):
    """The engine cannot be run in one configuration; others of it may work."""


class BackendMissing(EngineUnusable):
    """The inference runtime that the engine needs is not installed."""


class EngineUnloaded(EngineUnusable):
    """The engine was unloaded on request."""

    def __init__(self, engine: str) -> None:
        super().__init__(
            f"engine {engine!r} is unloaded; load it first "
            f"(RepositoryModelLoad, or synergai engines load {engine})"
        )
        self.engine = engine


class DeadlineExceeded(SynergaiError):
    """The deadline passed before the work was done."""


class Cancelled(SynergaiError):
    """The work was cancelled."""


class Overloaded(SynergaiError):
    """The work was shed: a queue is full, or no worker can meet the deadline."""


class Infeasible(Overloaded):
    """No worker is expected to answer the request before its deadline.

    Args:
        expected_s: seconds after which it would be answered.
        least_s: seconds that the fastest worker takes when it is idle.
        budget_s: seconds until the deadline.
    """

    def __init__(self, engine: str, expected_s: float, least_s: float, budget_s: float) -> None:
        advice = "allow more time, or try later"
        if least_s > budget_s:
            advice = f"allow at least {least_s:.2g} s, since no worker is faster"
        super().__init__(
            f"a response of engine {engine!r} would take about {expected_s:.2g} s now, but the "
            f"deadline is in {budget_s:.2g} s: {advice}"
        )


class MessageTooLarge(Overloaded):
    """A message exceeds the size limit; unlike other overload, it will again."""


class QuotaExceeded(Overloaded):
    """A tenant has used up one of its quotas.

    Args:
        retry_after_s: seconds after which there is room again; None if that is unknown.
        asked: what the call asks for, if that alone exceeds the limit.
    """

    def __init__(
        self,
        tenant: str,
        quota: str,
        limit: float,
        retry_after_s: float | None = None,
        *,
        asked: int | None = None,
    ) -> None:
        name, value = repr(tenant or "default"), f"{quota} = {limit:,.12g}"
        later = "later" if retry_after_s is None else f"in {max(retry_after_s, 0.001):.3g} s"
        super().__init__(
            f"tenant {name} has used up its quota {value}; try again {later}"
            if asked is None
            else f"{asked:,} exceeds the quota {value} of tenant {name}; trying again does not help"
        )
        self.tenant = tenant
        self.quota = quota
        self.retry_after_s = retry_after_s


class Unavailable(SynergaiError):
    """No server or worker is available; retrying may help."""


class TensorsLost(Unavailable):
    """The outputs of a stage are no longer where they were: the stage has to run again."""


class OutOfMemory(Unavailable):
    """The memory that the engine needs, of the machine or an accelerator, is not free now."""


class EnginePending(Unavailable):
    """The engine is still being inspected by the workers that have it."""

    def __init__(self, engine: str) -> None:
        super().__init__(f"engine {engine!r} is still being inspected; retry in a moment")
        self.engine = engine


class EngineUnserved(EnginePending):
    """No connected worker serves the engine, and requests wait until one does."""

    def __init__(self, engine: str) -> None:
        Unavailable.__init__(self, f"no worker that serves engine {engine!r} is connected")
        self.engine = engine


class Unauthenticated(SynergaiError):
    """The caller's credentials are missing, unknown, expired or revoked."""


class PermissionDenied(SynergaiError):
    """The caller is known but not allowed to do this."""


class NotSupported(SynergaiError):
    """The operation is part of the protocol but not implemented."""


class InternalError(SynergaiError):
    """A bug or a failure of the server; the log has the details."""

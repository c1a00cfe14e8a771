"""What can go wrong, in the words of the domain.

Errors know no transport: ``synergai.protocol.status`` maps each class to a gRPC code, and the
command line prints the message as it is. A message says what was wrong, where, and what to do.
"""

from __future__ import annotations


class SynergaiError(Exception):
    """Base of everything that this project raises on purpose."""


class InvalidInput(SynergaiError, ValueError):
    """The caller's data cannot be right, now or later."""


class InvalidSettings(InvalidInput):
    """An option, variable or key of a file is wrong; the message says which, and why."""


class NotFound(SynergaiError):
    """What the caller names is not here."""


class EngineNotFound(NotFound):
    """No worker has an engine of this name."""

    def __init__(self, engine: str) -> None:
        super().__init__(f"no worker serves engine {engine!r}")
        self.engine = engine


class JobNotFound(NotFound):
    """The gateway knows no job of this id."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}")
        self.job_id = job_id


class Conflict(SynergaiError):
    """What the caller wants to create exists, and is something else."""


class IdempotencyConflict(Conflict):
    """The idempotency key was used before, for other work."""

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} was used before with another specification")
        self.key = key


class EngineUnusable(SynergaiError):
    """The engine is present, but cannot be loaded or run."""


class EngineUnloaded(EngineUnusable):
    """The engine was taken out of service on somebody's word."""

    def __init__(self, engine: str) -> None:
        super().__init__(
            f"engine {engine!r} is unloaded; load it first "
            f"(RepositoryModelLoad, or synergai engines load {engine})"
        )
        self.engine = engine


class DeadlineExceeded(SynergaiError):
    """The work was not done in time."""


class Cancelled(SynergaiError):
    """The work was called off."""


class Overloaded(SynergaiError):
    """The work was shed: a queue is full, or nobody can finish it in time."""


class Unavailable(SynergaiError):
    """Nobody is there to do the work just now; trying again may help."""


class NotSupported(SynergaiError):
    """A part of the protocol that is not offered here."""


class InternalFault(SynergaiError):
    """A fault of our own; the log has the detail."""

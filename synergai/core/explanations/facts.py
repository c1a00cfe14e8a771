"""What the scheduling core knows about the time that a request or job took.

Times are seconds, and instants are seconds after the arrival. Absent values are unknown.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

End: TypeAlias = Literal["running", "completed", "failed", "stopped", "yielded", "left", "revoked"]
"""How an assignment ended: `stopped` for more urgent work, or because its job ended; `yielded` to a
request; its worker `left`, or its queries were taken back (`revoked`) from it."""

Obstacle: TypeAlias = Literal[
    "",
    "engine",
    "version",
    "variant",
    "draining",
    "ejected",
    "paused",
    "unprofiled",
    "slow",
    "loading",
    "mode switch",
    "busy",
    "left",
]
"""Why a worker was not acceptable; empty if it was."""

Cause: TypeAlias = Literal[
    "on time",
    "busy",
    "preempted",
    "crash",
    "worker left",
    "unresponsive",
    "loading",
    "mode switch",
    "estimate",
    "slow",
    "version",
    "no worker",
    "impossible",
    "quota",
    "refused",
]
"""What most of the delay is due to, or why the request was refused."""


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An assignment of some of the queries to a worker.

    Attributes:
        done: how many of the queries were answered.
        given_s: when it was assigned.
        began_s: when the worker had nothing else ahead of it.
        setup_s: time to load the engine and to switch the power mode, as far as it was measured,
            or as estimated.
        switched_to: the power mode that the worker switched to for it.
        estimated_s: estimate at `given_s` of the time to the end, with the work ahead of it.
        detail: reason of a failure.
    """

    worker: str
    configuration: str
    queries: int
    done: int
    given_s: float
    began_s: float | None = None
    ended_s: float | None = None
    end: End = "running"
    setup_s: float = 0.0
    switched_to: str = ""
    estimated_s: float | None = None
    detail: str = ""


class Ahead(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Other work that a worker computed while the request or job waited.

    Attributes:
        job: id of the job; empty for requests; consecutive ones are one entry.
        queries: how many were answered, also before and after the wait.
        seconds: for how long it ran during the wait.
        earlier_s: by how much its deadline is earlier; absent without both deadlines.
    """

    worker: str
    engine: str
    job: str = ""
    tenant: str = ""
    queries: int
    seconds: float
    earlier_s: float | None = None


class Verdict(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Whether a worker was acceptable for the whole request or job.

    Attributes:
        needed_s: time from its start to its end, with `setup_s`.
        too_many_s: by how much that is too long.
        seconds: for how long a `busy` worker is or was, a pause still lasts, or after what time the
            worker left.
        detail: the versions that it has instead.
    """

    worker: str
    obstacle: Obstacle = ""
    needed_s: float | None = None
    setup_s: float = 0.0
    too_many_s: float | None = None
    seconds: float | None = None
    detail: str = ""


class Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where the time of a request or job went.

    Attributes:
        state: `queued`, `running`, or how it ended.
        reason: why it was refused or failed.
        budget_s: time from the arrival to the deadline.
        total_s: time from the arrival to the end, or until now.
        waited_s: time in which no worker worked on it.
        held_s: time until its next retry.
        runs: its assignments, the first and the newest ones.
        ahead: what ran instead, the longest first.
        workers: verdicts on workers, those that have the engine first.
        has_details: whether `ahead` and `workers` were recorded.
        cause: what most of the delay is due to, or why it was refused.
        stages: the same of each stage of a job that ran in several, which have all its runs.
    """

    id: str
    client_id: str = ""
    engine: str
    tenant: str = ""
    queries: int
    state: str
    reason: str = ""
    refusal: Cause | None = None
    budget_s: float | None = None
    total_s: float
    waited_s: float = 0.0
    held_s: float = 0.0
    runs: tuple[Run, ...] = ()
    ahead: tuple[Ahead, ...] = ()
    workers: tuple[Verdict, ...] = ()
    has_details: bool = True
    cause: Cause | None = None
    sentences: tuple[str, ...] = ()
    stages: tuple[Explanation, ...] = ()

    @property
    def name(self) -> str:
        """Its ids."""
        return f"{self.id} ({self.client_id})" if self.client_id else self.id

    @property
    def late_s(self) -> float:
        """By how much it exceeded its deadline so far; 0 if it did not, or has none."""
        return 0.0 if self.budget_s is None else max(0.0, self.total_s - self.budget_s)

    @property
    def has_ended(self) -> bool:
        """Whether it will not run again."""
        return self.state not in ("queued", "running")

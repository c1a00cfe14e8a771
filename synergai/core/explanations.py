"""Why a request or job is late, refused or waits: the facts, and sentences on them.

Times are seconds, and instants are seconds after the arrival. Absent values are unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

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

_NAMED: Final = 3
"""How many pieces of work ahead, and workers without the engine, are named."""
_NOTABLE: Final = 0.05
"""Share of the whole time from which on a part of it is worth a sentence."""
_SHORTEST_S: Final = 0.001
_ENDS: Final[dict[End, str]] = {
    "failed": "It failed on {worker} after {after}{detail}.",
    "left": "{worker} left after {after}.",
    "revoked": "It was taken back from {worker} after {after}, which had crashed or hung.",
    "stopped": "It made way for more urgent work on {worker} after {after}.",
    "yielded": "It yielded to a request on {worker} after {after}.",
}


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
        starved_s: how long the stage had no queries to run before it.
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
    starved_s: float = 0.0


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
        waited_s: time in which no worker worked on it, although it had queries to run.
        starved_s: time in which a stage had none: they had not been read, or were in other stages.
        held_s: time until its next retry.
        runs: its assignments, the first and the newest ones.
        ahead: what ran instead, the longest first.
        workers: verdicts on workers, those that have the engine first.
        has_details: whether `ahead` and `workers` were recorded.
        stages: the same of each stage of a job that ran in several, which have all its runs.
    """

    id: str
    client_id: str = ""
    engine: str
    tenant: str = ""
    queries: int
    state: str
    reason: str = ""
    budget_s: float | None = None
    total_s: float
    waited_s: float = 0.0
    starved_s: float = 0.0
    held_s: float = 0.0
    runs: tuple[Run, ...] = ()
    ahead: tuple[Ahead, ...] = ()
    workers: tuple[Verdict, ...] = ()
    has_details: bool = True
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


def duration(seconds: float) -> str:
    """Return a duration with its unit."""
    if seconds < 1:
        return f"{seconds * 1e3:.{0 if seconds >= 0.01 else 1}f} ms"
    if seconds < 120:
        return f"{seconds:.{1 if seconds < 10 else 0}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def worded(facts: Explanation) -> Explanation:
    """Return an explanation with its sentences."""
    return replace(facts, sentences=tuple(sentences(facts)))


def sentences(facts: Explanation) -> list[str]:
    """Return an explanation in sentences: what happened, then what led to it."""
    found = [_outcome(facts), *_waits(facts), *_runs(facts)]
    if not facts.has_details:
        found.append("So much was late at that time that nothing else was recorded.")
    if facts.workers:
        found.extend(_verdicts(facts))
    return found


def _outcome(facts: Explanation) -> str:
    took = duration(facts.total_s)
    if facts.state == "rejected":
        return f"Refused: {facts.reason}."
    if facts.state == "failed":
        return f"Failed after {took}: {facts.reason}."
    if facts.state == "cancelled":
        return f"Cancelled after {took}."
    if facts.state == "expired":
        return f"It was not done by its deadline, {took} after it arrived."
    if facts.budget_s is None:
        verb = f"It took {took}" if facts.has_ended else f"It arrived {took} ago"
        return f"{verb}. It has no deadline."
    budget, late = duration(facts.budget_s), duration(facts.late_s)
    if facts.has_ended and not facts.late_s:
        return f"In time: it took {took}, and had {budget}."
    if facts.has_ended:
        return f"Late by {late}: it took {took}, and had {budget}."
    if facts.late_s:
        return f"Late by {late} so far: it arrived {took} ago, and had {budget}."
    left = duration(facts.budget_s - facts.total_s)
    return f"It arrived {took} ago. Its deadline is in {left}."


def _waits(facts: Explanation) -> Iterator[str]:
    if facts.held_s:
        yield f"It pauses for {duration(facts.held_s)} after its last failure."
    notable_s = max(_NOTABLE * facts.total_s, _SHORTEST_S)
    if facts.starved_s >= notable_s:
        yield f"Had nothing to run for {duration(facts.starved_s)}: its inputs came later."
    if facts.waited_s < notable_s:
        return
    waited = duration(facts.waited_s)
    if not facts.ahead:
        yield f"Waited {waited}."
        return
    first, *others = facts.ahead[:_NAMED]
    yield f"Waited {waited} for {first.worker}, which ran {_work(first)}."
    for each in others:
        yield f"{each.worker} ran {_work(each)}."


def _work(ahead: Ahead) -> str:
    if ahead.job:
        text = f"{counted(ahead.queries, 'query')} of job {ahead.job}"
    else:
        text = counted(ahead.queries, "request") if ahead.engine else "other work"
        text += f" of {ahead.engine}" if ahead.engine else ""
    text += f" for {duration(ahead.seconds)}"
    if ahead.earlier_s is None:
        return text
    if abs(ahead.earlier_s) < _SHORTEST_S:
        return f"{text} (same deadline)"
    size, side = duration(abs(ahead.earlier_s)), "earlier" if ahead.earlier_s > 0 else "later"
    return f"{text} (deadline {size} {side})"


def _runs(facts: Explanation) -> Iterator[str]:
    for run in facts.runs:
        until_s = facts.total_s if run.ended_s is None else run.ended_s
        began_s = run.given_s if run.began_s is None else run.began_s
        if run.end in _ENDS and run.done < run.queries:
            yield _ENDS[run.end].format(
                worker=run.worker,
                after=duration(until_s - began_s),
                detail=f": {run.detail}" if run.detail not in ("", facts.reason) else "",
            )
        if run.setup_s and run.setup_s >= _NOTABLE * facts.total_s:
            switch = f"to switch to mode {run.switched_to} and " if run.switched_to else ""
            yield f"{run.worker} needed {duration(run.setup_s)} {switch}to load {facts.engine}."
        yield from _estimate(run, facts, until_s - run.given_s)


def _estimate(run: Run, facts: Explanation, took_s: float) -> Iterator[str]:
    if run.estimated_s is None or run.end not in ("running", "completed"):
        return
    if took_s - run.estimated_s >= _NOTABLE * facts.total_s:
        verb = "took" if run.end == "completed" else "has taken"
        estimated = duration(run.estimated_s)
        yield f"{run.worker} {verb} {duration(took_s)}; {estimated} were estimated."


def _verdicts(facts: Explanation) -> Iterator[str]:
    without = [verdict.worker for verdict in facts.workers if verdict.obstacle == "engine"]
    for verdict in facts.workers:
        if verdict.obstacle not in ("", "engine"):
            yield f"{verdict.worker} {_verdict(verdict, facts)}."
    if len(without) == len(facts.workers):
        yield f"No worker has {facts.engine}."
    elif without:
        names = ", ".join(without[:_NAMED]) + (" and others" if len(without) > _NAMED else "")
        yield f"These workers do not have {facts.engine}: {names}."


def _verdict(verdict: Verdict, facts: Explanation) -> str:
    seconds = duration(verdict.seconds or 0.0)
    needed, setup = duration(verdict.needed_s or 0.0), duration(verdict.setup_s)
    excess = f"{duration(verdict.too_many_s or 0.0)} too long"
    tense = "was" if facts.has_ended else "is"
    not_ok = f"{tense} not acceptable"
    match verdict.obstacle:
        case "version":
            return f"{not_ok}: it has another version, {verdict.detail}"
        case "variant":
            return f"{not_ok}: it has no variant that may be used"
        case "draining":
            return f"{not_ok}: it drains"
        case "ejected":
            return f"{not_ok}: it made no progress, and gets no work for {seconds}"
        case "paused":
            paused = f"{facts.engine} crashed or lacked memory there and pauses for {seconds}"
            return f"{not_ok}: {paused}; otherwise it needs {needed}, {excess}"
        case "unprofiled":
            return f"{not_ok}: its speed is not known"
        case "slow":
            return f"{not_ok}: it needs {needed}, {excess}"
        case "loading":
            return f"{not_ok}: it needs {needed}, of which {setup} to load, {excess}"
        case "mode switch":
            return f"{not_ok}: it needs {needed}, of which {setup} to switch its mode, {excess}"
        case "left":
            return f"left after {seconds}"
        case _ if verdict.too_many_s is not None:
            return f"{tense} busy for {seconds}; with the {needed} that it needs, {excess}"
        case _:
            return f"{tense} busy for {seconds}" + (" of the wait" if facts.has_ended else "")

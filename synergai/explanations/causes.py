"""The one cause that most of a delay is due to."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from synergai.explanations.facts import Cause, End, Explanation, Run, Verdict

_OF_ENDS: Final[dict[End, Cause]] = {
    "failed": "crash",
    "left": "worker left",
    "revoked": "unresponsive",
    "stopped": "preempted",
    "yielded": "preempted",
}
_TOO_LONG: Final = ("slow", "loading", "mode switch", "paused")


def cause_of(facts: Explanation) -> Cause:
    """Return the cause of a delay or a refusal."""
    able = [verdict for verdict in facts.workers if verdict.needed_s is not None]
    if facts.refusal is not None:
        return facts.refusal
    if facts.state == "rejected" and not able:
        return "refused"
    if facts.state == "rejected":
        return "busy" if any(verdict.obstacle == "busy" for verdict in able) else "impossible"
    if facts.has_details and not (able or facts.runs):
        return "no worker"
    losses = _losses(facts)
    interrupted_s = max((losses.get(cause, 0.0) for cause in _OF_ENDS.values()), default=0.0)
    too_long = able and all(verdict.obstacle in _TOO_LONG for verdict in able)
    if too_long and min(verdict.too_many_s or 0.0 for verdict in able) >= interrupted_s:
        return _too_long(facts, able)
    unexplained: Cause = "slow" if facts.late_s else "on time"
    return max(losses, key=lambda cause: losses[cause], default=unexplained)


def _too_long(facts: Explanation, able: list[Verdict]) -> Cause:
    """Return why no worker is fast enough, even without other work."""
    obstacles = {verdict.obstacle for verdict in facts.workers}
    if "left" in obstacles:
        return "worker left"
    if obstacles & {"version", "variant"}:
        return "version"
    match min(able, key=lambda verdict: verdict.needed_s or 0.0).obstacle:
        case "loading" | "mode switch" as setup:
            return setup
        case _:
            return "slow"


def _losses(facts: Explanation) -> dict[Cause, float]:
    """Return the seconds lost, by cause."""
    lost: dict[Cause, float] = {}

    def lose(cause: Cause, seconds: float) -> None:
        if seconds > 0:
            lost[cause] = lost.get(cause, 0.0) + seconds

    repeated_s = 0.0
    runs = sorted(facts.runs, key=lambda run: run.given_s)
    for run, following in zip_longest(runs, runs[1:]):
        if run.end not in _OF_ENDS or run.done == run.queries:
            continue
        resumed_s = facts.total_s if following is None else following.began_s or facts.total_s
        lose(_OF_ENDS[run.end], resumed_s - run.given_s)
        if run.ended_s is not None:
            repeated_s += max(0.0, resumed_s - run.ended_s)
    # The wait after an interruption is part of its cost.
    lose("busy", facts.waited_s - repeated_s)
    for run in runs:
        lose("mode switch" if run.switched_to else "loading", run.setup_s)
        lose("estimate", _overrun_s(run, facts))
    return lost


def _overrun_s(run: Run, facts: Explanation) -> float:
    """Return by how much an assignment exceeded its estimate."""
    if run.estimated_s is None or run.end not in ("running", "completed"):
        return 0.0
    until_s = facts.total_s if run.ended_s is None else run.ended_s
    return until_s - run.given_s - run.estimated_s

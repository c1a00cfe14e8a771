"""Repeating measurements that other processes disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.domain import Session
from synergai.errors import EngineUnusable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from profiler.measuring.measurement import Measurement


def measure_with_repeats(
    measure: Callable[[Sequence[Session]], Iterable[Measurement | EngineUnusable]],
    sessions: Sequence[Session],
    *,
    required: bool,
    repeats: int,
    offer: Callable[[Sequence[Measurement]], bool],
    keep: Callable[[Measurement], None],
    skip: Callable[[EngineUnusable], None],
) -> list[Measurement]:
    """Measure sessions, and those again that were disturbed; the least disturbed ones count.

    Args:
        measure: measures sessions in the given order; an error takes the place of a measurement
            that failed.
        required: whether to raise an error instead of continuing with the next session. An error
            of a repetition is never raised, since the session has a measurement.
        offer: called with the disturbed measurements after these; returns whether to repeat them.
        keep: called with each measurement that is the best of its session so far.
        skip: called with each error after which the next session is measured.

    Returns:
        The best measurement of each session, in the order of `sessions`.
    """
    best: dict[Session, Measurement] = {}
    last_error: EngineUnusable | None = None
    wanted = sessions
    while wanted:
        for outcome in measure(wanted):
            if isinstance(outcome, EngineUnusable):
                if required:
                    raise outcome
                last_error = outcome
                skip(outcome)
                continue
            session = Session(outcome.entry.engine, outcome.entry.configuration)
            known = best.get(session)
            if known is None or outcome.background < known.background:
                best[session] = outcome
                keep(outcome)
        if not best and last_error is not None:
            raise last_error
        required = False
        disturbed = {session: each for session, each in best.items() if each.is_disturbed}
        if not disturbed:
            break
        if repeats > 0:
            repeats -= 1
        elif not offer(list(disturbed.values())):
            break
        wanted = list(disturbed)
    return list(best.values())

"""Repeating measurements that other processes disturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from synergai.domain import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from profiler.measurement import Measurement


def measure_with_repeats(
    measure: Callable[[Sequence[Session]], Iterable[Measurement]],
    sessions: Sequence[Session],
    *,
    repeats: int,
    offer: Callable[[Sequence[Measurement]], bool],
    keep: Callable[[Measurement], None],
) -> list[Measurement]:
    """Measure sessions, and those again that were disturbed; the least disturbed ones count.

    Args:
        measure: measures sessions in the given order.
        sessions: what to measure.
        repeats: number of repetitions without being asked for.
        offer: called with the disturbed measurements after these; returns whether to repeat them.
        keep: called with each measurement that is the best of its session so far.

    Returns:
        The best measurement of each session, in the order of `sessions`.
    """
    best: dict[Session, Measurement] = {}
    wanted = sessions
    while wanted:
        for measurement in measure(wanted):
            session = Session(measurement.entry.engine, measurement.entry.configuration)
            known = best.get(session)
            if known is None or measurement.background < known.background:
                best[session] = measurement
                keep(measurement)
        disturbed = {session: each for session, each in best.items() if each.is_disturbed}
        if not disturbed:
            break
        if repeats > 0:
            repeats -= 1
        elif not offer(list(disturbed.values())):
            break
        wanted = list(disturbed)
    return list(best.values())

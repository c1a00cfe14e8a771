"""Bounds of a dictionary: figures that some engine could have on some machine, and its size.

An absurd entry, such as 1e-6 queries per second, makes the scheduler refuse work that the worker
could do. Files may contain one; the gateway and the commands that add entries accept none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable

    from synergai.profiles.dictionary import ProfileEntry

MAX_ENTRIES: Final = 20_000
"""Entries of a dictionary: 100 engines on 10 worker classes in 20 configurations."""
_QPS: Final = (1e-3, 1e8)
_MAX_SECONDS: Final = 86_400.0
_MAX_WATTS: Final = 1e5
_MEDIAN: Final = (1e-3, 2.1)
"""Median over mean of a latency: at most 2 for any distribution, and some rounding."""
_MAX_OVERHEAD_S: Final = 0.1
"""Of a query issued from outside its host, which the median latency has and the QPS has not."""


def find_implausible(entry: ProfileEntry) -> str:
    """Return why an entry is implausible; empty if it is not."""
    fastest = max((entry.qps, *entry.batch_qps))
    slowest = min((entry.qps, *entry.batch_qps))
    if not _QPS[0] <= slowest <= fastest <= _QPS[1]:
        rate = slowest if slowest < _QPS[0] else fastest
        return f"{rate:g} queries per second (expected {_QPS[0]:g} to {_QPS[1]:g})"
    if entry.t_pre_s > _MAX_SECONDS:
        return f"a T_pre of {entry.t_pre_s:g} s (expected at most {_MAX_SECONDS:g})"
    if entry.watts > _MAX_WATTS:
        return f"{entry.watts:g} W (expected at most {_MAX_WATTS:g})"
    shortest, longest = (ratio / entry.qps for ratio in _MEDIAN)
    if entry.latency_p50_s and not shortest <= entry.latency_p50_s <= longest + _MAX_OVERHEAD_S:
        return f"a median latency of {entry.latency_p50_s:g} s at {entry.qps:g} queries per second"
    return ""


def check_plausible(entries: Iterable[ProfileEntry]) -> None:
    """Check entries that are to be added."""
    for entry in entries:
        if fault := find_implausible(entry):
            raise InvalidInput(
                f"{entry.engine} on {entry.worker_class} with {entry.configuration}: implausible: "
                f"{fault}"
            )


def check_size(before: int, after: int, max_entries: int | None, where: object) -> None:
    """Check that a dictionary does not grow beyond a number of entries."""
    if max_entries is not None and after > max(before, max_entries):
        raise InvalidInput(
            f"{where} would have {after:,} entries, but {max_entries:,} is the most; delete some "
            "with 'synergai dictionary delete'"
        )

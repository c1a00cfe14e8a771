"""Arrivals of jobs from a file: a gateway's event log, or a CSV file."""

from __future__ import annotations

import csv
import math
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from profiler.simulator.recording import read_log
from profiler.simulator.workload import Arrival
from synergai.domain import EngineName
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_SHOWN: Final = 40
"""Characters of a cell that messages quote."""
COLUMNS: Final = ("arrival_s", "engine", "queries", "qos_s")
_MAX_QUERIES: Final = 1 << 53
"""Integers up to this one are exact as floating-point numbers."""


@lru_cache(maxsize=1)
def read_arrivals(path: Path) -> tuple[Arrival, ...]:
    """Read a CSV file or the event log of a gateway, in order of arrival.

    A CSV file has a header with the column `arrival_s`, in seconds, and optionally `engine`,
    `queries` and `qos_s`; empty cells are drawn. Every other file is read as an event log.
    """
    try:
        found = _read_csv(path) if path.suffix.lower() == ".csv" else _read_log(path)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    if not found:
        raise InvalidInput(f"{path} has no jobs")
    found.sort(key=lambda arrival: arrival.at)
    origin = found[0].at
    return tuple(
        Arrival(
            at=each.at - origin,
            engine=each.engine,
            queries=each.queries,
            qos_s=each.qos_s,
            perishable=each.perishable,
        )
        for each in found
    )


def _read_log(path: Path) -> list[Arrival]:
    return [
        Arrival(
            at=job.arrival,
            engine=job.engine,
            queries=job.queries,
            qos_s=job.deadline - job.arrival,
            perishable=job.perishable,
        )
        for job in read_log(path).jobs
    ]


def _read_csv(path: Path) -> list[Arrival]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines, skipinitialspace=True)
            columns = rows.fieldnames or ()
            unknown = [name for name in columns if name not in COLUMNS]
            if "arrival_s" not in columns or unknown:
                raise InvalidInput(
                    f"the first line of {path} must name its columns: arrival_s, and any of "
                    f"{', '.join(COLUMNS[1:])}; it has {', '.join(columns) or 'nothing'}"
                )
            return [_arrival(row, f"line {rows.line_num} of {path}") for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path} is not a CSV file: {error}") from None


def _arrival(row: Mapping[str | None, object], where: str) -> Arrival:
    def cell(name: str) -> str:
        return str(row.get(name) or "").strip()

    if None in row:
        raise InvalidInput(f"{where} has more cells than the first line")
    at = _number(cell("arrival_s"), "arrival_s", where)
    queries, qos_s = cell("queries"), cell("qos_s")
    return Arrival(
        at=at,
        engine=EngineName(cell("engine")) if cell("engine") else None,
        queries=_count(queries, where) if queries else None,
        qos_s=_number(qos_s, "qos_s", where) if qos_s else None,
    )


def _count(text: str, where: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 0 < count <= _MAX_QUERIES:
        raise InvalidInput(f"queries in {where} must be a positive integer, not {text[:_SHOWN]!r}")
    return count


def _number(text: str, name: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidInput(f"{name} in {where} must be a number of seconds, not {text!r}")
    return number

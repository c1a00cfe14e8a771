"""Parser of LoadGen's summary file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SUMMARY_FILE: Final = "mlperf_log_summary.txt"

# Names of the rates, by the scenarios that report them.
_ONE_AT_A_TIME: Final = {"SingleStream": "QPS w/ loadgen overhead"}
_ONE_AT_A_TIME_NET: Final = {"SingleStream": "QPS w/o loadgen overhead"}
_COMPLETED: Final = {"Server": "Completed samples per second", "Offline": "Samples per second"}
_SCHEDULED: Final = {"Server": "Scheduled samples per second"}

_FACT: Final = re.compile(r"^\s*([^:\n]+?)\s*: (.+?)\s*$", re.MULTILINE)
_PERCENTILE: Final = re.compile(r"^([\d.]+) percentile latency \(ns\)\s*: (\d+)\s*$", re.MULTILINE)
_UNMET: Final = re.compile(r"^\s+(.+?) satisfied\s*: NO\b", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """LoadGen's summary of a performance run.

    Latencies are from issue to completion of queries; a Multi Stream query has several
    samples, the Offline query has all of them.

    Attributes:
        validity: ``VALID`` or ``INVALID``.
        unmet: names of LoadGen's unsatisfied conditions; empty if valid.
        qps_with_overhead: Single Stream: queries per second over the whole run.
        qps: Single Stream: inverse of the mean latency.
        samples_per_second: Server and Offline: samples completed per second.
        scheduled_per_second: Server: samples issued per second.
        percentiles_s: latency by percentile, from 50.0 to 99.9.
    """

    scenario: str
    mode: str
    validity: str
    unmet: tuple[str, ...]
    qps_with_overhead: float | None
    qps: float | None
    samples_per_second: float | None
    scheduled_per_second: float | None
    min_s: float
    max_s: float
    mean_s: float
    percentiles_s: dict[float, float]

    @property
    def is_valid(self) -> bool:
        """Whether LoadGen considers the run valid."""
        return self.validity == "VALID"


def read_summary(path: Path) -> Summary:
    """Read the summary file at `path`."""
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    try:
        return parse_summary(text)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def parse_summary(text: str) -> Summary:
    """Parse a summary."""
    facts = dict(_FACT.findall(text))
    try:
        scenario = facts["Scenario"]
        return Summary(
            scenario=scenario,
            qps_with_overhead=_rate(facts, _ONE_AT_A_TIME, scenario),
            qps=_rate(facts, _ONE_AT_A_TIME_NET, scenario),
            samples_per_second=_rate(facts, _COMPLETED, scenario),
            scheduled_per_second=_rate(facts, _SCHEDULED, scenario),
            mode=facts["Mode"],
            validity=facts["Result is"],
            unmet=tuple(_UNMET.findall(text)),
            min_s=float(facts["Min latency (ns)"]) / 1e9,
            max_s=float(facts["Max latency (ns)"]) / 1e9,
            mean_s=float(facts["Mean latency (ns)"]) / 1e9,
            percentiles_s={
                float(percentile): int(latency) / 1e9
                for percentile, latency in _PERCENTILE.findall(text)
            },
        )
    except KeyError as missing:
        raise InvalidInput(f"the LoadGen summary is incomplete: {missing} is missing") from None
    except ValueError:
        raise InvalidInput("the LoadGen summary is malformed: a figure is not a number") from None


def _rate(facts: Mapping[str, str], names: Mapping[str, str], scenario: str) -> float | None:
    name = names.get(scenario)
    return None if name is None else float(facts[name])

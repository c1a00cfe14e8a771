"""Reads LoadGen's summary: the text that its log files and its readers agree on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

SUMMARY_FILE: Final = "mlperf_log_summary.txt"

_FACT: Final = re.compile(r"^\s*([^:\n]+?)\s*: (.+?)\s*$", re.MULTILINE)
_PERCENTILE: Final = re.compile(r"^([\d.]+) percentile latency \(ns\)\s*: (\d+)\s*$", re.MULTILINE)
_UNMET: Final = re.compile(r"^\s+(.+?) satisfied\s*: NO\b", re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What LoadGen says about a Single Stream run.

    Attributes:
        validity: ``VALID`` or ``INVALID``.
        unmet: which of its conditions are not satisfied, in its words; empty if valid.
        qps_with_overhead: queries per second over the whole run.
        qps: the inverse of the mean latency.
        mean_s: mean latency, from issue to completion, as all that follow.
        percentiles_s: latency by percentile, from 50.0 to 99.9.
    """

    scenario: str
    mode: str
    validity: str
    unmet: tuple[str, ...]
    qps_with_overhead: float
    qps: float
    min_s: float
    max_s: float
    mean_s: float
    percentiles_s: dict[float, float]

    @property
    def is_valid(self) -> bool:
        """LoadGen accepts the run by its own rules."""
        return self.validity == "VALID"


def read_summary(path: Path) -> Summary:
    """The summary in a log file.

    Raises:
        InvalidInput: the file cannot be read, or is no complete summary.
    """
    try:
        text = path.read_text("utf-8", "replace")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    try:
        return parse_summary(text)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None


def parse_summary(text: str) -> Summary:
    """The summary in `text`.

    Raises:
        InvalidInput: a figure is missing.
    """
    facts = dict(_FACT.findall(text))
    try:
        return Summary(
            scenario=facts["Scenario"],
            mode=facts["Mode"],
            validity=facts["Result is"],
            unmet=tuple(_UNMET.findall(text)),
            qps_with_overhead=float(facts["QPS w/ loadgen overhead"]),
            qps=float(facts["QPS w/o loadgen overhead"]),
            min_s=float(facts["Min latency (ns)"]) / 1e9,
            max_s=float(facts["Max latency (ns)"]) / 1e9,
            mean_s=float(facts["Mean latency (ns)"]) / 1e9,
            percentiles_s={
                float(percentile): int(latency) / 1e9
                for percentile, latency in _PERCENTILE.findall(text)
            },
        )
    except KeyError as missing:
        raise InvalidInput(f"this is no complete LoadGen summary: it lacks {missing}") from None
    except ValueError:
        raise InvalidInput("this is no LoadGen summary: a figure is not a number") from None

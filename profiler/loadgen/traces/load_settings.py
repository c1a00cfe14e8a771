"""Settings of a trace run and of the search for the highest goodput."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta

from profiler.loadgen.loadgen_settings import TargetSettings
from profiler.loadgen.traces.arrivals import (
    MAX_RATE,
    Exponential,
    Linear,
    Recorded,
    arrivals,
    constant,
    read_rates,
)
from synergai.errors import InvalidInput
from synergai.runtime.setting_types import Duration, OptionName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from profiler.loadgen.traces.arrivals import Curve

_TRACES: Final = {
    "rate": ("constant", "linear", "exponential", "poisson"),
    "to_rate": ("linear", "exponential"),
    "duration": ("constant", "linear", "exponential", "poisson"),
    "replay": ("replay",),
}
"""The traces that a setting applies to."""


class LoadSettings(TargetSettings, frozen=True, kw_only=True):
    """Settings of ``synergai load``."""

    env_prefix = "SYNERGAI_LOAD_"

    trace: Annotated[
        Literal["constant", "linear", "exponential", "poisson", "replay"],
        "Rate over time: constant with even gaps, a linear or exponential ramp from "
        "--rate to --to-rate, constant with random gaps, or recorded.",
    ] = "poisson"
    rate: Annotated[
        float,
        "Requests per second at the start; by default, at random times (--trace poisson).",
        Meta(gt=0, le=MAX_RATE),
    ] = 10.0
    to_rate: (
        Annotated[float, "Requests per second at the end of a ramp.", Meta(gt=0, le=MAX_RATE)]
        | None
    ) = None
    duration: Annotated[Duration, "Duration of the trace in seconds.", Meta(gt=0, le=86_400)] = 10.0
    replay: Annotated[
        Path | None, "CSV file for --trace replay: a line per second, the rate in the last column."
    ] = None
    seed: Annotated[int, "Seed of random gaps.", Meta(ge=0)] = 0
    deadline_ms: (
        Annotated[
            float,
            "Deadline in milliseconds from a request's due time, also sent to the gateway.",
            Meta(gt=0),
        ]
        | None
    ) = None
    min_accuracy: Annotated[
        float, "Lowest accuracy, 0 to 1, of the variants that may answer.", Meta(ge=0, le=1)
    ] = 0.0
    late_ms: Annotated[
        float,
        "Delay in milliseconds beyond which a request is sent late. The run is "
        "invalid if more than 1 % are.",
        Meta(gt=0),
    ] = 10.0
    warm_up: int = 5  # requests before the run, to load the engine
    late_share: float = 0.01  # share of requests sent late beyond which the run is invalid
    precision: float = 0.05  # relative precision of the searched rate
    trials: int = 3  # limit of trials at each rate; the majority decides
    find_goodput: Annotated[
        bool,
        "Search for the highest rate at which --attainment of the requests meet "
        "--deadline-ms, starting at --rate, in trials of --duration.",
    ] = False
    attainment: Annotated[
        float, "Share of requests that must meet the deadline.", Meta(gt=0, le=1)
    ] = 0.99
    as_json: Annotated[bool, OptionName("json"), "Print JSON instead of a table."] = False

    def __post_init__(self) -> None:
        self.check_applicable("trace", _TRACES)

    def curve(self) -> Curve:
        """Return the rate over time."""
        match self.trace:
            case "constant" | "poisson":
                return constant(self.rate, self.duration)
            case "linear":
                return Linear(self.rate, self._end(), self.duration)
            case "exponential":
                return Exponential(self.rate, self._end(), self.duration)
            case "replay":
                if self.replay is None:
                    raise InvalidInput("--trace replay requires --replay FILE")
                return Recorded(read_rates(self.replay))

    def arrivals(self) -> Iterator[float]:
        """Return the send times in seconds from the start."""
        return arrivals(self.curve(), self.seed if self.trace == "poisson" else None)

    def _end(self) -> float:
        if self.to_rate is None:
            raise InvalidInput(f"--trace {self.trace} requires --to-rate, its rate at the end")
        return self.to_rate

"""Settings of a trace run and of the search for the highest goodput."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  # pydantic reads the annotations
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from synergai.errors import InvalidInput
from synergai.loadgen.target_settings import TargetSettings
from synergai.loadgen.traces.arrivals import (
    MAX_RATE,
    Exponential,
    Linear,
    Recorded,
    arrivals,
    constant,
    read_rates,
)
from synergai.runtime.settings import Duration, OptionName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.loadgen.traces.arrivals import Curve

_TRACES: Final = {
    "rate": ("constant", "linear", "exponential", "poisson"),
    "to_rate": ("linear", "exponential"),
    "duration": ("constant", "linear", "exponential", "poisson"),
    "replay": ("replay",),
}
"""The traces that a setting applies to."""


class LoadSettings(TargetSettings, env_prefix="SYNERGAI_LOAD_"):
    """Settings of ``synergai load``."""

    trace: Literal["constant", "linear", "exponential", "poisson", "replay"] = Field(
        default="poisson",
        description="Rate over time: constant with even gaps, a linear or exponential ramp from "
        "--rate to --to-rate, constant with random gaps, or recorded.",
    )
    rate: float = Field(
        default=10.0, gt=0, le=MAX_RATE, description="Requests per second at the start."
    )
    to_rate: float | None = Field(
        default=None, gt=0, le=MAX_RATE, description="Requests per second at the end of a ramp."
    )
    duration: Duration = Field(
        default=10.0, gt=0, le=86_400, description="Duration of the trace in seconds."
    )
    replay: Path | None = Field(
        default=None,
        description="CSV file for --trace replay: a line per second, the rate in the last column.",
    )
    random_gaps: bool = Field(
        default=False, description="Use random gaps in other traces than poisson."
    )
    seed: int = Field(default=0, ge=0, description="Seed of random gaps.")
    deadline_ms: float | None = Field(
        default=None,
        gt=0,
        description="Deadline in milliseconds from a request's due time, also sent to the gateway.",
    )
    priority: int = Field(
        default=0,
        ge=0,
        le=9,
        description="Priority of the requests, 0 (default) to 9 (most urgent).",
    )
    min_accuracy: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Lowest accuracy, 0 to 1, of the variants that may answer.",
    )
    late_ms: float = Field(
        default=10.0,
        gt=0,
        description="Delay in milliseconds beyond which a request is sent late. The run is "
        "invalid if more than 1 % are.",
    )
    warm_up: int = 5  # requests before the run, to load the engine
    late_share: float = 0.01  # share of requests sent late beyond which the run is invalid
    precision: float = 0.05  # relative precision of the searched rate
    trials: int = 3  # limit of trials at each rate; the majority decides
    find_goodput: bool = Field(
        default=False,
        description="Search for the highest rate at which --attainment of the requests meet "
        "--deadline-ms, starting at --rate, in trials of --duration.",
    )
    attainment: float = Field(
        default=0.99, gt=0, le=1, description="Share of requests that must meet the deadline."
    )
    plot: Path | None = Field(
        default=None,
        description="PNG file to plot rate, goodput and latency over time to; with --find-goodput, "
        "latency against rate.",
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        """Reject options that do not apply."""
        self.check_applicable("trace", _TRACES)
        return self

    def curve(self) -> Curve:
        """Return the rate over time.

        Raises:
            InvalidInput: a required option is missing or invalid.
        """
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
        """Return the send times in seconds from the start.

        Raises:
            InvalidInput: see `curve`; or there are too many requests.
        """
        gaps_are_random = self.random_gaps or self.trace == "poisson"
        return arrivals(self.curve(), self.seed if gaps_are_random else None)

    def _end(self) -> float:
        if self.to_rate is None:
            raise InvalidInput(f"--trace {self.trace} requires --to-rate, its rate at the end")
        return self.to_rate

"""What can be chosen about a trace of requests, and about the search for the goodput."""

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
from synergai.runtime.settings import OptionName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.loadgen.traces.arrivals import Curve

_TRACES: Final = {
    "rate": ("constant", "linear", "exponential", "poisson"),
    "to_rate": ("linear", "exponential"),
    "duration": ("constant", "linear", "exponential", "poisson"),
    "replay": ("replay",),
}
"""The traces that know a setting."""


class LoadSettings(TargetSettings, env_prefix="SYNERGAI_LOAD_"):
    """Settings of ``synergai load``."""

    trace: Literal["constant", "linear", "exponential", "poisson", "replay"] = Field(
        default="poisson",
        description="How the rate goes: constant with even gaps, from --rate to --to-rate along "
        "a line or by a constant factor, constant with random gaps, or as recorded.",
    )
    rate: float = Field(
        default=10.0, gt=0, le=MAX_RATE, description="Requests per second, at the beginning."
    )
    to_rate: float | None = Field(
        default=None, gt=0, le=MAX_RATE, description="Requests per second at the end of a ramp."
    )
    duration: float = Field(
        default=10.0, gt=0, le=86_400, description="For how long requests are sent, in seconds."
    )
    replay: Path | None = Field(
        default=None,
        description="CSV with a line per second, the rate in its last column, for --trace replay.",
    )
    random_gaps: bool = Field(
        default=False, description="Random gaps in the other traces too, as --trace poisson has."
    )
    seed: int = Field(default=0, ge=0, description="Of random gaps.")
    warm_up: int = Field(
        default=5,
        ge=0,
        le=1000,
        description="Requests before the run, so that the engine is loaded.",
    )
    deadline_ms: float | None = Field(
        default=None,
        gt=0,
        description="Within which an answer is wanted, from the instant at which the trace has "
        "the request sent. The gateway is told.",
    )
    priority: int = Field(default=0, ge=0, le=9, description="Of the requests: 0, to 9 (first).")
    late_ms: float = Field(
        default=10.0, gt=0, description="A request sent later than this was sent late."
    )
    late_share: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="If more of them than this were sent late, the run is invalid.",
    )
    find_goodput: bool = Field(
        default=False,
        description="Search the highest rate at which --attainment of the requests meet "
        "--deadline-ms, from --rate on, in trials of --duration.",
    )
    attainment: float = Field(
        default=0.99, gt=0, le=1, description="Share of requests that must meet the deadline."
    )
    precision: float = Field(
        default=0.05, gt=0, le=1, description="The search ends when it knows the rate so well."
    )
    trials: int = Field(
        default=3, ge=1, le=99, description="Trials at each rate; most of them decide."
    )
    plot: Path | None = Field(
        default=None, description="Draw rate, goodput and latency over time to this PNG file."
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Refuse what would be asked in vain."""
        self.check_applicable("trace", _TRACES)
        if self.find_goodput and self.plot:
            raise InvalidInput("--plot draws a run; --find-goodput makes many")
        return self

    def curve(self) -> Curve:
        """The rate over time.

        Raises:
            InvalidInput: what the trace needs was not given, or is wrong.
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
                    raise InvalidInput("--trace replay needs the file: --replay FILE")
                return Recorded(read_rates(self.replay))

    def arrivals(self) -> Iterator[float]:
        """The instants at which requests are sent, in seconds from the beginning.

        Raises:
            InvalidInput: see `curve`; or they are too many.
        """
        gaps_are_random = self.random_gaps or self.trace == "poisson"
        return arrivals(self.curve(), self.seed if gaps_are_random else None)

    def _end(self) -> float:
        if self.to_rate is None:
            raise InvalidInput(f"--trace {self.trace} needs the rate at its end: --to-rate")
        return self.to_rate

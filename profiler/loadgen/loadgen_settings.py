"""Settings of a LoadGen run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from profiler.loadgen.traces.arrivals import (
    MAX_RATE,
    Exponential,
    Linear,
    Recorded,
    arrivals,
    constant,
    read_rates,
)
from synergai.cli.gateway_client import GatewayAddress
from synergai.client.target import TARGET_VARIABLE
from synergai.errors import InvalidInput
from synergai.runtime.setting_types import POSITIONAL, Address, Duration, OptionName
from synergai.runtime.settings import Settings, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from profiler.loadgen.traces.arrivals import Curve
    from synergai.cli.gateway_client import GatewayAccess
    from synergai.client.target import ConnectionOptions


def _default_gateway() -> GatewayAccess:
    """Return the gateway of commands that name none."""
    return GatewayAddress(os.environ.get(TARGET_VARIABLE, "")).resolved()


class TargetSettings(Settings, frozen=True, kw_only=True):
    """The gateway, the engine and its inputs."""

    engine: Annotated[str, POSITIONAL, "Name of the engine."]
    target: Annotated[Address, "Address of the gateway."] = msgspec.field(
        default_factory=lambda: _default_gateway().target
    )
    models: Annotated[
        Path, "Model directory; the engine's sample set in it is sent, if it has one."
    ] = Path("models")
    samples: Annotated[
        Path | None, "Sample set to send instead: an .npz file with one array per input."
    ] = None
    given: frozenset[str] = frozenset()

    def connection(self) -> ConnectionOptions:
        """Return the arguments that encrypt and authenticate a client's connection."""
        # The context's token is for its own target.
        given = GatewayAddress(self.target).resolved() if "target" in self.given else None
        return (given or _default_gateway()).connection()

    def check_applicable(self, choice: str, known: Mapping[str, tuple[str, ...]]) -> None:
        """Check that no option was given that the chosen mode would ignore.

        Args:
            choice: name of the field with the mode, such as ``scenario``.
            known: the modes that use a field, by name of the field.
        """
        options, chosen = options_of(type(self)), getattr(self, choice)
        for name, choices in known.items():
            if name in self.given and getattr(self, name) and chosen not in choices:
                these = " or ".join(choices)
                raise InvalidInput(
                    f"--{options[name].flag} is for --{options[choice].flag} {these}"
                )


_SCENARIOS: Final = {
    "rate": ("Server", "Offline"),
}
"""The scenarios that a setting applies to."""
_NEEDS: Final = {
    "enforce": "qos_ms",
    "dataset": "data",
    "data": "dataset",
}
"""The setting that each setting requires."""


class LoadgenSettings(TargetSettings, frozen=True, kw_only=True):
    """Settings of ``synergai loadgen``."""

    env_prefix = "SYNERGAI_LOADGEN_"

    scenario: Annotated[
        Literal["SingleStream", "MultiStream", "Server", "Offline"],
        "MLPerf scenario: one sample at a time, eight samples at a time, Poisson "
        "arrivals, or all samples at once.",
    ] = "SingleStream"
    mode: Annotated[
        Literal["performance", "accuracy"],
        "Measure performance, or send every sample once to measure accuracy.",
    ] = "performance"
    rate: (
        Annotated[
            float,
            "Server: queries per second. Offline: expected samples per second, from which "
            "LoadGen derives the size of its query.",
            Meta(gt=0, le=1e6),
        ]
        | None
    ) = None
    queries: Annotated[int, "Minimum number of queries.", Meta(ge=1, le=10_000_000)] = 100
    min_duration: Annotated[Duration, "Minimum duration in seconds.", Meta(ge=0, le=86_400)] = 10.0
    qos_ms: (
        Annotated[
            float,
            "QoS time in milliseconds, beyond which a query is a violation; in Server also "
            "LoadGen's latency bound.",
            Meta(gt=0),
        ]
        | None
    ) = None
    enforce: Annotated[
        bool, "Send the QoS time as each query's deadline; the gateway drops expired ones."
    ] = False
    query_timeout: Annotated[Duration, Meta(gt=0)] = 60.0
    dataset: Annotated[
        Literal["imagenet", "coco"] | None, "Data set whose images to send, as files."
    ] = None
    data: Annotated[Path | None, "Directory of the data set, in MLPerf's layout."] = None
    user_conf: Annotated[
        Path | None,
        "LoadGen's user.conf; its settings, and MLPerf's own, take precedence over the options.",
    ] = None
    output: Annotated[Path, "Directory for LoadGen's log files."] = Path("runs/loadgen")
    as_json: Annotated[bool, OptionName("json"), "Print JSON instead of a table."] = False

    def __post_init__(self) -> None:
        options = options_of(type(self))
        self.check_applicable("scenario", _SCENARIOS)
        for name, needed in _NEEDS.items():
            if getattr(self, name) and not getattr(self, needed):
                raise InvalidInput(f"--{options[name].flag} requires --{options[needed].flag}")
        if self.dataset and self.samples:
            raise InvalidInput("--samples and --dataset exclude each other; give one of them")
        if self.scenario == "Server" and not (self.rate or self.user_conf):
            raise InvalidInput("--scenario Server requires --rate, its queries per second")


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

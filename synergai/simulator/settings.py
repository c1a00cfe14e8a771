"""Settings of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from synergai.domain import Configuration
from synergai.errors import InvalidInput
from synergai.runtime.settings import OptionName, Settings, field_of
from synergai.scheduling.policy import POLICIES
from synergai.scheduling.settings import SchedulingOptions
from synergai.simulator.workload import EXPERIMENTS, Sessions, TPre

DEFAULT_POLICIES: Final = (
    "rr",
    "srr",
    "lru",
    "mru",
    "be",
    "slo_mael",
    "synergai",
    "edf",
    "malleable",
)
RECONSTRUCTED_PROFILE: Final = Path(__file__).parent / "data" / "reconstructed_profile.csv"
MAX_SEEDS: Final = 10_000
LEAST_SEEDS: Final = 10
MAX_WORKERS: Final = 1000
MAX_JOBS: Final = 100_000
MIN_LOAD: Final = 1e-6


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds and ranges of seeds: ``0-29`` or ``1,5,7-9``.

    Raises:
        InvalidInput: the text has another form or too many seeds.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 2**63):
            raise InvalidInput(f"{part.strip()!r} is not a seed or a range of seeds, such as 0-29")
        if len(seeds) + int(last) - int(first) >= MAX_SEEDS:
            raise InvalidInput(f"{text!r} has more than {MAX_SEEDS:,} seeds")
        seeds += range(int(first), int(last) + 1)
    return tuple(seeds)


def one_of(name: str, names: list[str], kind: str) -> str:
    """Return `name` if it is one of `names`.

    Args:
        name: what was given.
        names: what there is.
        kind: what they are names of, for the error message.

    Raises:
        InvalidInput: it is not.
    """
    if name not in names:
        raise InvalidInput(f"there is no {kind} {name!r}; there are: {', '.join(names)}")
    return name


def _checked_policy(name: str) -> str:
    return one_of(name, POLICIES.names(), "policy")


def _checked_experiment(name: str) -> str:
    return one_of(name, list(EXPERIMENTS), "experiment")


PolicyName: TypeAlias = Annotated[str, AfterValidator(_checked_policy)]
ExperimentName: TypeAlias = Annotated[str, AfterValidator(_checked_experiment)]


def checked_seeds(text: str) -> str:
    """Return `text` if `parse_seeds` accepts it.

    Raises:
        InvalidInput: it does not.
    """
    parse_seeds(text)
    return text


def _checked_samples(text: str) -> str:
    if len(parse_seeds(text)) < LEAST_SEEDS:
        raise InvalidInput(f"{text!r} has fewer than {LEAST_SEEDS} seeds, such as 0-9")
    return text


class WorkloadSettings(Settings):
    """What `synergai simulate` and `synergai experiment` have in common."""

    profile: Path = Field(
        default=RECONSTRUCTED_PROFILE,
        description="Dictionary of the workers: a .csv, .json or .db file. The default is "
        "reconstructed from the figures printed in the thesis.",
    )
    estimate_error: float = Field(
        default=0.15,
        ge=0,
        le=2,
        description="Deviation of actual from profiled times: the standard deviation of the "
        "logarithm of their ratio.",
    )
    predefined: dict[str, str] = Field(default={"agx": "mode=6", "nx": "mode=5"})
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON, with the figures of every run, instead of tables."
    )

    @field_validator("predefined")
    @classmethod
    def _are_configurations(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            Configuration.parse(text)
        return value


class DemandSettings(WorkloadSettings):
    """What `synergai simulate` and `synergai capacity` have in common."""

    arrivals: Path | None = Field(
        default=None,
        description="Jobs from the event log of a gateway (--event-log), or from a CSV file with "
        "the columns arrival_s, engine, queries and qos_s, of which only the first is required.",
    )


class SweepSettings(DemandSettings):
    """The experiments, policies and seeds to simulate."""

    predefined: dict[str, str] = Field(
        default={"agx": "mode=6", "nx": "mode=5"},
        description="Configurations by worker class for the profile-agnostic policies; the "
        "default is the one with the most threads.",
    )
    experiments: tuple[ExperimentName, ...] = Field(
        default=tuple(EXPERIMENTS),
        min_length=1,
        description="Experiments by demand (D) and frequency (F).",
    )
    policies: tuple[PolicyName, ...] = Field(
        default=DEFAULT_POLICIES, min_length=1, description="Scheduling policies to compare."
    )
    seeds: Annotated[str, AfterValidator(checked_seeds)] = Field(
        default="0-29", description="One run per seed; all policies get the same jobs."
    )
    sessions: Sessions = Field(
        default="cold",
        description="T_pre is paid at every start, once per session, or never.",
    )
    preload: bool = field_of(SchedulingOptions, "preload")
    memory: dict[str, Annotated[float, Field(gt=0)]] = Field(
        default={},
        description="Memory for sessions by worker class in GiB, such as x86=16,agx=32,nx=8; no "
        "limit for those left out.",
    )
    session_memory: float = 1.0  # GiB of a session, all of them alike
    t_pre: TPre = "fixed"
    fleet: dict[str, Annotated[int, Field(ge=0, le=MAX_WORKERS)]] = Field(
        default={},
        description="Workers by class, such as x86=16,agx=16,nx=16; by default one of each class "
        "in the profile.",
    )
    jobs: int | None = Field(
        default=None,
        ge=1,
        le=MAX_JOBS,
        description="Jobs of each run; 24 by default, or all of --arrivals.",
    )
    load_factor: Annotated[float, OptionName("load")] = Field(
        default=1.0,
        ge=MIN_LOAD,
        le=1000,
        description="Arrivals relative to the experiment's, for the same fleet: with 16 workers of "
        "each class, jobs arrive 16 times as often. With --arrivals, the factor by which they are "
        "accelerated.",
    )
    bounds: bool = Field(
        default=False, description="Add a lower bound on violations for any schedule."
    )

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.fleet and not any(self.fleet.values()):
            raise InvalidInput("--fleet has no workers")
        if self.bounds and (self.fleet or self.arrivals):
            raise InvalidInput(
                "--bounds is for the thesis's jobs and one worker of each class; leave out --fleet "
                "and --arrivals"
            )
        return self

    @property
    def simulated(self) -> tuple[ExperimentName, ...]:
        """The experiments that differ: with given arrivals, one of each demand."""
        if self.arrivals is None:
            return self.experiments
        by_demand = {EXPERIMENTS[name].demand: name for name in reversed(self.experiments)}
        return tuple(name for name in self.experiments if name in by_demand.values())


class SimulatorSettings(SweepSettings, env_prefix="SYNERGAI_SIMULATE_"):
    """Settings of ``synergai simulate``."""

    plots: Path | None = Field(default=None, description="Directory for plots.")


class CapacitySettings(DemandSettings, env_prefix="SYNERGAI_CAPACITY_"):
    """Settings of ``synergai capacity``."""

    violations: float = Field(
        default=5.0,
        ge=0,
        lt=100,
        description="Most jobs that may miss their deadlines, in percent.",
    )
    experiment: ExperimentName = Field(
        default="DH-FH", description="Experiment that gives the demand."
    )
    jobs: int | None = Field(
        default=None,
        ge=1,
        le=MAX_JOBS,
        description="Jobs of each run; 48 by default and 24 times --load beyond 2, or all of "
        "--arrivals.",
    )
    load_factor: Annotated[float, OptionName("load")] = Field(
        default=1.0,
        ge=MIN_LOAD,
        le=1000,
        description="Arrivals relative to those of the experiment, for any fleet, or to "
        "--arrivals.",
    )
    policy: PolicyName = Field(default="malleable", description="Scheduling policy.")
    seeds: Annotated[str, AfterValidator(_checked_samples)] = Field(
        default="0-9",
        description="One run per seed, at least ten. What suffices is confirmed on as many other "
        "seeds.",
    )
    sessions: Sessions = Field(
        default="warm",
        description="T_pre is paid at every start, once per session, or never.",
    )
    cost: dict[str, Annotated[float, Field(ge=1e-6, le=1e6)]] = Field(
        default={},
        description="Cost of a worker per hour by class, such as x86=0.40,agx=0.10; the fleet with "
        "the lowest cost is the best. Without it, the one with the fewest workers.",
    )
    watts: dict[str, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default={"x86": 125.0, "agx": 30.0, "nx": 15.0},
        description="Power of a busy worker by class, where the profile has none; by default the "
        "nominal power of the thesis's machines.",
    )
    max_workers: int = Field(
        default=32, ge=1, le=MAX_WORKERS, description="Most workers of a class to consider."
    )

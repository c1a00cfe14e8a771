"""Settings of the simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from profiler.simulator.workload import EXPERIMENTS, Sessions, TPre
from synergai.core.scheduling.policies import POLICIES
from synergai.errors import InvalidInput
from synergai.names import is_number
from synergai.runtime.setting_types import Checked, OptionName
from synergai.runtime.settings import Settings

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
_MAX_SEED: Final = 2**63 - 1
MAX_WORKERS: Final = 1000
MAX_JOBS: Final = 100_000
MIN_LOAD: Final = 1e-6


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds and ranges of seeds: ``0-29`` or ``1,5,7-9``."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (is_number(last, _MAX_SEED) and is_number(first, int(last))):
            raise InvalidInput(f"{part.strip()!r} is not a seed or a range of seeds, such as 0-29")
        if len(seeds) + int(last) - int(first) >= MAX_SEEDS:
            raise InvalidInput(f"{text!r} has more than {MAX_SEEDS:,} seeds")
        seeds += range(int(first), int(last) + 1)
    return tuple(seeds)


def one_of(name: str, names: list[str], kind: str) -> str:
    """Return `name` if it is one of `names`."""
    if name not in names:
        raise InvalidInput(f"there is no {kind} {name!r}; there are: {', '.join(names)}")
    return name


def _checked_policy(name: str) -> str:
    return one_of(name, POLICIES.names(), "policy")


def _checked_experiment(name: str) -> str:
    return one_of(name, list(EXPERIMENTS), "experiment")


def _checked_policies(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_checked_policy, names))


def _checked_experiments(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_checked_experiment, names))


_ONE_OR_MORE: Final = Meta(min_length=1)
PolicyName: TypeAlias = Annotated[str, Checked(_checked_policy)]
PolicyNames: TypeAlias = Annotated[tuple[str, ...], _ONE_OR_MORE, Checked(_checked_policies)]
ExperimentName: TypeAlias = Annotated[str, Checked(_checked_experiment)]
ExperimentNames: TypeAlias = Annotated[tuple[str, ...], _ONE_OR_MORE, Checked(_checked_experiments)]


def checked_seeds(text: str) -> str:
    """Return `text` if `parse_seeds` accepts it."""
    parse_seeds(text)
    return text


class DemandSettings(Settings, frozen=True, kw_only=True):
    """What `synergai simulate` and `synergai capacity` have in common."""

    profile: Annotated[
        Path,
        "Dictionary of the workers: a .csv or .db file. The default is "
        "reconstructed from the figures printed in the thesis.",
    ] = RECONSTRUCTED_PROFILE
    # Of actual from profiled times: standard deviation of the logarithm of their ratio.
    estimate_error: Annotated[float, Meta(ge=0, le=2)] = 0.15
    arrivals: Annotated[
        Path | None,
        "Jobs from the event log of a gateway (--event-log).",
    ] = None


class SimulatorSettings(DemandSettings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate``: the experiments, policies and seeds."""

    env_prefix = "SYNERGAI_SIMULATE_"

    as_json: Annotated[
        bool, OptionName("json"), "Print JSON, with the figures of every run, instead of tables."
    ] = False
    experiments: Annotated[ExperimentNames, "Experiments by demand (D) and frequency (F)."] = tuple(
        EXPERIMENTS
    )
    policies: Annotated[PolicyNames, "Scheduling policies to compare."] = DEFAULT_POLICIES
    seeds: Annotated[
        str, Checked(checked_seeds), "One run per seed; all policies get the same jobs."
    ] = "0-29"
    sessions: Annotated[Sessions, "T_pre is paid at every start, once per session, or never."] = (
        "cold"
    )
    preload: Annotated[bool, "Load no engine before it is needed, as idle workers do."] = True
    t_pre: Annotated[
        TPre, "T_pre is zero, proportional to the job's queries, or the same for every job."
    ] = "fixed"
    fleet: Annotated[
        dict[str, Annotated[int, Meta(ge=0, le=MAX_WORKERS)]],
        "Workers by class, such as x86=16,agx=16,nx=16; by default one of each class "
        "in the profile.",
    ] = msgspec.field(default_factory=dict)
    jobs: (
        Annotated[
            int, "Jobs of each run; 24 by default, or all of --arrivals.", Meta(ge=1, le=MAX_JOBS)
        ]
        | None
    ) = None
    load_factor: Annotated[
        float,
        OptionName("load"),
        "Arrivals relative to the experiment's, for the same fleet: with 16 workers of "
        "each class, jobs arrive 16 times as often. With --arrivals, the factor by which they are "
        "accelerated.",
        Meta(ge=MIN_LOAD, le=1000),
    ] = 1.0

    def __post_init__(self) -> None:
        if self.fleet and not any(self.fleet.values()):
            raise InvalidInput("--fleet has no workers")

    @property
    def simulated(self) -> tuple[ExperimentName, ...]:
        """The experiments that differ: with given jobs, only one."""
        return self.experiments if self.arrivals is None else self.experiments[:1]


class CapacitySettings(DemandSettings, frozen=True, kw_only=True):
    """Settings of ``synergai capacity``."""

    env_prefix = "SYNERGAI_CAPACITY_"

    violations: Annotated[
        float, "Most jobs that may miss their deadlines, in percent.", Meta(ge=0, lt=100)
    ] = 5.0
    experiment: Annotated[ExperimentName, "Experiment that gives the demand."] = "DH-FH"
    jobs: (
        Annotated[
            int,
            "Jobs of each run; 48 by default and 24 times --load beyond 2, or all of --arrivals.",
            Meta(ge=1, le=MAX_JOBS),
        ]
        | None
    ) = None
    load_factor: Annotated[
        float,
        OptionName("load"),
        "Arrivals relative to the experiment, for any fleet, or to --arrivals.",
        Meta(ge=MIN_LOAD, le=1000),
    ] = 1.0
    policy: Annotated[PolicyName, "Scheduling policy."] = "malleable"
    seeds: Annotated[
        str,
        Checked(checked_seeds),
        "One run per seed. Many seeds tell more exactly what suffices.",
    ] = "0-9"
    sessions: Annotated[Sessions, "T_pre is paid at every start, once per session, or never."] = (
        "warm"
    )


class BurstSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines burst``."""

    env_prefix = "SYNERGAI_SIMULATE_BURST_"

    seeds: Annotated[
        str, Checked(checked_seeds), "One run per seed; all that is compared gets the same queries."
    ] = "0-4"

    @property
    def drawn(self) -> tuple[int, ...]:
        return parse_seeds(self.seeds)


class AccordionSettings(BurstSettings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines accordion``."""

    env_prefix = "SYNERGAI_SIMULATE_ACCORDION_"


class InterferenceSettings(BurstSettings, frozen=True, kw_only=True):
    """Settings of ``synergai simulate pipelines interference``."""

    env_prefix = "SYNERGAI_SIMULATE_INTERFERENCE_"

    seeds: Annotated[str, Checked(checked_seeds), "One scenario per seed."] = "0-11"

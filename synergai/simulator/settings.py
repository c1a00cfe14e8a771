"""What is to be simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field, field_validator

from synergai.domain import Configuration
from synergai.errors import InvalidInput
from synergai.runtime.settings import OptionName, Settings
from synergai.scheduling.policy import POLICIES
from synergai.simulator.workload import EXPERIMENTS, Sessions, TPre

COMPARED: Final = ("rr", "srr", "lru", "mru", "be", "slo_mael", "synergai", "edf", "malleable")
RECONSTRUCTED: Final = Path(__file__).parent / "data" / "reconstructed_profile.csv"
MAX_SEEDS: Final = 10_000


def seeds_of(text: str) -> tuple[int, ...]:
    """The numbers in ``0-29`` or ``1,5,7-9``.

    Raises:
        InvalidInput: it is something else, or there are too many.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < 2**63):
            raise InvalidInput(f"{part.strip()!r} is not a seed or a range of seeds, such as 0-29")
        if len(seeds) + int(last) - int(first) >= MAX_SEEDS:
            raise InvalidInput(f"{text!r} are more than {MAX_SEEDS:,} seeds")
        seeds += range(int(first), int(last) + 1)
    return tuple(seeds)


def _known(name: str, names: list[str], what: str) -> str:
    if name not in names:
        raise InvalidInput(f"there is no {what} {name!r}; there are: {', '.join(names)}")
    return name


def _policy(name: str) -> str:
    return _known(name, POLICIES.names(), "policy")


def _experiment(name: str) -> str:
    return _known(name, list(EXPERIMENTS), "experiment")


PolicyName: TypeAlias = Annotated[str, AfterValidator(_policy)]
ExperimentName: TypeAlias = Annotated[str, AfterValidator(_experiment)]


def _seeds(text: str) -> str:
    seeds_of(text)
    return text


class SimulatorSettings(Settings, env_prefix="SYNERGAI_SIMULATE_"):
    """Settings of ``synergai simulate``."""

    profile: Path = Field(
        default=RECONSTRUCTED,
        description="Dictionary of the simulated workers: a .csv, .json or .db file. By default "
        "the thesis's, reconstructed from what it prints.",
    )
    experiments: tuple[ExperimentName, ...] = Field(
        default=tuple(EXPERIMENTS), min_length=1, description="Demand (D) and frequency (F)."
    )
    policies: tuple[PolicyName, ...] = Field(
        default=COMPARED, min_length=1, description="Who schedules."
    )
    seeds: Annotated[str, AfterValidator(_seeds)] = Field(
        default="0-29", description="One run for each, the same jobs for every policy."
    )
    sessions: Sessions = Field(
        default="cold",
        description="T_pre is paid at every start, once per session, or was paid beforehand.",
    )
    t_pre: TPre = Field(
        default="fixed", description="T_pre is as profiled, or in proportion to a job's queries."
    )
    estimate_error: float = Field(
        default=0.15,
        ge=0,
        le=2,
        description="How far real times are from the profile: the standard deviation of the "
        "logarithm of their ratio.",
    )
    predefined: dict[str, str] = Field(
        default={"agx": "mode=6", "nx": "mode=5"},
        description="Configurations by worker class for the policies that know no profile; "
        "elsewhere they take the one with the most threads.",
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON, the figures of every run, instead of tables."
    )
    plots: Path | None = Field(default=None, description="Folder for the plots.")
    bounds: bool = Field(
        default=False, description="Add the least violations that a clairvoyant could have."
    )

    @field_validator("predefined")
    @classmethod
    def _are_configurations(cls, value: dict[str, str]) -> dict[str, str]:
        for text in value.values():
            Configuration.parse(text)
        return value

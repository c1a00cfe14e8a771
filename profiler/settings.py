"""Settings of the profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from synergai.names import validate_name
from synergai.runtime.paths import default_dictionary, default_worker_class
from synergai.runtime.settings import Cores, Duration, OptionName, Settings
from worker_agent.providers.settings import Providers  # noqa: TC001 - pydantic reads it


def _worker_class(text: str) -> str:
    return validate_name(text, "worker class")


class ProfilerSettings(Settings, env_prefix="SYNERGAI_PROFILE_"):
    """Settings of ``synergai profile``."""

    models: Path = Field(default=Path("models"), description="Model directory.")
    engines: tuple[str, ...] = Field(
        default=(), description="Engines to measure; default: all usable ones."
    )
    threads: tuple[Annotated[int, Field(ge=0, le=1024)], ...] | None = Field(
        default=None,
        min_length=1,
        description="Thread counts; 0 for one per core. Default: 1; with --search 1, 2, 4, … up to "
        "the cores of each mode.",
    )
    providers: Providers = Field(
        default=(),
        description="Execution providers to measure with, such as CPU,OpenVINO; default: those "
        "that onnxruntime offers. Devices and options are set in the file.",
    )
    cores: Cores = Field(
        default=(),
        description="Cores to pin engines to, as with the agent's --cores; default: all.",
    )
    power: str = Field(
        default="auto",
        description="Power mode controller: nvpmodel, cpufreq, cgroup or none; auto selects it by "
        "the board.",
    )
    modes: tuple[str, ...] = Field(
        default=(), description="Power modes to measure in; default: all that need no reboot."
    )
    root: Path = Path("/")  # of the files of power control, such as an emulated board's
    worker_class: Annotated[str, AfterValidator(_worker_class)] = Field(
        default_factory=default_worker_class,
        description="Worker class of this machine.",
    )
    queries: int = Field(
        default=100, ge=1, le=10_000_000, description="Minimum number of queries one at a time."
    )
    min_duration: Duration = Field(
        default=10.0,
        ge=0,
        le=86_400,
        description="Minimum duration of queries one at a time, in seconds.",
    )
    search: bool = Field(
        default=False,
        description="Measure only what is needed to find the best configurations, and predict the "
        "others.",
    )
    strategy: str = Field(
        default="gp",
        description="Strategy of the search: gp, exhaustive, or a plug-in.",
    )
    strategy_options: dict[str, str] = Field(
        default={}, description="Options of the strategy, such as objective=qps."
    )
    generators: tuple[str, ...] = ("modes", "threads", "providers", "batches", "variants")
    budget: float | None = Field(
        default=None,
        ge=0,
        description="Most time of the search, as a share of measuring everything; default: 0.24, "
        "and one short measurement of each engine in any case.",
    )
    measure: Literal["all", "missing", "stale"] | None = Field(
        default=None,
        description="What to measure: all, what the dictionary lacks for this model file and "
        "runtime (missing), or what it has of another one (stale). Default: all; with --search, "
        "missing.",
    )
    dry_run: bool = Field(
        default=False, description="Only say what would be measured, and how long it would take."
    )
    while_serving: bool = Field(
        default=False, description="Measure although a worker on this machine serves."
    )
    repeat_disturbed: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="How often to repeat measurements that other processes disturbed; default: "
        "ask on a terminal, else never.",
    )
    accept_disturbed: bool = Field(
        default=False,
        description="Let a disturbed measurement replace an undisturbed one in the dictionary.",
    )
    dictionary: Path = Field(
        default_factory=default_dictionary,
        description="Dictionary to write entries to: a .db, .csv or .json file. The gateway reads "
        "the same one by default.",
    )
    output: Path = Field(
        default=Path("runs/profile"),
        description="Directory for log files of LoadGen and the engine hosts.",
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )

"""Settings of the profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from synergai.domain import validate_name
from synergai.runtime.paths import default_dictionary, default_worker_class
from synergai.runtime.settings import Cores, OptionName, Settings
from worker_agent.providers.settings import Providers  # noqa: TC001 - pydantic reads it


def _worker_class(text: str) -> str:
    return validate_name(text, "worker class")


class ProfilerSettings(Settings, env_prefix="SYNERGAI_PROFILE_"):
    """Settings of ``synergai profile``."""

    models: Path = Field(default=Path("models"), description="Model directory.")
    engines: tuple[str, ...] = Field(
        default=(), description="Engines to measure; default: all usable ones."
    )
    threads: tuple[Annotated[int, Field(ge=0, le=1024)], ...] = Field(
        default=(1,), min_length=1, description="Thread counts; 0 for one per core."
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
    root: Path = Field(
        default=Path("/"),
        description="Root of the power interface's files, such as an emulated board's.",
    )
    worker_class: Annotated[str, AfterValidator(_worker_class)] = Field(
        default_factory=default_worker_class,
        description="Worker class of this machine.",
    )
    queries: int = Field(
        default=100, ge=1, le=10_000_000, description="Minimum number of LoadGen's queries."
    )
    min_duration: float = Field(
        default=10.0,
        ge=0,
        le=86_400,
        description="Minimum duration of LoadGen's run in seconds.",
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
        default=Path("runs/profile"), description="Directory for LoadGen's log files."
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )

"""What the operator chooses about profiling."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from synergai.domain import validate_name
from synergai.runtime.paths import default_dictionary, default_worker_class
from synergai.runtime.settings import Cores, OptionName, Settings


def _worker_class(text: str) -> str:
    return validate_name(text, "worker class")


class ProfilerSettings(Settings, env_prefix="SYNERGAI_PROFILE_"):
    """Settings of ``synergai profile``."""

    models: Path = Field(default=Path("models"), description="The model directory.")
    engines: tuple[str, ...] = Field(
        default=(), description="Engines to measure; all usable ones if none is named."
    )
    threads: tuple[Annotated[int, Field(ge=0, le=1024)], ...] = Field(
        default=(1,), min_length=1, description="Thread counts; 0 is one per core."
    )
    cores: Cores = Field(
        default=(),
        description="Processor cores that engines are kept to, as the agent's --cores; all if "
        "empty.",
    )
    power: str = Field(
        default="auto",
        description="How power modes are controlled: nvpmodel, cpufreq, cgroup or none; auto "
        "chooses by the board.",
    )
    modes: tuple[str, ...] = Field(
        default=(), description="Power modes to measure in; all that need no reboot if empty."
    )
    root: Path = Field(
        default=Path("/"),
        description="Folder that stands for / in all that is about power, as an emulated board.",
    )
    worker_class: Annotated[str, AfterValidator(_worker_class)] = Field(
        default_factory=default_worker_class,
        description="What machines like this one are called.",
    )
    queries: int = Field(
        default=100, ge=1, le=10_000_000, description="LoadGen issues at least this many queries."
    )
    min_duration: float = Field(
        default=10.0, ge=0, le=86_400, description="LoadGen runs at least this long, in seconds."
    )
    dictionary: Path = Field(
        default_factory=default_dictionary,
        description="Where the entries go: a .db, .csv or .json file. The gateway reads the same "
        "one by default.",
    )
    output: Path = Field(
        default=Path("runs/profile"), description="Where LoadGen's own log files go."
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )

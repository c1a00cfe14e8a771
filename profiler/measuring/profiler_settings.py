"""Settings of the profiler."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from synergai.runtime.paths import default_dictionary, default_worker_class
from synergai.runtime.setting_types import Checked, Cores, Duration, OptionName, named
from synergai.runtime.settings import Settings
from worker_agent.power.selection import AUTO, known_controller
from worker_agent.providers import Providers


class ProfilerSettings(Settings, frozen=True, kw_only=True):
    """Settings of ``synergai profile``."""

    env_prefix = "SYNERGAI_PROFILE_"
    has_file = True

    models: Annotated[Path, "Model directory."] = Path("models")
    engines: Annotated[tuple[str, ...], "Engines to measure; default: all usable ones."] = ()
    threads: (
        Annotated[
            tuple[Annotated[int, Meta(ge=0, le=1024)], ...],
            Meta(min_length=1),
            "Thread counts; 0 for one per core. Default: 1; with --search 1, 2, 4, … up to "
            "the cores of each mode.",
        ]
        | None
    ) = None
    providers: Annotated[
        Providers,
        "Execution providers to measure with, such as CPU,OpenVINO; default: CPU. "
        "Options are set in the file.",
    ] = ()
    cores: Annotated[
        Cores, "Cores to pin engines to, as with the agent's --cores; default: all."
    ] = ()
    power: Annotated[
        str,
        Checked(known_controller),
        "Power mode controller: nvpmodel, cgroup or none; auto selects it by the board.",
    ] = AUTO
    modes: Annotated[
        tuple[str, ...], "Power modes to measure in; default: all that need no reboot."
    ] = ()
    root: Path = Path("/")  # of the files of power control, such as an emulated board's
    worker_class: Annotated[str, named("worker class"), "Worker class of this machine."] = (
        msgspec.field(default_factory=default_worker_class)
    )
    queries: Annotated[
        int, "Minimum number of queries one at a time.", Meta(ge=1, le=10_000_000)
    ] = 100
    min_duration: Annotated[
        Duration, "Minimum duration of queries one at a time, in seconds.", Meta(ge=0, le=86_400)
    ] = 10.0
    search: Annotated[
        bool, "Measure only what is needed to find the best configurations, and predict the others."
    ] = False
    stages: Annotated[
        bool, "Measure both sides of every third seam of ONNX engines, to predict their stages."
    ] = False
    objective: Annotated[
        Literal["qps", "front"],
        "What --search looks for: the highest QPS, or the front of QPS against QPS per watt.",
    ] = "front"
    budget: (
        Annotated[
            float,
            "Most time of the search, as a share of measuring everything; default: 0.24, "
            "and one short measurement of each engine in any case.",
            Meta(ge=0),
        ]
        | None
    ) = None
    measure: Annotated[
        Literal["all", "missing"] | None,
        "What to measure: all, or what the dictionary lacks for this model file and "
        "runtime (missing). Default: all; with --search, missing.",
    ] = None
    dry_run: Annotated[bool, "Only say what would be measured, and how long it would take."] = False
    dictionary: Annotated[
        Path,
        "Dictionary to write entries to, a .db file. The gateway reads "
        "the same one by default; with --state DIR, DIR/dictionary.db.",
    ] = msgspec.field(default_factory=default_dictionary)
    output: Annotated[Path, "Directory for log files of LoadGen and the engine hosts."] = Path(
        "runs/profile"
    )
    as_json: Annotated[bool, OptionName("json"), "Print JSON instead of a table."] = False

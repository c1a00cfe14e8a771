"""Settings of a LoadGen run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from synergai.errors import InvalidInput
from synergai.loadgen.target_settings import TargetSettings
from synergai.runtime.settings import Duration, OptionName

_SCENARIOS: Final = {
    "rate": ("Server", "Offline"),
    "samples_per_query": ("MultiStream",),
    "window": ("Offline",),
}
"""The scenarios that a setting applies to."""
_NEEDS: Final = {
    "enforce": "qos_ms",
    "dataset": "data",
    "data": "dataset",
    "mlperf_model": "user_conf",
}
"""The setting that each setting requires."""


class LoadgenSettings(TargetSettings, env_prefix="SYNERGAI_LOADGEN_"):
    """Settings of ``synergai loadgen``."""

    scenario: Literal["SingleStream", "MultiStream", "Server", "Offline"] = Field(
        default="SingleStream",
        description="MLPerf scenario: one sample at a time, several samples at a time, Poisson "
        "arrivals, or all samples at once.",
    )
    mode: Literal["performance", "accuracy"] = Field(
        default="performance",
        description="Measure performance, or send every sample once to measure accuracy.",
    )
    rate: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Server: queries per second. Offline: expected samples per second, from which "
        "LoadGen derives the size of its query.",
    )
    samples_per_query: int = Field(
        default=8, ge=1, le=4096, description="MultiStream: samples per query."
    )
    window: int = Field(
        default=64,
        ge=1,
        le=65_536,
        description="Offline: limit of samples in flight.",
    )
    queries: int = Field(default=100, ge=1, le=10_000_000, description="Minimum number of queries.")
    min_duration: Duration = Field(
        default=10.0, ge=0, le=86_400, description="Minimum duration in seconds."
    )
    qos_ms: float | None = Field(
        default=None,
        gt=0,
        description="QoS time in milliseconds, beyond which a query is a violation; in Server also "
        "LoadGen's latency bound.",
    )
    enforce: bool = Field(
        default=False,
        description="Send the QoS time as each query's deadline; the gateway drops expired ones.",
    )
    query_timeout: Duration = Field(
        default=60.0, gt=0, description="Abort if no query completes for this long, in seconds."
    )
    user_conf: Path | None = Field(
        default=None,
        description="LoadGen's user.conf, read after MLPerf's mlperf.conf; explicit options "
        "override both.",
    )
    mlperf_model: str = Field(
        default="",
        description="The engine's name in these files, such as resnet50; default: the engine's "
        "own name.",
    )
    dataset: Literal["imagenet", "coco"] | None = Field(
        default=None, description="Data set whose images to send, as files."
    )
    data: Path | None = Field(
        default=None, description="Directory of the data set, in MLPerf's layout."
    )
    output: Path = Field(
        default=Path("runs/loadgen"), description="Directory for LoadGen's log files."
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        """Reject options that do not apply, before anything is loaded."""
        self.check_applicable("scenario", _SCENARIOS)
        for name, needed in _NEEDS.items():
            if getattr(self, name) and not getattr(self, needed):
                raise InvalidInput(
                    f"--{self.option_name(name)} requires --{self.option_name(needed)}"
                )
        if self.dataset and self.samples:
            raise InvalidInput("--samples and --dataset exclude each other; give one of them")
        if self.scenario == "Server" and not (self.rate or self.user_conf):
            raise InvalidInput("--scenario Server requires --rate, its queries per second")
        return self

    def to_json(self) -> str:
        """Return the explicitly given settings as JSON, for the process of the run."""
        return self.model_dump_json(exclude_unset=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the output of `to_json`; ``model_fields_set`` is preserved."""
        # Not model_validate_json: it would validate the defaults as JSON, and a Path is not.
        return cls.model_validate(json.loads(text))

"""What can be chosen about a LoadGen run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from synergai.errors import InvalidInput
from synergai.loadgen.target_settings import TargetSettings
from synergai.runtime.settings import OptionName

_SCENARIOS: Final = {
    "rate": ("Server", "Offline"),
    "samples_per_query": ("MultiStream",),
    "window": ("Offline",),
}
"""The scenarios that know a setting; the others would pass over it in silence."""
_NEEDS: Final = {
    "enforce": "qos_ms",
    "dataset": "data",
    "data": "dataset",
    "mlperf_model": "user_conf",
}
"""What a setting is nothing without."""


class LoadgenSettings(TargetSettings, env_prefix="SYNERGAI_LOADGEN_"):
    """Settings of ``synergai loadgen``."""

    scenario: Literal["SingleStream", "MultiStream", "Server", "Offline"] = Field(
        default="SingleStream",
        description="MLPerf's scenario: one query at a time, several samples at a time, queries at "
        "random instants, or all samples at once.",
    )
    mode: Literal["performance", "accuracy"] = Field(
        default="performance",
        description="Measure time, or send every sample once and keep the answers.",
    )
    rate: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        description="Server: queries per second. Offline: expected samples per second, by which "
        "LoadGen sizes its one query.",
    )
    samples_per_query: int = Field(
        default=8, ge=1, le=4096, description="MultiStream: samples in each query."
    )
    window: int = Field(
        default=64,
        ge=1,
        le=65_536,
        description="Offline: how many samples may be on their way at once.",
    )
    queries: int = Field(
        default=100, ge=1, le=10_000_000, description="Issue at least this many queries."
    )
    min_duration: float = Field(
        default=10.0, ge=0, le=86_400, description="Run for at least this long, in seconds."
    )
    qos_ms: float | None = Field(
        default=None,
        gt=0,
        description="A query that takes longer is a violation; LoadGen's own bound in Server.",
    )
    enforce: bool = Field(
        default=False,
        description="Tell the gateway the QoS as each query's deadline: it drops late ones.",
    )
    query_timeout: float = Field(
        default=60.0, gt=0, description="Give up if no query is answered for so long, in seconds."
    )
    user_conf: Path | None = Field(
        default=None,
        description="LoadGen's user.conf, read after MLPerf's own mlperf.conf; options that are "
        "given come before both.",
    )
    mlperf_model: str = Field(
        default="",
        description="The engine's name in these files, such as resnet50, if it is another.",
    )
    dataset: Literal["imagenet", "coco"] | None = Field(
        default=None, description="Send the images of this data set instead, as files."
    )
    data: Path | None = Field(
        default=None, description="Your copy of the data set; its layout is MLPerf's."
    )
    output: Path = Field(
        default=Path("runs/loadgen"), description="Where LoadGen's own log files go."
    )
    as_json: Annotated[bool, OptionName("json")] = Field(
        default=False, description="Print JSON instead of a table."
    )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Refuse what LoadGen or the samples would be asked in vain, before anything is loaded."""
        self.check_applicable("scenario", _SCENARIOS)
        for name, needed in _NEEDS.items():
            if getattr(self, name) and not getattr(self, needed):
                raise InvalidInput(f"--{self.option_name(name)} needs --{self.option_name(needed)}")
        if self.dataset and self.samples:
            raise InvalidInput("--samples and --dataset are two things to send; give one of them")
        if self.scenario == "Server" and not (self.rate or self.user_conf):
            raise InvalidInput("--scenario Server needs its queries per second: --rate")
        return self

    def packed(self) -> str:
        """What was given, as JSON for the process of the run."""
        return self.model_dump_json(exclude_unset=True)

    @classmethod
    def unpacked(cls, text: str) -> Self:
        """The settings that were packed; what was given is still told from what was not."""
        # Not model_validate_json: it wants JSON of the defaults as well, and a path is none.
        return cls.model_validate(json.loads(text))

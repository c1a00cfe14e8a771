"""Scheduling options. Type, default, range and help text of each are declared here only."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SchedulingOptions(BaseModel):
    """Options for operators; the gateway's settings inherit them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str = Field(default="malleable", description="Name of the scheduling policy.")
    strict: bool = Field(
        default=False,
        description="Never interrupt a job for a request, as in the thesis. By default a request "
        "runs between two queries of a job if no worker is free.",
    )
    policy_options: dict[str, str] = Field(
        default_factory=dict, description="Options of the scheduling policy."
    )
    objective: Literal["latency", "energy"] = Field(
        default="latency",
        description="Choice among assignments that meet the deadline: earliest completion, or "
        "least energy by the dictionary's watts.",
    )
    infeasible: Literal["defer", "reject"] = Field(
        default="defer",
        description="Handling of jobs that no worker can complete in time: run last, or reject.",
    )
    pace_half_life_s: float = Field(
        default=2.0,
        gt=0.0,
        description="Half-life, in run time, of earlier observations of a worker's pace.",
    )
    reassess_s: float = Field(
        default=1.0,
        gt=0.0,
        description="Interval at which queued jobs are reranked as paces change.",
    )
    fair_burst_s: float = Field(
        default=60.0,
        ge=0.0,
        description="Worker time that a tenant may use beyond its equal share before its jobs "
        "yield to those of other tenants at the same priority; inf turns fair sharing off.",
    )
    fair_half_life_s: float = Field(
        default=300.0,
        gt=0.0,
        description="Half-life of the worker time that a tenant has used.",
    )
    mode_switch_s: float = Field(
        default=5.0,
        ge=0.0,
        description="Assumed duration of a worker's power mode switch until one was measured.",
    )
    max_faults: int = Field(
        default=3,
        ge=1,
        description="Number of failed assignments, without progress in between, that fail a job.",
    )


class SchedulingSettings(SchedulingOptions):
    """All settings of the core: the options, and values that a deployed gateway never changes.

    Deferring infeasible jobs and the latency objective are the thesis's; `reassess_s` is its
    period of updates.
    """

    prefetch_s: float = Field(
        default=0.02,
        ge=0.0,
        description="Remaining work at which a worker gets its next assignment, to hide network "
        "latency.",
    )
    prefetch_count: int = Field(
        default=64, ge=1, description="Maximum number of assignments per worker."
    )
    probe_queries: int = Field(
        default=16, ge=1, description="Number of queries that measure an unprofiled engine."
    )
    pace_trust: float = Field(
        default=0.25,
        gt=0.0,
        le=1.0,
        description="Maximum weight of a single assignment in a worker's pace.",
    )

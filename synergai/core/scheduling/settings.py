"""Settings of the scheduling core. Type, default, range and help of each are declared here only.

`msgspec.convert` checks the ranges; the constructors do not.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class SchedulingSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the core; those without a description are for tests and experiments.

    Deferring infeasible jobs and the latency objective are the thesis's; `reassess_s` is its
    period of updates.

    Attributes:
        stuck_s: time without progress, in addition to eight times the expected, after which a
            worker's assignments run elsewhere and it gets no new ones for a while; inf for never.
        max_faults: number of failed assignments, without progress in between, that fail a job.
        pace_half_life_s: half-life, in run time, of earlier observations of a worker's pace.
        reassess_s: interval at which queued jobs are reranked as paces change.
        fair_burst_s: worker time that a tenant may use beyond its equal share before its jobs yield
            to those of other tenants at the same priority.
        fair_half_life_s: half-life of the worker time that a tenant has used.
        mode_switch_s: assumed duration of a worker's power mode switch until one was measured.
        prefetch_s: remaining work at which a worker gets its next assignment, to hide network
            latency.
        prefetch_count: maximum number of assignments per worker; batches have their own limit.
        probe_queries: number of queries that measure an unprofiled engine.
        pace_trust: maximum weight of a single assignment in a worker's pace.
    """

    policy: Annotated[str, "Name of the scheduling policy."] = "malleable"
    strict: Annotated[
        bool,
        "Never interrupt a job for a request, as in the thesis. By default a "
        "request runs between two queries of a job if no worker is free.",
    ] = False
    objective: Annotated[
        Literal["accuracy", "latency", "energy"],
        "Choice among assignments that meet the deadline: earliest completion with "
        "the most accurate variants that load allows (accuracy) or with the fastest (latency), "
        "or least energy by the dictionary's watts.",
    ] = "accuracy"
    preload: Annotated[
        bool,
        "Load no engine before it is needed. By default, idle workers load the likeliest as far as "
        "memory suffices. Variants of an engine in use are preloaded in any case with the "
        "objective accuracy.",
    ] = True
    infeasible: Annotated[
        Literal["defer", "reject"],
        "Handling of jobs that no worker can complete in time: run last, or reject.",
    ] = "defer"
    fair_burst_s: Annotated[float, Meta(ge=0.0)] = 60.0
    policy_options: dict[str, str] = {}
    stuck_s: Annotated[float, Meta(gt=0.0)] = 10.0
    max_faults: Annotated[int, Meta(ge=1)] = 3
    pace_half_life_s: Annotated[float, Meta(gt=0.0)] = 2.0
    reassess_s: Annotated[float, Meta(gt=0.0)] = 1.0
    fair_half_life_s: Annotated[float, Meta(gt=0.0)] = 300.0
    mode_switch_s: Annotated[float, Meta(ge=0.0)] = 5.0
    prefetch_s: Annotated[float, Meta(ge=0.0)] = 0.02
    prefetch_count: Annotated[int, Meta(ge=1)] = 64
    probe_queries: Annotated[int, Meta(ge=1)] = 16
    pace_trust: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.25

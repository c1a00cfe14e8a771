"""Live experiments: a real gateway with agent processes and emulated engines.

Everything but the computation is real, sped up by a scale. Jobs arrive and deviate from the
profile as in the simulation.
"""

from __future__ import annotations

import asyncio
from inspect import signature
from typing import TYPE_CHECKING, Final

from benchmarks.live_experiment.emulation import Emulation
from benchmarks.live_experiment.recording import read_recording
from demo.local_fleet import LocalFleet
from profiler.simulator.workload import QUERY_COUNTS
from synergai.client.client import Client
from synergai.core.scheduling.policies import POLICIES
from synergai.core.scheduling.settings import SchedulingSettings
from synergai.errors import InvalidInput, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from benchmarks.live_experiment.recording import Recording
    from profiler.simulator.workload import Workload
    from synergai.domain import Job

_MEMORY_MB: Final = 16_384
"""Room for every session: emulated engines are small, and simulated ones are never evicted."""
_JOIN_TIMEOUT_S: Final = 120.0
_TIMEOUT_MARGIN_S: Final = 60.0


def run_live(workload: Workload, policy: str, scale: float, directory: Path) -> Recording:
    """Run a workload on a real gateway and read the result from its event log.

    Args:
        workload: with numbered configurations and warm or prewarmed sessions.
        directory: for models, state and logs; empty or new.
    """
    if workload.sessions == "cold" or workload.t_pre != "fixed":
        raise InvalidInput(
            "live workers keep sessions loaded and pay the full T_pre: "
            "use warm or prewarmed sessions and a fixed T_pre"
        )
    emulation = Emulation(workload, scale, directory)
    emulation.write()
    log = directory / "events.jsonl"
    with LocalFleet(directory) as fleet:
        fleet.start_gateway(
            [
                *("--dictionary", str(emulation.dictionary)),
                *("--policy", policy),
                *("--event-log", str(log)),
            ],
            prefix=("env", *_internal_settings(policy, scale)),
        )
        for worker_class in workload.profile.classes:
            warm = {}
            if workload.sessions == "prewarmed":
                warm = emulation.pin_options(worker_class)
            fleet.start_agent(
                worker_class,
                models=emulation.models(worker_class),
                worker_class=worker_class,
                options=[
                    *("--power", "none"),
                    *("--threads", ",".join(map(str, emulation.threads(worker_class)))),
                    *("--memory-mb", str(_MEMORY_MB)),
                    *(("--pin", _pairs(warm)) if warm else ()),
                ],
            )
        fleet.wait_for_workers(len(workload.profile.classes), _JOIN_TIMEOUT_S)
        jobs = asyncio.run(_submit_all(emulation, fleet.address))
    return read_recording(log, workload, policy, scale, jobs)


async def _submit_all(emulation: Emulation, address: str) -> dict[str, Job]:
    """Submit each job when it is due and wait for all; return them by gateway job id."""
    workload, scale = emulation.workload, emulation.scale
    loop = asyncio.get_running_loop()
    submitted: dict[str, Job] = {}
    started = loop.time() - workload.jobs[0].arrival / scale
    async with Client(address) as client:
        for job in workload.jobs:
            await asyncio.sleep(started + job.arrival / scale - loop.time())
            qos = (job.deadline - job.arrival) / scale
            handle = await client.submit(job.engine, queries=job.queries, qos=qos)
            emulation.write_pace(job, handle.id)
            submitted[handle.id] = job
        try:
            async with asyncio.timeout(_serial_time_s(workload) / scale + _TIMEOUT_MARGIN_S):
                for job_id in submitted:
                    await client.job(job_id).wait()
        except TimeoutError:
            raise Unavailable(
                f"the jobs did not finish in time; see the logs in {emulation.directory}"
            ) from None
    return submitted


def _serial_time_s(workload: Workload) -> float:
    """Return the time of all jobs in series, each in its slowest configuration."""
    profile = workload.profile
    return sum(
        workload.factors[job.id, name] * (entry.t_pre_s + QUERY_COUNTS[0] / entry.qps)
        for job in workload.jobs
        for name in profile.classes
        for entry in profile.entries(job.engine, name)
    )


def _scaled_options(policy: str, scale: float) -> dict[str, str]:
    """Return the policy's durations (options that end in ``_s``) divided by `scale`."""
    return {
        name: str(float(parameter.default) / scale)
        for name, parameter in signature(POLICIES.get(policy)).parameters.items()
        if name.endswith("_s")
    }


def _internal_settings(policy: str, scale: float) -> Iterator[str]:
    """Yield environment variables that divide the scheduler's time constants by `scale`."""
    defaults = SchedulingSettings()
    for name in ("pace_half_life_s", "reassess_s"):
        yield f"SYNERGAI_GATEWAY_{name.upper()}={getattr(defaults, name) / scale}"
    if scaled := _scaled_options(policy, scale):
        yield f"SYNERGAI_GATEWAY_POLICY_OPTIONS={_pairs(scaled)}"


def _pairs(values: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in values.items())

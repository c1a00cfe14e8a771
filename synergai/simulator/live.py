"""The thesis's experiments on a real gateway: agents in processes of their own, emulated engines.

Everything but the computation is real, and goes faster than the profile by a scale. The same
jobs arrive as in the simulation, and deviate from the profile as they do there.
"""

from __future__ import annotations

import asyncio
from inspect import signature
from typing import TYPE_CHECKING, Final

from synergai.client.client import Client
from synergai.errors import InvalidInput, Unavailable
from synergai.scheduling.events import SchedulingSettings
from synergai.scheduling.policy import POLICIES
from synergai.simulator.emulation import Emulation
from synergai.simulator.recording import read_recording
from synergai.simulator.workload import QUERY_COUNTS
from synergai.testing import LocalFleet

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from synergai.domain import Job
    from synergai.simulator.recording import Recording
    from synergai.simulator.workload import Workload

_MEMORY_MB: Final = 16_384
"""Room for every session: emulated engines are small, and the simulated ones never leave."""
_JOINED_AFTER_S: Final = 120.0
_MARGIN_S: Final = 60.0


def run_live(
    workload: Workload, policy: str, scale: float, directory: Path, options: Mapping[str, str]
) -> Recording:
    """Run a workload through a real gateway, and read from its event log what happened.

    Args:
        workload: of a `numbered` profile; its sessions are warm or prewarmed.
        policy: what schedules it.
        scale: how many times faster than the profile it goes.
        directory: for models, state and logs; empty or new.
        options: of the policy, in the profile's time; among them, by worker class, the
            configurations that it has predefined.

    Raises:
        InvalidInput: the sessions are to be cold, or T_pre not fixed.
        Unavailable: a process did not start, or the jobs did not end.
    """
    if workload.sessions == "cold" or workload.t_pre != "fixed":
        raise InvalidInput(
            "real workers keep what they have loaded, and pay all of T_pre to load it: "
            "a live experiment has warm or prewarmed sessions, and a fixed T_pre"
        )
    emulation = Emulation(workload, scale, directory)
    emulation.write()
    log = directory / "events.jsonl"
    with LocalFleet(directory) as fleet:
        fleet.start_gateway(
            [
                *("--dictionary", str(emulation.dictionary)),
                *("--policy", policy),
                *_spelled("--policy-options", _sped_up(policy, options, scale)),
                *_paces_sped_up(scale),
                *("--event-log", str(log)),
            ]
        )
        for worker_class in workload.profile.classes:
            warm = {}
            if workload.sessions == "prewarmed":
                warm = emulation.preload(worker_class, options.get(worker_class, ""))
            fleet.start_agent(
                worker_class,
                models=emulation.models(worker_class),
                worker_class=worker_class,
                options=[
                    *("--power", "none"),
                    *("--threads", ",".join(map(str, emulation.threads(worker_class)))),
                    *("--memory-mb", str(_MEMORY_MB)),
                    *_spelled("--preload", warm),
                ],
            )
        fleet.wait_for_workers(len(workload.profile.classes), _JOINED_AFTER_S)
        jobs = asyncio.run(_submit(emulation, fleet.address))
    return read_recording(log, workload, policy, scale, jobs)


async def _submit(emulation: Emulation, address: str) -> dict[str, Job]:
    """Submit each job when it is due, and wait for all; the jobs by the ids that they got."""
    workload, scale = emulation.workload, emulation.scale
    loop = asyncio.get_running_loop()
    submitted: dict[str, Job] = {}
    began = loop.time() - workload.jobs[0].arrival / scale
    async with Client(address) as client:
        for job in workload.jobs:
            await asyncio.sleep(began + job.arrival / scale - loop.time())
            qos = (job.deadline - job.arrival) / scale
            handle = await client.submit(job.engine, queries=job.queries, qos=qos)
            emulation.reveal(job, handle.id)
            submitted[handle.id] = job
        try:
            async with asyncio.timeout(_longest_s(workload) / scale + _MARGIN_S):
                for job_id in submitted:
                    await client.job(job_id).wait()
        except TimeoutError:
            raise Unavailable(
                f"the jobs do not come to an end; see the logs in {emulation.directory}"
            ) from None
    return submitted


def _longest_s(workload: Workload) -> float:
    """What all jobs would take one after the other, each in its slowest configuration."""
    profile = workload.profile
    return sum(
        workload.factors[job.id, name] * (entry.t_pre_s + QUERY_COUNTS[0] / entry.qps)
        for job in workload.jobs
        for name in profile.classes
        for entry in profile.entries(job.engine, name)
    )


def _sped_up(policy: str, options: Mapping[str, str], scale: float) -> dict[str, str]:
    """The options of a policy, given or by default; by our naming, those in ``_s`` are times."""
    found = dict(options)
    for name, parameter in signature(POLICIES.get(policy)).parameters.items():
        if name.endswith("_s"):
            found[name] = str(float(found.get(name, parameter.default)) / scale)
    return found


def _paces_sped_up(scale: float) -> list[str]:
    """What the scheduler's own times are in an experiment that goes faster."""
    usual = SchedulingSettings()
    return [
        *("--pace-half-life-s", str(usual.pace_half_life_s / scale)),
        *("--reassess-s", str(usual.reassess_s / scale)),
    ]


def _spelled(option: str, pairs: Mapping[str, str]) -> list[str]:
    return [option, ",".join(f"{key}={value}" for key, value in pairs.items())] if pairs else []

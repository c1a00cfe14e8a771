"""Many simulations: every policy on every experiment and seed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from synergai.profiles.files import load_dictionary
from synergai.simulator.audit import audit
from synergai.simulator.results import Result, result_of
from synergai.simulator.settings import seeds_of
from synergai.simulator.simulation import settings_for, simulate
from synergai.simulator.workload import EXPERIMENTS, Profile, draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from synergai.simulator.settings import SimulatorSettings
    from synergai.simulator.simulation import Run
    from synergai.simulator.workload import Workload

PREDEFINED: Final = ("be", "lru", "mru", "rr", "slo_mael", "srr")


def profile_of(settings: SimulatorSettings) -> Profile:
    """The profile that the settings name.

    Raises:
        NotFound: there is no such file.
        InvalidInput: it is no dictionary, or no engine is profiled on all worker classes.
    """
    return Profile(load_dictionary(settings.profile))


def workload_of(
    settings: SimulatorSettings, profile: Profile, experiment: str, seed: int
) -> Workload:
    """One experiment's workload, as the settings want it."""
    return draw(
        profile,
        EXPERIMENTS[experiment],
        seed,
        sessions=settings.sessions,
        t_pre=settings.t_pre,
        estimate_error=settings.estimate_error,
    )


def run(settings: SimulatorSettings, workload: Workload, policy: str) -> Run:
    """Simulate one policy and audit what it did."""
    known = set(workload.profile.classes)
    options = {name: text for name, text in settings.predefined.items() if name in known}
    ran = simulate(workload, settings_for(policy, options if policy in PREDEFINED else None))
    audit(ran)
    return ran


def sweep(settings: SimulatorSettings, profile: Profile) -> Iterator[Result]:
    """Simulate everything that the settings ask for, and measure it.

    Raises:
        AuditFailed: a run could not have happened.
    """
    for experiment in settings.experiments:
        for seed in seeds_of(settings.seeds):
            workload = workload_of(settings, profile, experiment, seed)
            bound = None
            if settings.bounds:
                from synergai.simulator.bounds import violations_at_least

                bound = violations_at_least(workload)
            for policy in settings.policies:
                result = result_of(run(settings, workload, policy))
                yield replace(result, violations_at_least=bound)

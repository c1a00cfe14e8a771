"""Scheduling cores with workers, and what they command."""

from collections.abc import Iterable

import msgspec

from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from synergai.scheduling.core import SchedulerCore
from synergai.scheduling.events import Assignment, Command, Dispatch, Worker, WorkerJoined
from synergai.scheduling.settings import SchedulingSettings


def make_core(
    entries: Iterable[ProfileEntry], workers: Iterable[Worker] = (), **settings: object
) -> SchedulerCore:
    """Return a core that has a profile, with workers that joined at 0 s."""
    core = SchedulerCore(
        msgspec.convert(settings, SchedulingSettings), ConfigurationDictionary(entries)
    )
    for worker in workers:
        core.handle(WorkerJoined(worker), 0.0)
    return core


def dispatched(commands: Iterable[Command]) -> list[Assignment]:
    """Return the assignments that are sent to workers."""
    return [command.assignment for command in commands if isinstance(command, Dispatch)]

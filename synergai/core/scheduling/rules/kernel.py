"""The kernel: what all rules share."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from synergai.core.scheduling.policy import View
from synergai.core.scheduling.registry import POLICIES
from synergai.core.scheduling.rules.wait_queue import WaitQueue
from synergai.core.scheduling.state.sizes import SessionSizes

if TYPE_CHECKING:
    from collections.abc import Callable

    from synergai.core.scheduling.events import Command
    from synergai.core.scheduling.policy import Policy
    from synergai.core.scheduling.settings import SchedulingSettings
    from synergai.core.scheduling.state.jobs import JobRecord
    from synergai.core.scheduling.state.workers import WorkerRecord
    from synergai.profiles.dictionary import ConfigurationDictionary


class State(View):
    """What policies see, and what only rules change. Every rule receives it.

    Attributes:
        timers: heap of instants, with what is to be called then, before decisions; see `call_at`.
        forget_worker: called with a worker that has left.
        forget_job: called with a job that has left the system. Of single requests, rules keep
            nothing.
    """

    def __init__(self, settings: SchedulingSettings, dictionary: ConfigurationDictionary) -> None:
        super().__init__(settings, dictionary)
        self.dictionary = dictionary
        self.policy: Policy = POLICIES.create(settings.policy, settings.policy_options)
        self.waiting = WaitQueue(self, self.policy)
        self.sizes = SessionSizes()
        self.commands: list[Command] = []
        self.timers: list[tuple[float, int, Callable[[], None], JobRecord | None]] = []
        self._timed = 0
        self._most_timers = 64
        self.forget_worker: list[Callable[[WorkerRecord], None]] = []
        self.forget_job: list[Callable[[JobRecord], None]] = []

    def call_at(self, at: float, call: Callable[[], None], job: JobRecord | None = None) -> None:
        """Call a rule back at an instant, unless `job` has left the system."""
        self._timed += 1
        heapq.heappush(self.timers, (at, self._timed, call, job))
        if len(self.timers) > self._most_timers:
            # Most requests end long before their deadline.
            self.timers = [
                timer for timer in self.timers if timer[3] is None or not timer[3].removed
            ]
            heapq.heapify(self.timers)
            self._most_timers = 2 * len(self.timers) + 64

    def call_timers(self) -> None:
        """Call what is due."""
        while self.next_timer() <= self.now:
            heapq.heappop(self.timers)[2]()

    def next_timer(self) -> float:
        """Return when a rule is called back next; infinite if none is."""
        timers = self.timers
        while timers and (job := timers[0][3]) is not None and job.removed:
            heapq.heappop(timers)
        return timers[0][0] if timers else math.inf

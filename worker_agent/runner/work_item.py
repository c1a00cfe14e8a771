"""Work items and their lifecycle."""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from synergai.domain import BatchTimes, Session
    from synergai.protocol.request_codec import Buffer
    from worker_agent.hosts.process import HostProcess
    from worker_agent.runner.inputs import InputQueue
    from worker_agent.runner.reporting import AssignmentReporter, Failure, ItemReporter


class WorkState(enum.IntEnum):
    """Lifecycle of a work item in the runner; see `TRANSITIONS`."""

    QUEUED = enum.auto()
    """None of its queries has been fed to a host."""
    FEEDING = enum.auto()
    """Some of its queries have been fed to a host, others have not."""
    DRAINING = enum.auto()
    """No more queries are fed; runs are in flight."""
    ENDED = enum.auto()
    """The outcome has been reported."""


# Aliases for the runner's hot path: accessing an enum member by name is a call in Python 3.11.
QUEUED: Final = WorkState.QUEUED
FEEDING: Final = WorkState.FEEDING
DRAINING: Final = WorkState.DRAINING
ENDED: Final = WorkState.ENDED

TRANSITIONS: Final[Mapping[WorkState, frozenset[WorkState]]] = {
    QUEUED: frozenset((FEEDING, DRAINING, ENDED)),  # it ends at once if its engine cannot run
    FEEDING: frozenset((DRAINING,)),
    DRAINING: frozenset((ENDED,)),
    ENDED: frozenset(),
}


@dataclass(slots=True, kw_only=True, eq=False)
class WorkItem:
    """Queries on one engine: single requests, a range of its sample set, or inputs that follow.

    The first group of attributes describes the work; the second is maintained by the runner.

    Attributes:
        due: instant on the monotonic clock by which a shared batch must be computed.
        concurrent: it is a single request that waits for no item of another session; see
            ``runner``.
        inputs: inputs that arrive while the item runs; None for requests and ranges. One that fails
            does not fail the item.

        failed_inputs: failed inputs behind queries that have not ended yet, by query.
    """

    session: Session
    handler: AssignmentReporter
    requests: Sequence[Buffer] = ()
    first: int = 0
    count: int = 1
    job: str = ""
    batch_times: BatchTimes | None = None
    due: float = math.inf
    inputs: InputQueue | None = None
    concurrent: bool = False

    state: WorkState = field(default=QUEUED, init=False)
    host: HostProcess | None = field(default=None, init=False)
    fed: int = field(default=0, init=False)
    in_flight: int = field(default=0, init=False)
    failed_inputs: deque[tuple[int, Failure]] = field(default_factory=deque, init=False)
    failure: Failure | None = field(default=None, init=False)
    reporter: ItemReporter = field(init=False)

    def enter(self, state: WorkState) -> None:
        """Change the state."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"work item: {self.state.name} before {state.name}")
        self.state = state

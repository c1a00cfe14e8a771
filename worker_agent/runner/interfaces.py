"""Interfaces of the runner: the engine hosts it uses, and the handlers it reports to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from synergai.domain import Fault

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from synergai.domain import BatchTimes, Outcome, Session
    from synergai.protocol.request_codec import Buffer
    from worker_agent.ipc.frames import RunEnded, Tally

    OnEnded: TypeAlias = Callable[[RunEnded], None]
    OnProgress: TypeAlias = Callable[[Tally], None]


class Failure(NamedTuple):
    """Reason why a work item failed."""

    fault: Fault
    detail: str


class EngineHost(Protocol):
    """An engine host as seen by the runner; see `worker_agent.hosts.process.HostProcess`."""

    @property
    def is_closed(self) -> bool:
        """Whether the host has exited, is closing or is retired; it accepts no runs."""

    def has_room(self, size: int) -> bool:
        """Return whether a query of `size` bytes can be fed now."""

    def run_query(
        self,
        request: Buffer,
        on_ended: OnEnded,
        batch_times: BatchTimes | None = None,
        due: float = ...,
        variant: str = "",
    ) -> int:
        """Feed one query, which may share a batch if it has `batch_times`; return the run id."""

    def run_samples(
        self,
        first: int,
        count: int,
        on_progress: OnProgress,
        on_ended: OnEnded,
        job: str = "",
        batch: int = 1,
        variant: str = "",
    ) -> int:
        """Feed the queries [first, first + count) of the sample set; return the run id."""

    def stop_run(self, run_id: int, *, abort: bool = False) -> None:
        """Stop a run before its next query, or abort a query that runs; no-op if it has ended."""


class HostSource(Protocol):
    """The engine hosts of a machine; see `worker_agent.hosts.power_modes.PowerModeHosts`."""

    def get_resident(self, session: Session) -> EngineHost | None:
        """Return the host of `session` if it is resident, and mark it as used."""

    def load(self, session: Session) -> asyncio.Future[Any]:
        """Load `session`; the future raises EngineUnusable, Unavailable, or is cancelled."""


class WorkHandler(Protocol):
    """Receives the reports on one work item, always in this order.

    ``on_started`` at most once, ``on_progress`` any number of times, ``on_ended`` exactly once.
    """

    def on_started(self, setup_s: float) -> None:
        """Handle the end of the setup, which took `setup_s` seconds."""

    def on_input_failed(self, query: int, failure: Failure) -> None:
        """Note that a query, counted from the item's first, failed, which the item survives.

        The next report has an empty response for it.
        """

    def on_progress(self, tally: Tally, responses: Sequence[bytes]) -> None:
        """Handle the counts so far and the responses since the previous report."""

    def on_ended(
        self,
        outcome: Outcome,
        tally: Tally,
        responses: Sequence[bytes],
        fault: Fault = Fault.UNSPECIFIED,
        detail: str = "",
    ) -> None:
        """Handle the outcome, the final counts and the remaining responses."""

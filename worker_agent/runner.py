"""Runs work items on the engine hosts.

Invariants:

- Items run in the order received, and on different hosts strictly one after the other: a worker's
  profile assumes that an engine has the machine to itself. Concurrent requests do not wait: they
  are fed to their hosts at once while their sessions are resident, in the power mode of what runs.
  The gateway allows that if the cores suffice.
- Consecutive items on the same host are fed to it without waiting, so that the host is never idle
  while there is work for it. The resident variants of an engine share a host, so that changing
  between them costs nothing.
- A host ends runs in the order in which they were fed, even if it computes them in one batch, so
  the completed queries of an item are always a prefix of it.
- Every item ends exactly once, unless it is abandoned.

Where an item is follows from its state: ``QUEUED`` items are in the queue, or are concurrent
ones without room in their hosts yet; a ``FEEDING`` item is at its head and among the running ones,
and ``DRAINING`` items are only among the running ones. Single queries are never ``FEEDING``.

The runner has neither tasks nor a clock; it acts when work is added and when a host or a
load calls back.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from synergai.domain import Engine, EngineName, Fault, Outcome, Session
from synergai.errors import ConfigurationUnusable, OutOfMemory, SynergaiError, Unavailable
from worker_agent.hosts.memory import TooLarge
from worker_agent.work_item import DRAINING, ENDED, FEEDING, QUEUED, Failure, ItemReporter, WorkItem

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from worker_agent.hosts.power_modes import PowerModeHosts
    from worker_agent.hosts.process import HostProcess
    from worker_agent.ipc import RunEnded

# As in `worker_agent.work_item`, for the hot path.
_COMPLETED: Final = Outcome.COMPLETED
_FAILED: Final = Outcome.FAILED

_log = logging.getLogger(__name__)


class Runner:
    """Feeds work items to engine hosts and reports the results.

    A query whose response is larger than `max_response_bytes` fails.
    """

    def __init__(
        self,
        hosts: PowerModeHosts,
        engines: Mapping[EngineName, Engine],
        clock: Callable[[], float],
        on_idle: Callable[[], None] = lambda: None,
        max_response_bytes: float = math.inf,
    ) -> None:
        self._hosts = hosts
        self._engines = engines
        self._clock = clock
        self._on_idle = on_idle
        self._max_response_bytes = max_response_bytes
        self._host: HostProcess | None = None
        self._session: Session | None = None
        self._queue: deque[WorkItem] = deque()
        self._concurrent: deque[WorkItem] = deque()
        self._running: deque[WorkItem] = deque()
        # The item of every run in flight, by run id; all but the concurrent ones are on `_host`.
        self._runs: dict[int, WorkItem] = {}
        self._concurrent_runs = 0
        self._loading: Session | None = None
        # The run that no other may accompany.
        self._alone: int | None = None

    @property
    def is_idle(self) -> bool:
        return not (self._queue or self._concurrent or self._running or self._runs)

    def add(self, item: WorkItem) -> None:
        """Run `item` concurrently if it may, or else after all items added before."""
        item.reporter = ItemReporter(
            item.handler, item.count, self._clock, self._max_response_bytes
        )
        self._waiting(item).append(item)
        self._pump()
        if item.state is QUEUED and (failure := self._engine_failure(item)) is not None:
            self._drain(item, failure)

    def stop(self, item: WorkItem, *, abort: bool = False) -> None:
        """End `item` before its next query, or abort one that runs; no-op if it has ended."""
        self._stop_runs(item, abort=abort)
        self._drain(item)
        self._pump()

    def resume(self) -> None:
        self._pump()

    def abandon(self, item: WorkItem) -> None:
        """Stop `item` without further reports."""
        item.reporter.mute()
        self.stop(item, abort=True)

    def abandon_all(self) -> None:
        every = (*self._queue, *self._concurrent, *self._running, *self._runs.values())
        for item in dict.fromkeys(every):
            self.abandon(item)

    # --- feeding ----------------------------------------------------------------------------

    def _pump(self) -> None:
        """Feed queries until the queue is empty, the host is full or not available."""
        if self._concurrent:
            self._pump_concurrent()
        while self._queue:
            item = self._queue[0]
            failure = self._engine_failure(item)
            if failure is not None:
                self._drain(item, failure)
                continue
            host = self._acquire_host(item)
            if host is None or not self._feed(item, host):
                break

    def _pump_concurrent(self) -> None:
        """Feed the concurrent requests, and queue those whose session is gone."""
        for item in list(self._concurrent):
            host = self._concurrent_host(item)
            if host is None:
                self._concurrent.remove(item)
                item.concurrent = False
                self._queue.append(item)
            elif (failure := self._engine_failure(item)) is not None:
                self._drain(item, failure)
            else:
                self._feed(item, host)

    def _concurrent_host(self, item: WorkItem) -> HostProcess | None:
        """Return the host of an item if it is resident, and may run concurrently with a load."""
        mode = item.session.configuration.power_mode
        # Loading switches the power mode, for which nothing may run.
        if self._loading is not None and mode != self._loading.configuration.power_mode:
            return None
        return self._hosts.get_resident(item.session)

    def _engine_failure(self, item: WorkItem) -> Failure | None:
        """Return why the engine of `item` cannot run; None if it can."""
        name = item.session.engine
        engine = self._engines.get(name)
        if engine is None:
            return Failure(Fault.UNKNOWN_ENGINE, f"this worker has no engine {name!r}")
        if engine.fault:
            fault = Fault.OUT_OF_MEMORY if engine.too_large else Fault.ENGINE_BROKEN
            return Failure(fault, engine.fault)
        variant = item.session.configuration.variant
        if variant and not engine.has_variant(variant):
            detail = f"engine {name!r} has no variant {variant!r} here"
            return Failure(Fault.CONFIGURATION_UNUSABLE, detail)
        return None

    def _acquire_host(self, item: WorkItem) -> HostProcess | None:
        """Return the host of `item` if it may be fed now; start to load it if necessary."""
        has_runs = len(self._runs) > self._concurrent_runs
        if self._loading is not None:
            resident = self._concurrent_host(item)
            if resident is None or (has_runs and resident is not self._host):
                return None
            self._host, self._session = resident, item.session
            return resident
        host = self._host
        variant = item.session.configuration.variant
        if host is not None and item.session == self._session and not host.is_closed:
            # A host outlives its variants, which are unloaded one by one.
            gone = variant and self._hosts.get_resident(item.session) is not host
            if not gone:
                return host
        if has_runs:
            if not variant or host is None or host.is_closed:
                return None
            if self._hosts.get_resident(item.session) is not host:
                return None
            self._session = item.session
            return host
        host = self._hosts.get_resident(item.session)
        if host is None:
            mode = item.session.configuration.power_mode
            runs = self._runs.values()
            if any(each.session.configuration.power_mode != mode for each in runs):
                return None  # nothing may run during a switch of the power mode
            begin = self._clock()
            self._loading = item.session
            load = self._hosts.load(item.session)
            load.add_done_callback(partial(self._on_load_ended, item, begin))
        self._host, self._session = host, item.session
        return host

    def _feed(self, item: WorkItem, host: HostProcess) -> bool:
        """Feed the next query of `item`, or all of a range; return False if it has to wait."""
        if self._alone is not None and host is self._host:
            return False
        variant = item.session.configuration.variant
        if item.inputs is not None:
            following = item.inputs.next
            if following is None:
                item.reporter.report_starved(idle=not item.in_flight)
                return False
            content, alone = following
            if isinstance(content, Failure):
                item.inputs.remove_next()
                self._skip(item, content)
                return True
            if alone and any(other.host is host for other in self._runs.values()):
                return False
            if not host.has_room(len(content)):
                return False
            item.inputs.remove_next()
            run_id = host.run_query(
                content,
                self._on_query_ended,
                None if alone else item.batch_times,
                variant=variant,
            )
            if alone:
                self._alone = run_id
            item.fed += 1
        elif item.requests:
            request = item.requests[item.fed]
            if not host.has_room(len(request)):
                return False
            run_id = host.run_query(
                request, self._on_query_ended, item.batch_times, item.due, variant
            )
            item.fed += 1
        else:
            run_id = host.run_samples(
                item.first,
                item.count,
                item.reporter.set_progress,
                self._on_range_ended,
                item.job,
                1 if item.batch_times is None else item.batch_times.max_rows,
                variant,
            )
            item.fed = item.count
        self._runs[run_id] = item
        self._concurrent_runs += item.concurrent
        item.host = host
        item.in_flight += 1
        self._note_fed(item)
        return True

    def _skip(self, item: WorkItem, failure: Failure) -> None:
        """Count an input that failed before it could be fed, behind those that were."""
        item.failed_inputs.append((item.fed, failure))
        item.fed += 1
        self._note_fed(item)
        _report_failed_inputs(item)
        if item.state is DRAINING and not item.in_flight:
            self._end(item)

    def _note_fed(self, item: WorkItem) -> None:
        """Update the state of an item after something was fed."""
        begins = item.state is QUEUED
        if begins:
            if not item.concurrent:
                self._running.append(item)
            if item.concurrent or len(self._running) == 1:
                item.reporter.start()
        if item.fed == item.count:
            item.enter(DRAINING)
            self._waiting(item).remove(item)
        elif begins:
            item.enter(FEEDING)

    # --- transitions ------------------------------------------------------------------------

    def _drain(self, item: WorkItem, failure: Failure | None = None) -> None:
        """Feed no more of `item`, and end it unless runs are in flight; no-op if it has ended."""
        if item.state is ENDED:
            return
        if item.state is not DRAINING:
            item.enter(DRAINING)
            self._waiting(item).remove(item)
        if item.failure is None or (failure is not None and failure.fault is Fault.CRASHED):
            item.failure = failure
        if not item.in_flight:
            self._end(item)

    def _waiting(self, item: WorkItem) -> deque[WorkItem]:
        """Return where an item is that was not fed entirely."""
        return self._concurrent if item.concurrent else self._queue

    def _end(self, item: WorkItem) -> None:
        """Report the outcome of `item`; the next running item is the first now."""
        item.enter(ENDED)
        if item.fed and not item.concurrent:
            self._running.remove(item)
            if self._running:
                self._running[0].reporter.start()
        item.reporter.end(item.failure)
        if self.is_idle:
            self._on_idle()

    def _stop_runs(self, item: WorkItem, *, abort: bool = False) -> None:
        if item.host is not None and item.in_flight:
            for run_id, other in self._runs.items():
                if other is item:
                    item.host.stop_run(run_id, abort=abort)

    # --- callbacks --------------------------------------------------------------------------

    def _on_load_ended(self, item: WorkItem, begin: float, load: asyncio.Future[Any]) -> None:
        """Record the setup time on `item`, which the load is for, or fail it.

        If it has ended, the load is the setup of the next item that waited for it. A load is
        cancelled when the engine's files are replaced, and then starts again.
        """
        self._loading = None
        waited = item
        if item.state is ENDED:
            waited = next((each for each in self._queue if each.session == item.session), item)
        waited.reporter.setup_s = self._clock() - begin
        error = None if load.cancelled() else load.exception()
        if error is not None:
            self._drain(item, self._load_failure(item, error))
        self._pump()

    @staticmethod
    def _load_failure(item: WorkItem, error: BaseException) -> Failure:
        match error:
            case ConfigurationUnusable():
                return Failure(Fault.CONFIGURATION_UNUSABLE, str(error))
            case OutOfMemory() | TooLarge():
                return Failure(Fault.OUT_OF_MEMORY, str(error))
            case Unavailable():
                return Failure(Fault.HOST_DIED, str(error))
            case SynergaiError():
                return Failure(Fault.ENGINE_BROKEN, str(error))
            case _:
                _log.error("loading %s failed", item.session, exc_info=error)
                return Failure(Fault.HOST_DIED, "loading failed; see the worker's log")

    def _on_query_ended(self, ended: RunEnded) -> None:
        if len(ended.response) > self._max_response_bytes:
            ended = replace(
                ended,
                outcome=Outcome.FAILED,
                fault=Fault.RESPONSE_TOO_LARGE,
                detail=f"the response has {len(ended.response):,} bytes; the limit is "
                f"{self._max_response_bytes:,}",
            )
        item = self._runs.pop(ended.run_id)
        alone = ended.run_id == self._alone
        if alone:
            self._alone = None
        if item.inputs is not None and ended.outcome is _FAILED:
            ended = _settle(item, ended, alone=alone)
        elif ended.outcome is _COMPLETED:
            item.reporter.add_response(ended)
        else:
            item.reporter.end_prefix()
        if item.failed_inputs:
            _report_failed_inputs(item)
        self._on_run_ended(item, ended)

    def _on_range_ended(self, ended: RunEnded) -> None:
        item = self._runs.pop(ended.run_id)
        item.reporter.set_final_tally(ended.tally)
        self._on_run_ended(item, ended)

    def _on_run_ended(self, item: WorkItem, ended: RunEnded) -> None:
        item.in_flight -= 1
        self._concurrent_runs -= item.concurrent
        if ended.outcome is _FAILED:
            self._stop_runs(item)
            self._drain(item, Failure(ended.fault, ended.detail))
        elif item.state is DRAINING and not item.in_flight:
            self._end(item)
        self._pump()


def _settle(item: WorkItem, ended: RunEnded, *, alone: bool) -> RunEnded:
    """Return what a failed run of an item with inputs of its own means for the item.

    An input that is to blame fails alone: the run is completed. So does one at which a host
    dies while it runs alone. If a host dies otherwise, any of its runs may be to blame.
    """
    died = ended.fault in (Fault.HOST_DIED, Fault.CRASHED)
    if ended.fault.is_of_query or (died and alone):
        detail = f"the engine failed at this input: {ended.detail}" if died else ended.detail
        item.reporter.add_failure(Failure(ended.fault, detail), ended.tally.compute_s)
        return replace(ended, outcome=_COMPLETED)
    item.reporter.end_prefix()
    if ended.fault is Fault.HOST_DIED:
        return replace(ended, fault=Fault.DIED_AT_INPUT)
    return ended


def _report_failed_inputs(item: WorkItem) -> None:
    """Report the failed inputs that no query still precedes."""
    while item.failed_inputs and item.failed_inputs[0][0] == item.reporter.tally.done:
        item.reporter.add_failure(item.failed_inputs.popleft()[1])

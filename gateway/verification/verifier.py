"""Runs a share of the queries on a second worker as well, and compares the answers.

The client has its answer before the copy runs. Where two answers differ, a third worker decides;
then one of the two that agree runs the query once more: an engine of which the answers vary by
themselves proves nothing and is not compared any more. `synergai.scheduling.verification` says
what proves a worker to answer falsely.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from synergai.domain import Job, JobState
from synergai.protocol.comparison import difference
from synergai.scheduling.verification import Sampler, Standings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from random import Random

    from gateway.dispatch.dispatcher import Dispatcher
    from gateway.dispatch.job_handler import JobHandler
    from gateway.fleet.worker import AssignmentProgress, ConnectedWorker
    from synergai.domain import EngineName, Fault, JobId, WorkerClass, WorkerId
    from synergai.protocol.request_codec import Buffer
    from synergai.runtime.clock import Clock
    from synergai.scheduling.events import Assignment

_log = logging.getLogger(__name__)

MAX_CASES: Final = 16
"""Comparisons in progress."""
MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of their requests and first answers."""
MAX_CANDIDATES: Final = 16
"""Workers among which the scheduler chooses for a copy."""
PATIENCE_S: Final = 60.0
"""Time in which an idle worker has to be found for a copy."""
INLINE_BYTES: Final = 16 * 1024
"""Larger answers are compared in a thread."""
MAX_SCATTERED: Final = 3
"""Queries for which three workers had three answers, after which the engine is not compared."""

OUTCOMES: Final = ("agreed", "false", "undecided", "dropped")
"""Outcomes of comparisons; those that found no room or no idle worker are dropped."""


class Answer(NamedTuple):
    """A worker's answer: a serialised ``ModelInferResponse``."""

    worker_id: WorkerId
    response: bytes


class _Query(NamedTuple):
    """A query to be compared.

    Attributes:
        request: the serialised ``ModelInferRequest``.
        variant: the variant of the engine that answered it; empty without variants.
        worker_class: class of the worker that answered it.
    """

    engine: EngineName
    request: bytes
    variant: str
    worker_class: WorkerClass


class Ejector(Protocol):
    """Takes workers out of service."""

    def distrust(self, worker_id: WorkerId, reason: str) -> None:
        """Revoke a worker's assignments, and give it no others until it is readmitted."""


class _Copy:
    """A copy of a query; the dispatcher's handler of its job.

    Attributes:
        answer: the answer; None if there is none.
    """

    durable = False
    with_tensors = True
    inputs_follow = False
    answered = False

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._answer: Answer | None = None
        self.answer: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

    def requests(self, _first: int, _count: int) -> Sequence[bytes]:
        """Return the request."""
        return (self._request,)

    def on_dispatched(self, worker: ConnectedWorker, assignment: Assignment, now: float) -> None:
        """Do nothing."""

    def excuses_crash(self, _query: int) -> bool:
        """Return False: a crash counts against the copy."""
        return False

    def on_progress(
        self,
        worker: ConnectedWorker,
        _progress: AssignmentProgress,
        responses: Sequence[Buffer],
        _now: float,
    ) -> None:
        """Keep the answer until the scheduler ends the job."""
        self._answer = Answer(worker.id, bytes(responses[0]))

    def on_ended(self, state: JobState, _reason: str, _fault: Fault, _now: float) -> None:
        """Hand the answer over."""
        if not self.answer.done():
            self.answer.set_result(self._answer if state is JobState.SUCCEEDED else None)


class Verifier:
    """Compares answers of workers.

    Args:
        dispatcher: runs the copies.
        ejector: ejects workers that are proved to answer falsely.
        clock: the gateway's clock.
        new_id: returns ids for copies, which a worker cannot tell from those of requests.
        source: random numbers that no worker can predict.
        share: share of the answers to compare, from 0 to 1.
        tolerance: relative tolerance of floating-point numbers.

    Attributes:
        standings: what the comparisons have shown.
        outcomes: number of comparisons by outcome, see `OUTCOMES`.
        ejections: number of workers ejected.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        ejector: Ejector,
        clock: Clock,
        *,
        new_id: Callable[[], JobId],
        source: Random,
        share: float,
        tolerance: float,
    ) -> None:
        self._dispatcher = dispatcher
        self._ejector = ejector
        self._clock = clock
        self._new_id = new_id
        self._source = source
        self._tolerance = tolerance
        self._sampler = Sampler(share, source.random)
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._scattered: Counter[EngineName] = Counter()
        self._excluded: set[EngineName] = set()
        self.standings = Standings()
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.ejections = 0

    async def close(self) -> None:
        """Cancel all comparisons."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def on_answers(
        self,
        worker: ConnectedWorker,
        progress: AssignmentProgress,
        handler: JobHandler,
        responses: Sequence[Buffer],
    ) -> None:
        """Select which answers of a report to compare.

        Args:
            worker: the worker that reports.
            progress: its assignment, this report included.
            handler: owner of the job, which still has the requests unless they follow.
            responses: the answers.
        """
        # Inputs of jobs over uploads are on disk, and not at hand.
        if isinstance(handler, _Copy) or handler.inputs_follow:
            return
        if self.standings.is_suspect(worker.id):
            taken: Sequence[int] = range(len(responses))
        elif not (taken := self._sampler.take(len(responses))):
            return
        assignment = progress.assignment
        if assignment.engine in self._excluded:
            return
        first = assignment.first + progress.done - len(responses)
        for index in taken:
            if len(self._tasks) >= MAX_CASES:
                self.outcomes["dropped"] += 1
                continue
            [request] = handler.requests(first + index, 1)
            query = _Query(
                assignment.engine, request, assignment.configuration.variant, worker.worker_class
            )
            self._open(query, Answer(worker.id, bytes(responses[index])))

    def readmitted(self, worker_ids: Iterable[WorkerId]) -> None:
        """Let readmitted workers start again."""
        for worker_id in worker_ids:
            self.standings.forget(worker_id)

    def suspicion(self, worker_id: WorkerId) -> str:
        """Return what speaks against a worker, for people; empty if nothing does."""
        standing = self.standings.get(worker_id)
        if standing is None:
            return ""
        texts = []
        if standing.evidence > 0.0:
            texts.append(f"{standing.false:,} of {standing.compared:,} compared answers were false")
        if standing.disputed:
            texts.append(
                f"{standing.disputed:,} answers differed, and no third worker could decide"
            )
        return "; ".join(texts)

    # --- comparisons ------------------------------------------------------------------------

    def _open(self, query: _Query, answer: Answer) -> None:
        size = len(query.request) + len(answer.response)
        if self._bytes + size > MAX_BYTES or not self._others(query, {answer.worker_id}):
            self.outcomes["dropped"] += 1
            return
        self._bytes += size
        task = asyncio.create_task(self._compare(query, answer))
        self._tasks.add(task)

        def closed(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._bytes -= size
            if not done.cancelled() and (error := done.exception()) is not None:
                _log.error("cannot compare answers of engine %s", query.engine, exc_info=error)

        task.add_done_callback(closed)

    async def _compare(self, query: _Query, first: Answer) -> None:
        second = await self._ask(query, self._others(query, {first.worker_id}))
        if second is None:
            self.outcomes["dropped"] += 1
        elif not (differs := await self._difference(first, second)):
            self.outcomes["agreed"] += 1
            self._confirm(first, second)
        else:
            await self._decide(query, first, second, differs)

    async def _decide(self, query: _Query, first: Answer, second: Answer, differs: str) -> None:
        """Find out which of two answers is false."""
        both, engine = (first, second), query.engine
        third = await self._ask(query, self._others(query, {answer.worker_id for answer in both}))
        if third is None:
            # The gateway's own worker is trusted more than others, see docs/workers.md.
            right = [answer for answer in both if self._is_local(answer.worker_id)]
        else:
            right = [answer for answer in both if not await self._difference(answer, third)]
            if not right:
                self._scattered[engine] += 1
                if self._scattered[engine] >= MAX_SCATTERED:
                    self._exclude(engine, "three workers have three answers")
        if len(right) != 1:
            self._dispute(engine, both, differs)
            return
        [winner] = right
        witnesses = [winner] if third is None else [winner, third]
        again = await self._ask(query, [each.worker_id for each in witnesses])
        if again is None:
            self.outcomes["undecided"] += 1
            return
        before = next(each for each in witnesses if each.worker_id == again.worker_id)
        if await self._difference(before, again):
            self.outcomes["undecided"] += 1
            self._exclude(engine, f"worker {again.worker_id} has two answers to the same query")
            return
        self.outcomes["false"] += 1
        self._confirm(*witnesses)
        loser = second if winner is first else first
        self._convict(engine, loser.worker_id, differs)

    async def _ask(self, query: _Query, workers: Collection[WorkerId]) -> Answer | None:
        """Run the query on one of some workers; None if that is not possible in time."""
        if not workers:
            return None
        candidates = self._source.sample(list(workers), min(len(workers), MAX_CANDIDATES))
        job = Job(
            id=self._new_id(),
            engine=query.engine,
            queries=1,
            arrival=self._clock.now(),
            with_tensors=True,
            variant=query.variant,
        )
        copy = _Copy(query.request)
        self._dispatcher.check(job, copy, tuple(candidates))
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await copy.answer
        except TimeoutError:
            return None
        finally:
            self._dispatcher.cancel(job.id)

    async def _difference(self, one: Answer, other: Answer) -> str:
        """Return how two answers differ; empty if they agree."""
        arguments = one.response, other.response, self._tolerance
        if max(len(one.response), len(other.response)) <= INLINE_BYTES:
            return difference(*arguments)
        return await asyncio.to_thread(difference, *arguments)

    def _others(self, query: _Query, without: Collection[WorkerId]) -> list[WorkerId]:
        """Return the workers that can run a copy of a query, except for some.

        Variants are compared between workers of one class: kernels for integers compute with
        different precision on different processors. What a worker with a single file has answered
        is compared with others that have one: of variants, the worker would choose.
        """
        engine, variant = query.engine, query.variant
        return [
            worker.id
            for worker in self._dispatcher.workers()
            if worker.id not in without
            and not worker.draining
            and (described := worker.engines.get(engine)) is not None
            and not described.fault
            and (
                not described.variants
                if not variant
                else (described.has_variant(variant) and worker.worker_class == query.worker_class)
            )
            and _has_room(worker, engine)
        ]

    def _is_local(self, worker_id: WorkerId) -> bool:
        return any(each.local for each in self._dispatcher.workers() if each.id == worker_id)

    # --- consequences -----------------------------------------------------------------------

    def _confirm(self, *answers: Answer) -> None:
        for answer in answers:
            self.standings.right(answer.worker_id)

    def _dispute(self, engine: EngineName, answers: Sequence[Answer], differs: str) -> None:
        self.outcomes["undecided"] += 1
        ids = [answer.worker_id for answer in answers]
        counts = [self.standings.disputed(worker_id) for worker_id in ids]
        if min(counts) == 1:
            _log.warning(
                "workers %s answer differently, and no third one could decide: engine %s: %s",
                " and ".join(ids),
                engine,
                differs,
            )

    def _convict(self, engine: EngineName, worker_id: WorkerId, differs: str) -> None:
        known = self.standings.is_suspect(worker_id)
        standing = self.standings.false(worker_id)
        if not standing.is_proof:
            if not known:
                _log.warning(
                    "worker %s has given a false answer, all are compared for now: engine %s: %s",
                    worker_id,
                    engine,
                    differs,
                )
            return
        if self._is_local(worker_id):
            if not known:
                _log.warning("the gateway's own worker answers falsely: engine %s", engine)
            return
        self.ejections += 1
        self._ejector.distrust(
            worker_id,
            f"it answered falsely: {standing.false:,} of {standing.compared:,} compared answers, "
            f"the last one of engine {engine}: {differs}",
        )

    def _exclude(self, engine: EngineName, why: str) -> None:
        if engine not in self._excluded:
            self._excluded.add(engine)
            _log.warning("answers of engine %s are not compared any more: %s", engine, why)


def _has_room(worker: ConnectedWorker, engine: EngineName) -> bool:
    """Return whether a worker has an engine loaded, or much memory left for it.

    A comparison must not displace engines that clients use.
    """
    limit = worker.memory_limit_bytes
    loaded = any(session.engine == engine for session in worker.sessions)
    return loaded or not limit or 2 * worker.engines_rss_bytes <= limit

"""Choice of the routes of jobs, among the chains of stages that workers have.

An engine may be cut in several ways at once, and a worker may have it whole. Its jobs run in the
chain whose slowest stage or link is the fastest; the whole engine is a chain of one stage. Early
exits count by the share of the queries that have left there lately.

The choice is reviewed while jobs run. If a pace, a link, a share or the workers have changed, and
stay so for a few reviews, the chains are ranked again. ODIN decides like this when to balance a
pipeline (Soomro et al., Euro-Par 2023), and then tries neighbouring cuts. Here, a better chain
follows from what is known of each stage. Its sessions are loaded while the former chain still
serves.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from msgspec import Struct

from gateway.fleet.links import known_links, with_peers
from gateway.fleet.routes import Routes, accuracy_of, asked_of_exit
from gateway.fleet.stages import tensor_bytes
from synergai.core.route import Route
from synergai.errors import SynergaiError
from synergai.names import engine_of_stage
from synergai.profiles.dictionary import OBSERVED, ProfileEntry
from synergai.runtime.tasks import TaskBag
from synergai.wire.validation import STAY

if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from gateway.fleet.worker import ConnectedWorker
    from synergai.core.routes.links import Link
    from synergai.core.routes.problem import Leg
    from synergai.core.routes.ranking import RankedChain
    from synergai.domain import Engine, EngineName, WorkerId
    from synergai.jobs import JobSpec

    Candidates: TypeAlias = Mapping[tuple[int, int], Engine]
    """Stages of one model in service, by the cuts at which they begin and end."""
    _Jobs: TypeAlias = tuple[EngineName, float]

REVIEW_S: Final = 0.25
CHANGE: Final = 0.1
"""Relative change of a pace or link that counts, and gain that is worth another chain."""
REVIEWS: Final = 3
"""Reviews in a row that see a change before it counts."""
_REMEMBERED_S: Final = 30.0
"""Time for which an observed pace tells of a worker that no longer runs a stage."""
_LOAD_WEIGHT: Final = 2.0
"""A move has to save this many times what its loads take."""
_MANY: Final = 10_000
"""Queries of a range in which only the interval counts."""

_log = logging.getLogger(__name__)


class _Observed(NamedTuple):
    """Seconds per query of a stage on a worker, as last observed."""

    seconds: float
    at: float


class _Known(Struct, frozen=True):
    """What a choice depends on.

    Attributes:
        paces: seconds of a query by leg.
        links: by pair of hosts.
        continuing: share of the queries that go on behind each stage with an early exit.
    """

    paces: dict[Leg, float]
    links: dict[tuple[str, str], Link]
    continuing: dict[tuple[int, int], float]

    def differs(self, other: _Known) -> bool:
        """Return whether a figure differs by more than `CHANGE`, or others exist."""
        mine, others = self._figures(), other._figures()
        return mine.keys() != others.keys() or any(
            abs(mine[key] - others[key]) > CHANGE * others[key] for key in mine
        )

    def _figures(self) -> dict[object, float]:
        figures: dict[object, float] = {pair: link.bytes_per_s for pair, link in self.links.items()}
        figures.update((leg, seconds) for leg, seconds in self.paces.items())
        figures.update(self.continuing)
        return figures


class _Choice:
    """The chain of an engine's jobs, and what was known when it was chosen or confirmed."""

    def __init__(self, chain: tuple[Engine, ...], known: _Known, reason: str) -> None:
        self.chain = chain
        self.known = known
        self.reason = reason
        self.changes = 0


class JobRoutes:
    """Chooses the routes of jobs, and the chains of stages that they run in.

    Args:
        workers: those of the fleet at any time.
        profiles: returns the entries of a worker's engines, and their observed paces.
        load: loads an engine on some workers.

    Attributes:
        queries_left: yields the queries that are left of each job of an engine with a floor; none
            end their reviews.
        on_changed: called with an engine whose jobs run in another chain from now on.
    """

    def __init__(
        self,
        workers: Mapping[WorkerId, ConnectedWorker],
        profiles: Callable[[WorkerId], Iterable[tuple[ProfileEntry, float | None]]],
        routes: Routes,
        load: Callable[[EngineName, Collection[str]], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = workers
        self._profiles = profiles
        self.routes = routes
        self._catalogue = routes.catalogue
        self._load = load
        self._clock = clock
        # By engine, and the floor of accuracy of its jobs.
        self._choices: dict[_Jobs, _Choice] = {}
        self._observed: dict[WorkerId, dict[EngineName, _Observed]] = {}
        # As of the last review: seconds and queries in all.
        self._computed: dict[tuple[ConnectedWorker, EngineName], tuple[float, int]] = {}
        self._moves: dict[_Jobs, asyncio.Task[None]] = {}
        self._tasks = TaskBag()
        self.queries_left: Callable[[EngineName, float], Iterator[int]] = lambda *_: iter(())
        self.on_changed: Callable[[EngineName], object] = lambda _: None

    async def close(self) -> None:
        await self._tasks.close()

    def route(self, spec: JobSpec) -> Route | None:
        """Return the route of a job's queries now; None if its engine runs whole, or not at all."""
        if spec.variant or not self._catalogue.stages.any:  # stages have no variants
            return None
        chain = self.of_jobs(spec.engine_version, spec.min_accuracy)
        if not chain:
            return None
        route = Route(chain, spec.min_accuracy)
        # Nothing can be asked of the exit of the first stage by an input that its worker reads.
        is_free = not spec.upload_id or asked_of_exit(route, 0) != STAY
        return route if is_free else None

    def of_jobs(self, engine: EngineName, floor: float = 0.0) -> tuple[Engine, ...]:
        """Return the engines that jobs run in, one behind the other; empty if one runs whole.

        Args:
            floor: accuracy that a chain without exits has, and each exit where queries may leave.
        """
        candidates = self._catalogue.stages.candidates(engine)
        choice = self._choices.get((engine, floor))
        if choice is None or not all(each in candidates.values() for each in choice.chain):
            self._choices.pop((engine, floor), None)
            default = self._catalogue.chain(engine)
            if len(candidates) <= max(1, len(default)):
                return default if accuracy_of(default) >= floor else ()
            known = self._known(candidates, floor)
            ranked = self._rank(candidates, known, floor)
            if not ranked:
                return default if accuracy_of(default) >= floor else ()
            chain = _engines(ranked[0], candidates)
            choice = self._choices[engine, floor] = _Choice(chain, known, _reason(ranked))
        return choice.chain if len(choice.chain) > 1 else ()

    def reason(self, spec: JobSpec) -> str:
        """Return why a job runs in its stages; empty if there was no choice."""
        choice = self._choices.get((spec.engine_version, spec.min_accuracy))
        return "" if choice is None else choice.reason

    async def run(self) -> None:
        while True:
            await asyncio.sleep(REVIEW_S)
            self.review()

    def review(self) -> None:
        """Look for changes, and move to a better chain after some that persist."""
        now, before, self._computed = self._clock(), self._computed, {}
        for jobs, choice in list(self._choices.items()):
            if not any(self.queries_left(*jobs)):
                del self._choices[jobs]
                continue
            candidates = self._catalogue.stages.candidates(jobs[0])
            self._observe(candidates.values(), before, now)
            if jobs not in self._moves:
                self._review(jobs, choice, candidates)
        since = now - _REMEMBERED_S
        self._observed = {
            worker: recent
            for worker, stages in self._observed.items()
            if (recent := {name: each for name, each in stages.items() if each.at >= since})
        }

    def _observe(
        self,
        candidates: Iterable[Engine],
        before: Mapping[tuple[ConnectedWorker, EngineName], tuple[float, int]],
        now: float,
    ) -> None:
        """Note what queries of stages have taken since the last review."""
        for stage in candidates:
            for worker in self._workers([stage]) if stage.stage_of else ():
                key = worker, stage.name
                seconds, queries = worker.computed.get(stage.name, (0.0, 0))
                self._computed[key] = seconds, queries
                seconds_before, queries_before = before.get(key, (seconds, queries))
                if queries > queries_before:
                    observed_s = (seconds - seconds_before) / (queries - queries_before)
                    self._note(worker, stage.name, observed_s, now)

    def _note(
        self, worker: ConnectedWorker, engine: EngineName, seconds: float, now: float
    ) -> None:
        """Note what queries of a stage take, and what follows for those that ran before."""
        stages = self._observed.setdefault(worker.id, {})
        before = stages.get(engine)
        stages[engine] = _Observed(seconds, now)
        if before is None or not before.seconds:
            return
        model, slower = engine_of_stage(engine), seconds / before.seconds
        for name, other in stages.items():
            if other.at < now and engine_of_stage(name) == model:
                stages[name] = other._replace(seconds=slower * other.seconds)

    def _review(self, jobs: _Jobs, choice: _Choice, candidates: Candidates) -> None:
        engine, floor = jobs
        known = self._known(candidates, floor)
        if not known.differs(choice.known):
            choice.changes = 0
            return
        choice.changes += 1
        if choice.changes < REVIEWS:
            return
        choice.changes, choice.known = 0, known
        ranked = self._rank(candidates, known, floor)
        current = next(
            (each for each in ranked if _engines(each, candidates) == choice.chain), None
        )
        if not ranked or current is None or ranked[0] is current:
            return
        best = _engines(ranked[0], candidates)
        saved_s = current.interval_s - ranked[0].interval_s
        loads_s = sum(self._load_s(stage) for stage in best)
        if saved_s <= CHANGE * current.interval_s:
            return
        if saved_s * sum(self.queries_left(engine, floor)) <= _LOAD_WEIGHT * loads_s:
            return
        self._moves[jobs] = self._tasks.start(self._move(jobs, best, known, _reason(ranked)))

    async def _move(
        self, jobs: _Jobs, chain: tuple[Engine, ...], known: _Known, reason: str
    ) -> None:
        """Load each stage of a chain on a worker, and then let jobs run in it.

        They load it on others if they have the queries for that.
        """
        try:
            loads = (self._load(stage.name, self._first_worker(stage)) for stage in chain)
            for failed in await asyncio.gather(*loads, return_exceptions=True):
                if failed is not None:
                    raise failed
        except SynergaiError as error:
            _log.warning("jobs of %s do not move to other stages: %s", jobs[0], error)
            return
        finally:
            del self._moves[jobs]
        self._choices[jobs] = _Choice(chain, known, reason)
        _log.info("jobs of %s run in %s", jobs[0], " ".join(stage.name for stage in chain))
        self.on_changed(jobs[0])

    def _first_worker(self, stage: Engine) -> list[str]:
        """Return the worker to load a stage on first, if there is any: the fastest one.

        One that has loaded it goes before.
        """

        def rank(worker: ConnectedWorker) -> tuple[bool, float]:
            seconds = self._seconds(worker, {(0, 1): stage}).get((0, 1), math.inf)
            return not _has_loaded(worker, stage), seconds

        workers = self._workers([stage])
        return [min(workers, key=rank).id] if workers else []

    def _load_s(self, stage: Engine) -> float:
        """Return the time to load a stage; 0 if a worker has it loaded."""
        workers = self._workers([stage])
        if any(_has_loaded(each, stage) for each in workers):
            return 0.0
        times = [
            entry.model_load_s
            for each in workers
            for entry, _ in self._profiles(each.id)
            if entry.engine == stage.name
        ]
        return min(times, default=0.0)

    # --- what is known ----------------------------------------------------------------------

    def _workers(self, stages: Iterable[Engine]) -> list[ConnectedWorker]:
        ids = {id_ for stage in stages for id_ in self._catalogue.workers_with(stage.name)}
        workers = map(self._fleet.get, sorted(ids))
        return [each for each in workers if each is not None and not each.draining]

    def _known(self, candidates: Candidates, floor: float) -> _Known:
        from synergai.core.routes.problem import Leg

        workers = self._workers(candidates.values())
        paces: dict[Leg, float] = {}
        for worker in workers:
            for positions, seconds in self._seconds(worker, candidates).items():
                paces[Leg(worker.id, *positions)] = seconds
        involved = {leg.worker for leg in paces}
        return _Known(
            paces,
            known_links([each for each in workers if each.id in involved]),
            {
                positions: 1 - self.routes.rates.rate(stage)
                for positions, stage in candidates.items()
                if Route((stage,), floor).may_leave(0)
            },
        )

    def _seconds(
        self, worker: ConnectedWorker, candidates: Candidates
    ) -> dict[tuple[int, int], float]:
        """Return seconds per query of the stages of a worker, as far as anything is known.

        Stages that have run recently tell by how much the others of the same model are slower than
        profiled, or than they were when they were inspected. Profiles of single stages in service
        say little: they were made at different times.
        """
        profiled, learned = {}, {}
        for entry, pace in self._profiles(worker.id):
            if entry.label == OBSERVED:
                learned[entry.engine] = (pace or 1.0) / entry.qps
            else:
                profiled[entry.engine] = 1.0 / entry.qps
        offered = {
            stage.name: positions
            for positions, stage in candidates.items()
            if stage.name in worker.open_engines
        }
        recent = self._observed.get(worker.id, {})
        seen = {
            name: observed.seconds
            for name in offered
            if (observed := recent.get(name)) is not None and observed.seconds
        }
        found = dict(seen)
        for known in (profiled, worker.query_s, learned):
            both = [name for name in seen if known.get(name)]
            slower = sum(seen[n] for n in both) / sum(known[n] for n in both) if both else 1.0
            for name in offered:
                if known.get(name):
                    found.setdefault(name, slower * known[name])
        return {offered[name]: seconds for name, seconds in found.items()}

    def _rank(self, candidates: Candidates, known: _Known, floor: float) -> Sequence[RankedChain]:
        """Return the chains of an accuracy, that with the shortest interval first."""
        # Imported on demand: most gateways have no stages.
        from synergai.core.routes.ranking import rank_chains

        sizes = {}
        for (first, last), stage in candidates.items():
            sizes[first], sizes[last] = tensor_bytes(stage.inputs), tensor_bytes(stage.outputs)
        if not known.paces or 0 not in sizes:
            return ()
        peers = {each.id for each in self._workers(candidates.values()) if each.peer_address}
        links = with_peers(known.links, peers)
        ranked = (
            each
            for each in rank_chains(
                known.paces, sizes, links, queries=_MANY, continuing=known.continuing
            )
            if accuracy_of(_engines(each, candidates)) >= floor
        )
        return sorted(ranked, key=lambda each: (each.interval_s, len(each.stages)))


def _has_loaded(worker: ConnectedWorker, stage: Engine) -> bool:
    return any(session.engine == stage.name for session in worker.sessions)


def _engines(ranked: RankedChain, candidates: Candidates) -> tuple[Engine, ...]:
    return tuple(candidates[positions] for positions in ranked.stages)


def _reason(ranked: Sequence[RankedChain]) -> str:
    best = ranked[0]
    text = f"{best.interval_s * 1e3:.3g} ms between queries are expected"
    if len(ranked) > 1:
        text += f", {ranked[1].interval_s * 1e3:.3g} ms in the next best of {len(ranked)} chains"
    return text

"""What ``synergai plan`` has to plan: an engine, its profiles, and a fleet."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from rich.filesize import decimal

from profiler.cutting.chain import make_chain, planned_cuts, read_model
from profiler.dictionary.files import load_dictionary
from profiler.dictionary.origins import present_entries
from profiler.dictionary.stages import class_times
from profiler.planning.enumeration import routes
from profiler.planning.moves import seconds
from profiler.planning.optimal import optimal_route
from profiler.planning.plan import RoutePlan, partition, pour
from profiler.planning.planner import ROUTE_PLANNERS, run_search
from synergai.core.routes.links import GATEWAY, Link, Links
from synergai.core.routes.problem import RouteProblem, RouteWorker, least_memory_bytes
from synergai.errors import InvalidInput, InvalidSettings, NotFound
from synergai.models.directory import ModelDirectory
from synergai.names import stage_name, validate_name
from synergai.profiles.dictionary import DISTURBED
from synergai.runtime.text import counted, suggestion
from synergai.runtime.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from profiler.cutting.cuts import Cut
    from profiler.dictionary.stages import ClassTimes
    from synergai.core.routes.problem import Leg
    from synergai.domain import WorkerClass
    from synergai.profiles.dictionary import ConfigurationDictionary


OPTIMAL: Final = "optimal"
MAX_LEGS: Final = 8
"""Legs of the longest route that is weighed."""


def whole_options(problem: RouteProblem) -> list[RoutePlan]:
    """Return the options that do not split the engine: each worker alone, and all as replicas."""
    whole = list(routes(problem, legs=1))
    alone = [
        RoutePlan(pour(problem, [route]), f"whole on {route.legs[0].worker}") for route in whole
    ]
    if len(alone) < 2 or problem.queries < 2:
        return alone
    return [*alone, RoutePlan(pour(problem, whole), "replicas")]


def staged_options(problem: RouteProblem, planner: str) -> list[RoutePlan]:
    """Return options with stages: the route of a planner, or all that `optimal` has to offer.

    These are the best route of each number of legs, and several routes side by side. A planner may
    find none that is better than the whole engine.
    """
    if planner != OPTIMAL:
        route, _ = run_search(ROUTE_PLANNERS.get(planner)(problem), problem.times)
        if route is None or len(route.legs) == 1:
            return []
        return [RoutePlan(pour(problem, [route]), f"route of {planner}")]
    most = min(problem.chain.end, len(problem.workers), MAX_LEGS)
    options = [
        RoutePlan(pour(problem, [route]), f"{legs} stages")
        for legs in range(2, most + 1)
        if (route := optimal_route(problem, legs)) is not None
    ]
    plan = partition(problem)
    if plan is not None and plan.is_split and len(plan.shares) > 1:
        options.append(replace(plan, name="several routes"))
    return options


def split_options(problem: RouteProblem) -> Iterator[tuple[int, RoutePlan]]:
    """Yield each position that can be cut, with the best two workers for its sides."""
    for end, cut_there in groupby(routes(problem, legs=2), lambda route: route.legs[0].last):
        best = min(cut_there, key=lambda route: seconds(problem, route))
        if end < problem.chain.end and seconds(problem, best) < math.inf:
            workers = ", ".join(leg.worker for leg in best.legs)
            yield end, RoutePlan(pour(problem, [best]), workers)


_BYTES_PER_MBIT: Final = 125_000.0
_MAX_WORKERS: Final = 64


class FleetWorker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker of a fleet.

    Attributes:
        memory_mb: what its engine hosts may take, in units of 10^6 bytes.
    """

    id: str
    worker_class: WorkerClass
    memory_mb: Annotated[float, Meta(gt=0, le=1e9)] = math.inf


class _Speed(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    mbit_s: Annotated[float, Meta(ge=0.001, le=1e6)]
    latency_ms: Annotated[float, Meta(ge=0, le=60_000)] = 0.0

    def link(self) -> Link:
        return Link(self.mbit_s * _BYTES_PER_MBIT, self.latency_ms / 1000)


class _Pair(_Speed, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")


class FleetFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workers and links, as in a fleet file.

    A link has the same bandwidth and latency in both directions, unless the file has the other
    direction as well.

    Raises:
        ValueError: it has no workers, or two of one name, or links that contradict each other or
            name an unknown host.
    """

    workers: Annotated[tuple[FleetWorker, ...], Meta(max_length=_MAX_WORKERS)]
    pairs: tuple[_Pair, ...] = msgspec.field(name="links", default=())
    default_link: _Speed = _Speed(mbit_s=1000.0)

    def __post_init__(self) -> None:
        if not self.workers:
            raise ValueError("it has no [[workers]]")
        hosts = {GATEWAY}
        for worker in self.workers:
            validate_name(worker.id, "worker id")
            validate_name(worker.worker_class, "worker class")
            if worker.id in hosts:
                taken = "belongs to the gateway" if worker.id == GATEWAY else "is there twice"
                raise ValueError(f"the worker id {worker.id!r} {taken}; give each worker its own")
            hosts.add(worker.id)
        known = set()
        for pair in self.pairs:
            for host in (pair.source, pair.target):
                if host not in hosts:
                    raise ValueError(
                        f"a link names the unknown worker {host!r}{suggestion(host, hosts)}"
                    )
            where = f"the link from {pair.source!r} to {pair.target!r}"
            if pair.source == pair.target:
                raise ValueError(f"{where} leads nowhere; remove it")
            if (pair.source, pair.target) in known:
                raise ValueError(f"{where} is there twice; keep one")
            known.add((pair.source, pair.target))

    def links(self) -> Links:
        """Return the links between its hosts."""
        links = {(pair.source, pair.target): pair.link() for pair in self.pairs}
        both = {(target, source): link for (source, target), link in links.items()}
        return Links(both | links, self.default_link.link())


def read_fleet(path: Path) -> FleetFile:
    """Read a fleet file."""
    return read_toml(path, FleetFile, f"fleet {path}")


class Case:
    """What the options of the command describe: a problem, and what its numbers stand for.

    Attributes:
        cuts: those at the positions of the chain between its inputs and outputs.
        notes: what was left out, and why.
    """

    def __init__(
        self,
        name: str,
        models: Path,
        dictionary: Path,
        fleet: Path | None,
        source: str,
        queries: int,
    ) -> None:
        self.notes: list[str] = []
        self._model = ModelDirectory(models).get(name).of_variant("")
        self._model.verified_digest()
        self._found = read_model(self._model)
        self.cuts = self._plan_cuts()
        entries = self._read_entries(dictionary, models)
        given = self._default_fleet(entries) if fleet is None else read_fleet(fleet)
        hosts = [GATEWAY, *(worker.id for worker in given.workers)]
        if source not in hosts:
            raise InvalidSettings(
                f"--source: there is no worker {source!r}{suggestion(source, hosts)}; there are: "
                f"{', '.join(hosts)}"
            )
        by_class = self._class_times(entries, given)
        used = [worker for worker in given.workers if worker.worker_class in by_class]
        self.times = {worker.id: by_class[worker.worker_class] for worker in used}
        self.problem = RouteProblem(
            chain=make_chain(self._model, self._found, self.cuts),
            workers=tuple(
                RouteWorker(worker.id, self.times[worker.id].seconds, worker.memory_mb * 1e6)
                for worker in used
            ),
            links=given.links(),
            source=source,
            queries=queries,
        )

    def runs(self, leg: Leg) -> str:
        """Return the engine or stage that a leg runs."""
        chain = self.problem.chain
        if self.is_whole(leg):
            return chain.engine
        positions = [0, *(cut.position for cut in self.cuts), len(self._found.cuts) + 1]
        return stage_name(chain.engine, positions[leg.first], positions[leg.last])

    def configuration(self, leg: Leg) -> str:
        """Return the configuration in which it runs."""
        times = self.times[leg.worker]
        return str(times.whole if self.is_whole(leg) else times.staged)

    def is_whole(self, leg: Leg) -> bool:
        """Return whether a leg runs the whole engine."""
        return (leg.first, leg.last) == (0, self.problem.chain.end)

    def weigh(self, planners: Sequence[str]) -> list[RoutePlan]:
        """Return the options that can run, whole ones first."""
        options = whole_options(self.problem)
        for planner in planners:
            options += staged_options(self.problem, planner)
        if not options:
            raise InvalidInput("; ".join([self._misfit(), *self.notes]))
        return options

    def _misfit(self) -> str:
        problem, end = self.problem, self.problem.chain.end
        needs = f"{problem.chain.engine} needs {decimal(int(problem.memory_bytes(0, end)))} whole"
        legs = min(len(problem.workers), end)
        if legs > 1:
            least = decimal(int(least_memory_bytes(problem, legs)))
            needs += f" and {least} on each of {legs} workers in stages"
        roomy = max(problem.workers, key=lambda worker: worker.budget_bytes)
        return (
            f"nothing fits: {needs}, and the largest memory_mb is that of {roomy.name}, "
            f"{decimal(int(roomy.budget_bytes))}; raise memory_mb in the fleet file, or add workers"
        )

    def _plan_cuts(self) -> list[Cut]:
        found = self._found
        cuts = planned_cuts(found.cuts)
        if found.refusal:
            self.notes.append(f"{self._model.file.name} cannot be cut: {found.refusal}")
        if (seams := sum(cut.seam for cut in found.cuts) or len(found.cuts)) > len(cuts):
            self.notes.append(
                f"{seams:,} cuts are too many to plan with: {len(cuts)} of them are considered, "
                "with the smallest tensor in equal shares of the work"
            )
        return cuts

    def _read_entries(self, dictionary: Path, models: Path) -> ConfigurationDictionary:
        entries, left_out = present_entries(load_dictionary(dictionary), models, self._model)
        if left_out:
            self.notes.append(
                f"{counted(left_out, 'entry')} of another model file left out; measure again with "
                f"'synergai profile --stages --engines {self._model.name}'"
            )
        if disturbed := sum(entry.label == DISTURBED for entry in entries):
            self.notes.append(
                f"{counted(disturbed, 'entry')} measured on a busy machine, whose times may be "
                "wrong"
            )
        return entries

    def _default_fleet(self, entries: ConfigurationDictionary) -> FleetFile:
        """Return a fleet of one worker of each class in the dictionary."""
        name = self._model.name
        classes = sorted({entry.worker_class for entry in entries if entry.engine == name})
        if not classes:
            fault = (
                f"the dictionary has no entry of {name!r}; measure it with "
                f"'synergai profile --stages --engines {name}'"
            )
            raise NotFound("; ".join([fault, *self.notes]))
        return FleetFile(workers=tuple(FleetWorker(id=each, worker_class=each) for each in classes))

    def _class_times(
        self, entries: ConfigurationDictionary, fleet: FleetFile
    ) -> dict[WorkerClass, ClassTimes]:
        name, works = self._model.name, [cut.work for cut in self._found.cuts]
        positions = [cut.position for cut in self.cuts]
        found: dict[WorkerClass, ClassTimes] = {}
        for worker_class in dict.fromkeys(worker.worker_class for worker in fleet.workers):
            try:
                times = class_times(entries, name, worker_class, works, positions)
            except NotFound as error:
                self.notes.append(f"workers of class {worker_class} are left out: {error}")
                continue
            found[worker_class] = times
            if self.cuts and times.staged is None:
                self.notes.append(
                    f"workers of class {worker_class} run it whole: no stages were measured there; "
                    f"'synergai profile --stages --engines {name}' measures them"
                )
        if not found:
            raise NotFound("; ".join(self.notes))
        return found

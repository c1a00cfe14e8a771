"""What ``synergai plan`` has to plan: an engine, its profiles, and a fleet."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.filesize import decimal

from synergai.errors import InvalidInput, InvalidSettings, NotFound
from synergai.models.cutting.chain import make_chain, planned_cuts, read_model
from synergai.models.directory import ModelDirectory
from synergai.models.origins import present_entries
from synergai.profiles.dictionary import DISTURBED
from synergai.profiles.files import load_dictionary
from synergai.routes.fleet import one_of_each, read_fleet
from synergai.routes.links import GATEWAY
from synergai.routes.options import staged_options, whole_options
from synergai.routes.problem import RouteProblem, RouteWorker
from synergai.routes.profiled import class_times
from synergai.runtime.text import counted, suggestion
from synergai.versions import stage_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from synergai.domain import WorkerClass
    from synergai.models.cutting.cuts import Cut
    from synergai.models.cutting.process import ModelCuts
    from synergai.models.directory import EngineDefinition
    from synergai.profiles.dictionary import ConfigurationDictionary
    from synergai.routes.fleet import FleetFile
    from synergai.routes.plan import RoutePlan
    from synergai.routes.problem import Leg
    from synergai.routes.profiled import ClassTimes


class Case(NamedTuple):
    """A problem, and what its numbers stand for.

    Attributes:
        cuts: those at the positions of the chain between its inputs and outputs.
        cut_count: number of all cuts of the engine.
        times: by worker.
        notes: what was left out, and why.
    """

    problem: RouteProblem
    cuts: Sequence[Cut]
    cut_count: int
    times: dict[str, ClassTimes]
    notes: Sequence[str]

    def runs(self, leg: Leg) -> str:
        """Return the engine or stage that a leg runs."""
        chain = self.problem.chain
        if self.is_whole(leg):
            return chain.engine
        positions = [0, *(cut.position for cut in self.cuts), self.cut_count + 1]
        return stage_name(chain.engine, positions[leg.first], positions[leg.last])

    def configuration(self, leg: Leg) -> str:
        """Return the configuration in which it runs."""
        times = self.times[leg.worker]
        return str(times.whole if self.is_whole(leg) else times.staged)

    def is_whole(self, leg: Leg) -> bool:
        """Return whether a leg runs the whole engine."""
        return (leg.first, leg.last) == (0, self.problem.chain.end)

    def worker(self, name: str) -> RouteWorker:
        """Return a worker by its name."""
        return next(each for each in self.problem.workers if each.name == name)

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
        if end > 1:
            least = min(problem.memory_bytes(position, position + 1) for position in range(end))
            needs += f" and {decimal(int(least))} for its smallest stage"
        roomy = max(problem.workers, key=lambda worker: worker.budget_bytes)
        return (
            f"nothing fits: {needs}, and the largest memory_mb is that of {roomy.name}, "
            f"{decimal(int(roomy.budget_bytes))}; raise memory_mb in the fleet file, or add workers"
        )


def make_case(
    name: str, models: Path, dictionary: Path, fleet: Path | None, source: str, queries: int
) -> Case:
    """Return the case that the options of the command describe."""
    notes: list[str] = []
    model = ModelDirectory(models).get(name).of_variant("")
    model.verified_digest()
    found = read_model(model)
    cuts = _plan_cuts(model, found, notes)
    entries = _read_entries(dictionary, models, model, notes)
    given = _default_fleet(entries, model, notes) if fleet is None else read_fleet(fleet)
    hosts = [GATEWAY, *(worker.id for worker in given.workers)]
    if source not in hosts:
        raise InvalidSettings(
            f"--source: there is no worker {source!r}{suggestion(source, hosts)}; there are: "
            f"{', '.join(hosts)}"
        )
    classes = dict.fromkeys(worker.worker_class for worker in given.workers)
    by_class = _class_times(entries, model, classes, found.cuts, cuts, notes)
    used = [worker for worker in given.workers if worker.worker_class in by_class]
    times = {worker.id: by_class[worker.worker_class] for worker in used}
    problem = RouteProblem(
        chain=make_chain(model, found, cuts),
        workers=tuple(
            RouteWorker(worker.id, times[worker.id].seconds, worker.budget_bytes) for worker in used
        ),
        links=given.links(),
        source=source,
        queries=queries,
    )
    return Case(problem, cuts, len(found.cuts), times, notes)


def _plan_cuts(model: EngineDefinition, found: ModelCuts, notes: list[str]) -> list[Cut]:
    cuts = planned_cuts(found.cuts)
    if found.refusal:
        notes.append(f"{model.file.name} cannot be cut: {found.refusal}")
    if (seams := sum(cut.seam for cut in found.cuts) or len(found.cuts)) > len(cuts):
        notes.append(
            f"{seams:,} cuts are too many to plan with: {len(cuts)} of them are considered, with "
            "the smallest tensor in equal shares of the work"
        )
    return cuts


def _read_entries(
    dictionary: Path, models: Path, model: EngineDefinition, notes: list[str]
) -> ConfigurationDictionary:
    entries, left_out = present_entries(load_dictionary(dictionary), models, model)
    if left_out:
        notes.append(
            f"{counted(left_out, 'entry')} of another model file left out; measure again with "
            f"'synergai profile --stages --engines {model.name}'"
        )
    if disturbed := sum(entry.label == DISTURBED for entry in entries):
        notes.append(
            f"{counted(disturbed, 'entry')} measured on a busy machine, whose times may be wrong"
        )
    return entries


def _default_fleet(
    entries: ConfigurationDictionary, model: EngineDefinition, notes: Sequence[str]
) -> FleetFile:
    classes = sorted({entry.worker_class for entry in entries if entry.engine == model.name})
    if not classes:
        fault = (
            f"the dictionary has no entry of {model.name!r}; measure it with "
            f"'synergai profile --stages --engines {model.name}'"
        )
        raise NotFound("; ".join([fault, *notes]))
    return one_of_each(classes)


def _class_times(
    entries: ConfigurationDictionary,
    model: EngineDefinition,
    classes: Iterable[WorkerClass],
    all_cuts: Sequence[Cut],
    cuts: Sequence[Cut],
    notes: list[str],
) -> dict[WorkerClass, ClassTimes]:
    works = [cut.work for cut in all_cuts]
    positions = [cut.position for cut in cuts]
    found: dict[WorkerClass, ClassTimes] = {}
    for worker_class in classes:
        try:
            times = class_times(entries, model.name, worker_class, works, positions)
        except NotFound as error:
            notes.append(f"workers of class {worker_class} are left out: {error}")
            continue
        found[worker_class] = times
        if cuts and times.staged is None:
            notes.append(
                f"workers of class {worker_class} run it whole: no stages were measured there; "
                f"'synergai profile --stages --engines {model.name}' measures them"
            )
    if not found:
        raise NotFound("; ".join(notes))
    return found

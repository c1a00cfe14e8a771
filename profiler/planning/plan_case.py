"""What ``synergai plan`` has to plan: an engine, its profiles, and a fleet."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace
from rich.filesize import decimal

from profiler.cutting.chain import make_chain, planned_cuts, read_model
from profiler.dictionary.origins import present_entries
from profiler.dictionary.predicted import PredictedTimes, known_times, works_of
from profiler.dictionary.stages import class_times, predicted_times
from profiler.planning.options import staged_options, whole_options
from synergai.core.routes.fleet import FleetFile, FleetWorker
from synergai.core.routes.links import GATEWAY
from synergai.core.routes.problem import RouteProblem, RouteWorker, least_memory_bytes
from synergai.errors import InvalidInput, InvalidSettings, NotFound, SynergaiError
from synergai.models.directory import ModelDirectory
from synergai.names import engine_of_stage, is_stage, stage_name, stage_positions
from synergai.profiles.dictionary import DISTURBED
from synergai.runtime.text import counted, suggestion
from synergai.runtime.toml_file import read_toml

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from profiler.cutting.cuts import Cut
    from profiler.dictionary.predicted import Work
    from profiler.dictionary.stages import ClassTimes
    from profiler.planning.plan import RoutePlan
    from synergai.core.routes.problem import Leg
    from synergai.domain import EngineName, WorkerClass
    from synergai.models.directory import EngineDefinition
    from synergai.profiles.dictionary import ConfigurationDictionary

_MOST_READ: Final = 16
"""Models of other engines that are read for their work, each by a process."""
_LEAST_SHARE: Final = 1e-6
"""Share of the queries that are counted with where none has continued."""


def read_fleet(path: Path) -> FleetFile:
    return read_toml(path, FleetFile, f"fleet {path}")


class Case:
    """What the options of the command describe: a problem, and what its numbers stand for.

    Args:
        assumes: assume times where none can be predicted either, instead of leaving workers out.

    Attributes:
        cuts: those at the positions of the chain between its inputs and outputs.
        classes: class of each worker.
        times: times of its class.
        predicted: the errors of the times of classes that are predicted; None if not known.
        notes: what was left out, and why.
    """

    def __init__(
        self,
        name: str,
        models: Path,
        dictionary: ConfigurationDictionary,
        fleet: FleetFile | None,
        source: str,
        queries: int,
        *,
        assumes: bool = False,
    ) -> None:
        self.notes: list[str] = []
        self.predicted: dict[WorkerClass, float | None] = {}
        self._model = ModelDirectory(models).get(name).of_variant("")
        digest = self._model.verified_digest()
        self._found = read_model(self._model)
        stages = [each for each in ModelDirectory(models).engines() if each.stage_of == digest]
        learned = {} if fleet is None else fleet.exits
        shares = _shares(stages, learned)
        is_learned = any(each.name in learned for each in stages)
        self.cuts = self._plan_cuts(shares, "in the fleet" if is_learned else "at calibration")
        entries = self._read_entries(dictionary, models)
        given = fleet or self._default_fleet(entries)
        hosts = [GATEWAY, *(worker.id for worker in given.workers)]
        if source not in hosts:
            raise InvalidSettings(
                f"--source: there is no worker {source!r}{suggestion(source, hosts)}; there are: "
                f"{', '.join(hosts)}"
            )
        others = [entry for entry in dictionary if entry.engine != self._model.name]
        known = known_times([*entries, *others], given)
        works = self._works({each.engine for each in known}, models)
        by_class = self._class_times(entries, given, PredictedTimes(known, works), assumes=assumes)
        used = [worker for worker in given.workers if worker.worker_class in by_class]
        self.classes = {worker.id: worker.worker_class for worker in used}
        self.times = {worker.id: by_class[worker.worker_class] for worker in used}
        self.problem = RouteProblem(
            chain=replace(
                make_chain(self._model, self._found, self.cuts),
                shares=(1.0, *shares.values(), 1.0) if shares else (),
            ),
            workers=tuple(
                RouteWorker(worker.id, times.seconds, worker.memory_mb * 1e6, times.watts)
                for worker in used
                for times in [self.times[worker.id]]
            ),
            links=given.links(),
            source=source,
            queries=queries,
        )

    @property
    def places(self) -> list[int]:
        """Numbers of the cuts at the positions of the chain, those of its ends included."""
        return [0, *(cut.position for cut in self.cuts), len(self._found.cuts) + 1]

    def runs(self, leg: Leg) -> str:
        """Return the engine or stage that a leg runs."""
        engine, places = self.problem.chain.engine, self.places
        if self.is_whole(leg):
            return engine
        return stage_name(engine, places[leg.first], places[leg.last])

    def configuration(self, leg: Leg) -> str:
        """Return the configuration in which it runs, or that its time is predicted."""
        if self.classes[leg.worker] in self.predicted:
            error = self.predicted[self.classes[leg.worker]]
            return "predicted" if error is None else f"predicted, {error:.0%} off"
        times = self.times[leg.worker]
        return str(times.whole if self.is_whole(leg) else times.staged)

    def predicted_notes(self, measured: Collection[WorkerClass] = ()) -> list[str]:
        """Say which times are predicted, and how well, but for classes that were measured since."""
        return [
            f"the times of class {name} are predicted from other profiles"
            + ("" if error is None else f", {error:.0%} off at the median for other classes")
            + "; measure them there with 'synergai profile --stages --engines "
            f"{self._model.name}'"
            for name, error in self.predicted.items()
            if name not in measured
        ]

    def is_whole(self, leg: Leg) -> bool:
        """Return whether a leg runs the whole engine."""
        return (leg.first, leg.last) == (0, self.problem.chain.end)

    def weigh(self, planners: Sequence[str]) -> list[RoutePlan]:
        """Return the options that can run, whole ones first."""
        options = whole_options(self.problem)
        for planner in planners:
            options += staged_options(self.problem, planner)
        if not options:
            advice = "raise memory_mb in the fleet file, or add workers"
            raise InvalidInput("; ".join([self.misfit(advice), *self.notes]))
        return options

    def misfit(self, advice: str) -> str:
        """Say what the engine needs if nothing fits, and what to do."""
        problem, end = self.problem, self.problem.chain.end
        needs = f"{problem.chain.engine} needs {decimal(int(problem.memory_bytes(0, end)))} whole"
        legs = min(len(problem.workers), end)
        if legs > 1:
            least = decimal(int(least_memory_bytes(problem, legs)))
            needs += f" and {least} on each of {legs} workers in stages"
        roomy = max(problem.workers, key=lambda worker: worker.budget_bytes)
        return (
            f"nothing fits: {needs}, and the largest memory is that of {roomy.name}, "
            f"{decimal(int(roomy.budget_bytes))}; {advice}"
        )

    def _plan_cuts(self, shares: Mapping[int, float], where: str) -> list[Cut]:
        found = self._found
        if shares:
            self.notes.append(
                "it is cut at its early exits only, behind which "
                f"{', '.join(f'{each:.0%}' for each in shares.values())} of the queries continue, "
                f"as {where}; times are means over all queries"
            )
            return [cut for cut in found.cuts if cut.position in shares]
        cuts = planned_cuts(found.cuts)
        if found.refusal:
            self.notes.append(f"{self._model.file.name} cannot be cut: {found.refusal}")
        if (seams := sum(cut.seam for cut in found.cuts) or len(found.cuts)) > len(cuts):
            self.notes.append(
                f"{seams:,} cuts are too many to plan with: {len(cuts)} of them are considered, "
                "with the smallest tensor in equal shares of the work"
            )
        return cuts

    def _read_entries(
        self, dictionary: ConfigurationDictionary, models: Path
    ) -> ConfigurationDictionary:
        entries, left_out = present_entries(dictionary, models, self._model)
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

    def _works(self, profiled: Collection[EngineName], models: Path) -> dict[EngineName, Work]:
        """Return the work of the engine and its stages; of others as well, if it has no profile."""
        name = self._model.name
        stages = (each for each in profiled if is_stage(each) and engine_of_stage(each) == name)
        chain = make_chain(self._model, self._found, self._found.cuts)
        works = works_of(chain, self._found, stages)
        if name not in profiled:
            for other in sorted(profiled)[:_MOST_READ]:
                with suppress(SynergaiError):
                    model = ModelDirectory(models).get(other).of_variant("")
                    found = read_model(model)
                    works |= works_of(make_chain(model, found, found.cuts), found)
        return works

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
        self,
        entries: ConfigurationDictionary,
        fleet: FleetFile,
        predicted: PredictedTimes,
        *,
        assumes: bool,
    ) -> dict[WorkerClass, ClassTimes]:
        name, works = self._model.name, [cut.work for cut in self._found.cuts]
        positions = [cut.position for cut in self.cuts]
        cores = {worker.worker_class: worker.cores for worker in fleet.workers}
        found: dict[WorkerClass, ClassTimes] = {}
        for worker_class in cores:
            try:
                times = class_times(entries, name, worker_class, works, positions)
            except NotFound as error:
                if predicted.knows(name):
                    self.predicted[worker_class] = predicted.error(name, worker_class)
                elif assumes:
                    self.notes.append(f"the times of class {worker_class} are assumed")
                else:
                    self.notes.append(f"workers of class {worker_class} are left out: {error}")
                    continue
                whole_s = predicted.seconds(name, worker_class, cores[worker_class])
                found[worker_class] = predicted_times(works, positions, whole_s)
                continue
            if assumes and times.staged is None:
                times = predicted_times(works, positions, times.seconds[0][-1])
            found[worker_class] = times
            if self.cuts and times.staged is None:
                self.notes.append(
                    f"workers of class {worker_class} run it whole: no stages were measured there; "
                    f"'synergai profile --stages --engines {name}' measures them"
                )
        if not found:
            raise NotFound("; ".join(self.notes))
        return found


def _shares(
    stages: Iterable[EngineDefinition], learned: Mapping[EngineName, float]
) -> dict[int, float]:
    """Return the share of the queries that continue behind each exit, by number of its cut.

    Args:
        learned: shares that leave at the exits of stages; those of the calibration for others.
    """
    found: dict[int, float] = {}
    end, share = 0, 1.0
    for stage in sorted(stages, key=lambda each: stage_positions(each.name)):
        first, last = stage_positions(stage.name)
        if first == end and stage.exit is not None:
            rate = learned.get(stage.name, stage.exit.rate)
            share = max(_LEAST_SHARE, share * (1 - rate))
            end, found[last] = last, share
    return found

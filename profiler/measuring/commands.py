"""What ``synergai profile`` measures: the given configurations, or those that a search asks for."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from profiler.cutting.stages import cut_engine
from profiler.dictionary.files import add_to_dictionary, delete_from_dictionary, load_dictionary
from profiler.measuring.conditions import THROTTLED_SHARE
from profiler.measuring.generators import find_engines, generate
from profiler.measuring.search_run import SearchRun, make_plan, make_space
from profiler.measuring.stages import StageSetting, measure_stages, measured_cuts
from synergai.cli.output import format_seconds
from synergai.domain import EngineName, Session, WorkerClass
from synergai.errors import EngineUnusable, InvalidInput, NotFound
from synergai.names import is_stage
from synergai.profiles.dictionary import DISTURBED, MEASURED, ConfigurationDictionary
from synergai.runtime.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from profiler.cutting.stages import CutEngine
    from profiler.dictionary.origins import EngineOrigins
    from profiler.measuring.generators import Draft, Machine
    from profiler.measuring.measurer import Measurer
    from profiler.measuring.messages import Measurement
    from profiler.measuring.profiler_settings import ProfilerSettings
    from synergai.profiles.dictionary import ProfileEntry


class _Command:
    """The common part of both.

    Attributes:
        summary: what to say at the end; empty for nothing.
    """

    def __init__(
        self,
        settings: ProfilerSettings,
        machine: Machine,
        origins: EngineOrigins,
        measurer: Measurer,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._origins = origins
        self._measurer = measurer
        self._worker_class = WorkerClass(settings.worker_class)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        # Elsewhere, each stop would print all of it again.
        self._is_live = console.is_terminal
        self._progress = Progress(*columns, console=console, disable=not self._is_live)
        self.summary = ""

    def _known(self) -> ConfigurationDictionary:
        return load_dictionary(self._settings.dictionary)

    def _is_fresh(self, entry: ProfileEntry) -> bool:
        """Return whether an entry was measured, of the present model file and runtime.

        Disturbed ones are included: otherwise a busy machine would begin from nothing after each
        interruption.
        """
        return entry.label in {MEASURED, DISTURBED} and not self._origins.is_stale(entry)

    def _keep(self, measurement: Measurement) -> None:
        entry = measurement.entry
        if measurement.is_disturbed:
            self._say(
                f"{measurement.name}: disturbed, other processes took "
                f"{measurement.background:.1%} of the machine's CPU time; measure it again on an "
                "idle machine"
            )
        if entry.throttled > THROTTLED_SHARE:
            self._say(
                f"{entry.engine}, {entry.configuration}: the machine limited its clocks "
                f"{entry.throttled:.0%} of the time because of heat or power"
            )
        kept = add_to_dictionary(
            self._settings.dictionary,
            [entry],
            keep_undisturbed=True,
        )
        for known in kept:
            self._say(
                f"{known.engine}, {known.configuration}: the undisturbed entry of "
                f"{known.measured_at or 'unknown date'} stays; to replace it, delete it first with "
                "'synergai dictionary delete'"
            )

    def _skip(self, error: EngineUnusable) -> None:
        self._say(str(error))

    @contextmanager
    def _following(self, session: Session) -> Iterator[Callable[[float], None]]:
        """Show the progress of a session; what it returns is called with the completed share."""
        # Without a share, the bar shows only that something is being measured.
        task = self._progress.add_task(f"{session.engine}, {session.configuration}", total=None)

        def report(share: float) -> None:
            self._progress.update(task, total=1.0, completed=share)

        began = time.monotonic()
        try:
            yield report
        except EngineUnusable:
            self._progress.remove_task(task)
            raise
        report(1.0)
        if not self._is_live:
            seconds = time.monotonic() - began
            self._say(f"{session.engine}, {session.configuration}: {format_seconds(seconds)}")

    def _drafts(self, threads: Sequence[int]) -> dict[EngineName, list[Draft]]:
        """Return the configurations of each engine, and say what is left out.

        Args:
            threads: thread counts; 0 stands for one per core. Empty for powers of two.
        """
        drafts: dict[EngineName, list[Draft]] = {}
        left_out: dict[str, None] = {}
        for definition in find_engines(self._settings.models, self._settings.engines):
            for name in definition.lacking:
                left_out[f"variant {name} of {definition.name}: its file is missing"] = None
            found, pruned = generate(definition, self._machine, threads)
            drafts[EngineName(definition.name)] = found
            left_out |= dict.fromkeys(f"{each.what}: {each.reason}" for each in pruned)
        for text in left_out:
            self._say(f"left out: {text}")
        if not any(drafts.values()):
            raise NotFound("nothing is left to measure")
        return drafts

    def _say(self, text: str) -> None:
        self._progress.console.print(text, markup=False, highlight=False, soft_wrap=True)


class ListedCommand(_Command):
    """Measures all engines in all configurations that were asked for."""

    def run(self) -> list[Measurement]:
        settings = self._settings
        wanted = self._sessions()
        plan = make_plan(settings.queries, settings.min_duration)
        known = [self._known_entry(session) for session in wanted]
        known_s = [
            entry.t_pre_s + plan.run_s(entry.qps, full=True) for entry in known if entry is not None
        ]
        least_s = settings.min_duration * (1 + plan.ranges_share)
        mean_s = sum(known_s) / len(known_s) if known_s else least_s
        modes = {session.configuration.power_mode for session in wanted} - {""}
        total_s = mean_s * len(wanted) + plan.switch_s * len(modes)
        unknown = "" if len(known_s) == len(known) else " and the time to load them"
        self._say(
            f"{counted(len(wanted), 'measurement')}, about {format_seconds(total_s)}{unknown}"
        )
        if settings.dry_run:
            return []
        # By default, all engines are measured that can be; a variant stands for no other.
        required = (bool(settings.engines) or len(wanted) == 1) and not any(
            session.configuration.variant for session in wanted
        )
        measurements: list[Measurement] = []
        failed: EngineUnusable | None = None
        with self._progress:
            for session in wanted:
                try:
                    measurement = self._measure(session)
                except EngineUnusable as error:
                    if required:
                        raise
                    failed = error
                    self._skip(error)
                else:
                    measurements.append(measurement)
                    self._keep(measurement)
        if not measurements and failed is not None:
            raise failed
        return measurements

    def _sessions(self) -> list[Session]:
        wanted = [
            Session(name, draft.configuration)
            for name, drafts in self._drafts(self._settings.threads or (1,)).items()
            for draft in drafts
        ]
        modes = [mode.name for mode in self._machine.modes] or [""]
        wanted.sort(key=lambda session: modes.index(session.configuration.power_mode))
        if self._settings.measure == "missing":
            left = [s for s in wanted if not ((e := self._known_entry(s)) and self._is_fresh(e))]
            self._say(f"{len(wanted) - len(left)} of {len(wanted)} are measured already")
            wanted = left
        return wanted

    def _known_entry(self, session: Session) -> ProfileEntry | None:
        row = self._dictionary.row(session.engine, self._worker_class)
        return row.get(session.configuration)

    @cached_property
    def _dictionary(self) -> ConfigurationDictionary:
        """The dictionary before the first measurement."""
        return self._known()

    def _measure(self, session: Session) -> Measurement:
        with self._following(session):
            return self._measurer.measure(
                session, queries=self._settings.queries, min_duration=self._settings.min_duration
            )


class StagesCommand(ListedCommand):
    """Measures the parts of engines on both sides of some cuts."""

    def run(self) -> list[Measurement]:
        settings = self._settings
        sessions = self._sessions()
        engines = dict.fromkeys(each.engine for each in sessions if not is_stage(each.engine))
        cut: dict[EngineName, CutEngine] = {}
        for name in engines:
            try:
                cut[name] = cut_engine(settings.models, name)
            except InvalidInput as error:
                if settings.engines:
                    raise
                self._say(f"left out: {error}")
        chosen = [
            each
            for each in sessions
            if each.engine in cut
            and each.configuration.variant in ("", cut[each.engine].definition.variant)
        ]
        self._say(
            ", ".join(
                f"{name}: {counted(len(measured_cuts(each.cuts)), 'cut')}"
                for name, each in cut.items()
            )
        )
        if settings.dry_run:
            return []
        added = 0
        with self._progress:
            for session in chosen:
                added += self._measure_stages(cut[session.engine], session)
        self.summary = f"{counted(added, 'entry')} of stages and their engines"
        return []

    def _measure_stages(self, engine: CutEngine, session: Session) -> int:
        """Measure in one configuration; return the number of entries added."""
        configuration = session.configuration
        known = self._known_entry(session)
        provider = configuration.execution_provider
        setting = StageSetting(
            models=self._settings.models,
            worker_class=self._worker_class,
            configuration=configuration,
            cores=self._settings.cores,
            provider=self._measurer.provider(provider),
        )
        self._measurer.activate(configuration.power_mode)
        total, added = len(measured_cuts(engine.cuts)), 0
        with self._following(session) as report:
            fresh = known if known is not None and self._is_fresh(known) else None
            for done, entries in enumerate(measure_stages(engine, setting, fresh), 1):
                add_to_dictionary(
                    self._settings.dictionary,
                    entries,
                    keep_undisturbed=True,
                )
                added += len(entries)
                report(done / total)
        return added


class SearchCommand(_Command):
    """Searches the best configurations of all engines."""

    def run(self) -> list[Measurement]:
        settings = self._settings
        dictionary = self._known()
        drafts = self._drafts(settings.threads or ())
        run = SearchRun(
            make_space(
                drafts,
                self._worker_class,
                self._machine,
                dictionary,
                lambda entry: settings.measure != "all" and self._is_fresh(entry),
            ),
            objective=settings.objective,
            budget=settings.budget,
            plan=make_plan(settings.queries, settings.min_duration),
            measurer=self._measurer,
            origins=self._origins,
            worker_class=self._worker_class,
            keep=self._keep,
            skip=self._skip,
        )
        forecast = run.forecast()
        self._say(
            f"{counted(forecast.configurations, 'configuration')} of "
            f"{counted(len(drafts), 'engine')}, {forecast.known} of them measured; "
            f"measuring the others takes about {format_seconds(forecast.exhaustive_s)}; "
            f"the search takes at most {format_seconds(forecast.at_most_s)}"
        )
        if settings.dry_run:
            return []
        try:
            with self._progress:
                overall = self._progress.add_task("search", total=None)
                run.run(
                    self._following,
                    lambda: self._progress.update(overall, description=run.progress()),
                )
        finally:
            # After Ctrl-C as well: they are as good as the measurements so far.
            predictions = run.predictions()
            put_predictions(settings.dictionary, predictions, self._origins.is_stale)
        self.summary = summarise(
            forecast.configurations, len(run.measurements), len(predictions), forecast.known
        )
        if rows := run.without_time():
            self._say(f"no time for {', '.join(rows)}: nothing of them was measured")
        return list(run.measurements.values())


def summarise(configurations: int, measured: int, predicted: int, known: int) -> str:
    """Return what a search has done, and what to do with it."""
    before = f", {known} were measured before" if known else ""
    hint = "'synergai dictionary show --best' lists the fastest ones"
    if not measured + known:
        hint = "a larger --budget gives it time"
    elif predicted:
        hint += "; predictions give way to what service shows, or to a profile of all"
    return (
        f"of {configurations} configurations, {measured} were measured and {predicted} "
        f"predicted{before}; {hint}"
    )


def put_predictions(
    path: Path, predictions: Sequence[ProfileEntry], is_stale: Callable[[ProfileEntry], bool]
) -> None:
    """Add predictions to a dictionary; they replace stale entries, and no other measurements."""
    predicted = {(each.engine, each.worker_class, each.configuration) for each in predictions}

    def is_outdated(entry: ProfileEntry) -> bool:
        key = entry.engine, entry.worker_class, entry.configuration
        return key in predicted and is_stale(entry)

    delete_from_dictionary(path, is_outdated)
    add_to_dictionary(path, predictions)

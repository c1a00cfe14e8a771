"""A search on this machine, with measurements that take no time."""

import math
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import cast

from msgspec.structs import replace

from profiler.dictionary.files import add_to_dictionary, load_dictionary
from profiler.dictionary.origins import EngineOrigins
from profiler.measuring.commands import put_predictions, summarise
from profiler.measuring.generators import Draft, Machine
from profiler.measuring.measurer import Measurer
from profiler.measuring.messages import Measurement
from profiler.measuring.search.belief import expected_log_qps
from profiler.measuring.search.space import Knobs
from profiler.measuring.search_run import MAX_OTHERS, SearchRun, make_plan, make_space
from profiler.measuring.single_stream import SingleStreamResult
from synergai.domain import Configuration, EngineName, Session, WorkerClass
from synergai.errors import EngineUnusable
from synergai.profiles.dictionary import MEASURED, PREDICTED, ConfigurationDictionary, ProfileEntry
from tests.cores import new_entry

A, B, BROKEN = EngineName("a"), EngineName("b"), EngineName("broken")
HERE = WorkerClass("here")
LEVELS = (1, 2, 4, 8)
RESULT = SingleStreamResult(
    validity="VALID", queries=64, qps=1.0, latency_p50_s=0, latency_p90_s=0, latency_p99_s=0
)


class FakeMeasurer:
    """Measures engines whose speed follows the law, and one that fails."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[tuple[Session, int]] = []

    def measure(self, session: Session, *, max_batch: int, **_: object) -> Measurement:
        self.asked.append((session, max_batch))
        self.now += 4.0
        if BROKEN in (session.engine, session.configuration.variant):
            raise EngineUnusable("cannot measure broken")
        level = 100.0 if session.engine == A else 20.0
        threads = session.configuration.threads
        entry = new_entry(
            session.engine,
            HERE,
            level * math.exp(expected_log_qps(Knobs(threads, 8))),
            session.configuration,
            model_load_s=1.0,
            batch_qps=(1.0,) if max_batch > 1 else (),
            accuracy=0.75,
            accuracy_samples=100,
        )
        return Measurement(entry=entry, single_stream=RESULT, logs="", background=0.0)


def searched(
    measurer: FakeMeasurer,
    entries: Iterable[ProfileEntry] = (),
    engines: tuple[EngineName, ...] = (A, B),
    budget: float | None = math.inf,
    max_batch: int = 1,
    variants: tuple[str, ...] = ("",),
    *,
    begun: bool = True,
) -> tuple[SearchRun, ConfigurationDictionary, list[EngineUnusable]]:
    """Search to the end, once begun; return the run, its measurements, and the errors."""
    drafts = {
        engine: [
            Draft(Configuration(count, variant=variant), max_batch)
            for count in LEVELS
            for variant in variants
        ]
        for engine in engines
    }
    dictionary = ConfigurationDictionary(entries)
    errors: list[EngineUnusable] = []
    run = SearchRun(
        make_space(
            drafts, HERE, Machine(pinned=range(8)), dictionary, lambda each: each.label == MEASURED
        ),
        objective="front",
        budget=budget,
        plan=make_plan(100, 10.0),
        measurer=cast("Measurer", measurer),
        origins=EngineOrigins(Path("/nowhere")),
        worker_class=HERE,
        keep=lambda measurement: dictionary.put(measurement.entry),
        skip=errors.append,
        clock=lambda: measurer.now,
    )
    if begun:
        run.run(nullcontext, lambda: None)
    return run, dictionary, errors


def test_large_dictionary_is_known_by_what_says_most_about_the_search() -> None:
    def entry(engine: str, worker_class: str, mode: int) -> ProfileEntry:
        return new_entry(engine, worker_class, 1.0, Configuration(1, power_mode=str(mode)))

    strangers = [entry("other", "there", mode) for mode in range(2000)]
    same_engine = [entry("a", "there", mode) for mode in range(10)]
    same_class = [entry("other", "here", mode) for mode in range(10)]
    searched = make_space(
        {A: [Draft(Configuration(1))]},
        HERE,
        Machine(pinned=range(8)),
        [*strangers, *same_engine, *same_class],
        lambda _: True,
    )
    assert len(searched.known) == MAX_OTHERS
    known = [searched.space.points[index] for index in searched.known]
    assert sum(point.engine == A for point in known) == 10
    assert sum(point.device[0] == HERE for point in known) == 10


def test_every_configuration_is_measured_or_predicted() -> None:
    run, dictionary, _ = searched(FakeMeasurer())
    predictions = run.predictions()
    assert 2 <= len(dictionary) < 8
    assert len(dictionary) + len(predictions) == 8
    for entry in predictions:
        assert (entry.label, entry.worker_class) == (PREDICTED, HERE)
        assert (entry.accuracy, entry.accuracy_samples) == (0.75, 100)
        assert entry.error > 0
        assert entry.t_pre_s > 0


def test_complete_dictionary_leaves_nothing_to_do() -> None:
    run, dictionary, _ = searched(FakeMeasurer())
    measurer = FakeMeasurer()
    every = [*dictionary, *(replace(each, label=MEASURED) for each in run.predictions())]
    again, _, _ = searched(measurer, every)
    assert measurer.asked == []
    assert again.predictions() == []


def test_predictions_of_an_earlier_search_do_not_count_as_measurements() -> None:
    run, _, _ = searched(FakeMeasurer())
    again, _, _ = searched(FakeMeasurer(), run.predictions(), begun=False)
    assert again.forecast().known == 0


def test_budget_is_enough_for_a_first_measurement() -> None:
    measurer = FakeMeasurer()
    run, _, _ = searched(measurer, budget=1e-6, begun=False)
    assert run.forecast().at_most_s > 1.0
    searched(measurer, budget=1e-6)
    assert len(measurer.asked) == 1


def test_failing_variant_only_costs_itself() -> None:
    measurer = FakeMeasurer()
    run, dictionary, errors = searched(measurer, engines=(A,), variants=("full", BROKEN))
    assert len(errors) == 2
    assert run.without_time() == []
    every = [*dictionary, *run.predictions()]
    assert {entry.configuration.variant for entry in every} == {"full"}
    assert len(every) == len(LEVELS)


def test_search_without_time_says_what_it_had_none_for() -> None:
    measurer = FakeMeasurer()
    run, _, _ = searched(measurer, budget=0.0)
    assert measurer.asked == []
    assert run.without_time() == [A, B]
    assert run.predictions() == []


def test_failures_of_an_engine_take_no_time_from_the_others() -> None:
    alone = FakeMeasurer()
    searched(alone, budget=0.4)
    with_broken = FakeMeasurer()
    _, _, errors = searched(with_broken, engines=(A, BROKEN, B), budget=0.4)
    assert len(errors) == 2
    measured = [session for session, _ in with_broken.asked if session.engine != BROKEN]
    assert len(measured) >= len(alone.asked)


def test_what_there_was_no_time_for_is_named_by_variant() -> None:
    run, _, _ = searched(FakeMeasurer(), engines=(A, B), budget=1e-6, variants=("", "int8"))
    [missing, other] = run.without_time()
    assert missing in {"a (variant=int8)", "a (the CPU)"}
    assert other == "b"


def test_batches_are_measured_of_the_best_configuration_only() -> None:
    measurer = FakeMeasurer()
    _, dictionary, _ = searched(measurer, engines=(A,), max_batch=4)
    assert [session.configuration.threads for session, batch in measurer.asked if batch > 1] == [8]
    [best] = [entry for entry in dictionary if entry.configuration.threads == 8]
    assert best.batch_qps
    assert best.repeats >= 2
    assert best.error < 0.024


def test_predictions_replace_stale_measurements_and_no_others(tmp_path: Path) -> None:
    run, _, _ = searched(FakeMeasurer())
    stale, fresh, *others = run.predictions()
    old = [replace(each, label=MEASURED, qps=1.0) for each in (stale, fresh)]
    add_to_dictionary(tmp_path / "d.db", old)
    put_predictions(tmp_path / "d.db", [stale, fresh, *others], lambda entry: entry == old[0])
    assert set(load_dictionary(tmp_path / "d.db")) == {stale, old[1], *others}


def test_other_engines_and_worker_classes_of_the_dictionary_help() -> None:
    _known, dictionary, _ = searched(FakeMeasurer(), engines=(A,))
    there = [replace(entry, worker_class=WorkerClass("there")) for entry in dictionary]
    measurer = FakeMeasurer()
    run, _, _ = searched(measurer, [*dictionary, *there], engines=(B,))
    assert {session.engine for session, _ in measurer.asked} == {B}
    assert {entry.engine for entry in run.predictions()} <= {B}


def test_only_configurations_that_the_machine_offers_are_measured() -> None:
    _known, dictionary, _ = searched(FakeMeasurer(), engines=(A,))
    best = max(dictionary, key=lambda entry: entry.qps)
    # Of the same engine on this worker class, from when more was offered.
    gone = [
        replace(best, configuration=Configuration(threads, "MAXN"), qps=best.qps * 1.001)
        for threads in LEVELS
    ]
    measurer = FakeMeasurer()
    searched(measurer, gone, engines=(A,))
    assert measurer.asked
    assert {session.configuration.power_mode for session, _ in measurer.asked} == {""}


def test_summary_counts_and_says_what_to_do_next() -> None:
    text = summarise(configurations=12, measured=5, predicted=6, known=1)
    assert text.startswith(
        "of 12 configurations, 5 were measured and 6 predicted, 1 were measured before; "
    )
    assert "synergai dictionary show --best" in text
    assert "--budget" in summarise(configurations=2, measured=0, predicted=0, known=0)
    assert "predictions" not in summarise(configurations=2, measured=2, predicted=0, known=0)

"""The characterisation: computations by hand, agreement with printed numbers, small spaces."""

import pytest
from msgspec import structs

from profiler.dictionary.files import load_dictionary
from profiler.reports.characterisation.fleet_profile import (
    FleetProfile,
    fronts,
    scale_threads,
    summarize_classes,
)
from profiler.reports.characterisation.operating_modes import Limits, compare_modes, limits_of
from profiler.reports.characterisation.report import characterise, compute_facts
from profiler.reports.page import Report
from profiler.reports.printed import CHARACTERISATION, compare
from profiler.simulator.simulator_settings import RECONSTRUCTED_PROFILE
from synergai.domain import Configuration, WorkerClass
from synergai.errors import InvalidInput
from synergai.profiles.dictionary import ProfileEntry
from tests.cores import new_entry
from tests.report_blocks import figures_of


def an_entry(
    qps: float,
    *,
    engine: str = "net",
    on: str = "x86",
    threads: int = 0,
    mode: str = "",
    t_pre_s: float = 0.0,
    watts: float = 0.0,
    label: str = "measured",
) -> ProfileEntry:
    return new_entry(
        engine,
        on,
        qps,
        Configuration(threads, mode),
        model_load_s=t_pre_s,
        watts=watts,
        label=label,
    )


@pytest.fixture(scope="module")
def reconstructed() -> FleetProfile:
    return FleetProfile(load_dictionary(RECONSTRUCTED_PROFILE), 3900)


def report_on(*entries: ProfileEntry) -> Report:
    return characterise(FleetProfile(entries, 100), source="test", made="now")


def test_classes_are_compared_by_ratios_of_means_over_shared_engines() -> None:
    space = FleetProfile(
        [
            an_entry(40.0, engine="a", t_pre_s=1.0),
            an_entry(20.0, engine="b", t_pre_s=3.0),
            an_entry(10.0, engine="a", on="board", t_pre_s=2.0),
            an_entry(5.0, engine="b", on="board", t_pre_s=6.0),
            an_entry(90.0, engine="c", on="board"),
        ],
        100,
    )
    first, second = summarize_classes(space)
    assert (first.worker_class, first.qps_ratio) == ("x86", 1.0)
    assert second.shared == 2
    assert second.qps_ratio == pytest.approx(30 / 7.5)
    assert second.t_pre_ratio == pytest.approx(2.0)
    # 100 queries: 3.5 and 8 s on x86, 12 and 26 s on the board.
    assert second.total_ratio == pytest.approx(19 / 5.75)


def test_threads_are_compared_in_one_mode_and_on_one_provider() -> None:
    space = FleetProfile(
        [
            an_entry(10.0, threads=1, mode="fast", t_pre_s=2.0),
            an_entry(16.0, threads=2, mode="fast", t_pre_s=1.5),
            an_entry(20.0, threads=4, mode="fast", t_pre_s=1.8),
            an_entry(2.0, threads=1, mode="slow"),
            an_entry(4.0, threads=8, mode="slow"),
        ],
        100,
    )
    [scaling] = scale_threads(space)
    assert scaling.qps == {1: 1.0, 2: 1.6, 4: 2.0}
    assert scaling.total[2] == pytest.approx(12.0 / 7.75)
    assert scaling.t_pre_reduction == pytest.approx(0.25)
    assert scaling.pearson == pytest.approx(0.953821, abs=1e-6)
    assert scaling.near_best == 4


def test_an_engine_may_be_slower_with_all_threads() -> None:
    space = FleetProfile(
        [an_entry(q, threads=n) for n, q in ((1, 10.0), (2, 19.5), (4, 12.0))], 100
    )
    [engine] = scale_threads(space)[0].engines
    assert (engine.best, engine.near_best) == (2, 2)


def test_modes_are_compared_by_their_best_thread_count() -> None:
    space = FleetProfile(
        [
            an_entry(10.0, mode="1x1000mhz", threads=1),
            an_entry(30.0, mode="2x2000mhz", threads=1),
            an_entry(40.0, mode="2x2000mhz", threads=2),
        ],
        100,
    )
    [comparison] = compare_modes(space)
    assert comparison.best.mode == "2x2000mhz"
    assert comparison.worst.behind == 4.0
    assert {knob.name: knob.values[-1].gain for knob in comparison.knobs} == {
        "clock": 4.0,
        "cores": 4.0,
    }


@pytest.mark.parametrize(
    ("on", "mode", "limits"),
    [
        ("agx", "6", Limits(mhz=2266, cores=8, unlimited=True)),
        ("xavier-nx", "MODE_10W_DESKTOP", Limits(mhz=1900, cores=4, watts=10)),
        ("orin", "MODE_15W_4CORE", Limits(cores=4, watts=15)),
        ("orin", "MODE_30W", Limits(watts=30)),
        ("x86", "4x1200mhz", Limits(mhz=1200, cores=4)),
        ("x86", "0.5cpu", Limits(cores=0.5)),
        ("x86", "2cpu_on_0-1", Limits(cores=2)),
        ("x86", "6", Limits()),
    ],
)
def test_limits_are_read_from_the_names_of_modes(on: str, mode: str, limits: Limits) -> None:
    assert limits_of(WorkerClass(on), mode) == limits


def test_front_has_what_no_other_configuration_surpasses() -> None:
    fast, middle, efficient = (
        an_entry(100.0, threads=4, watts=50.0),
        an_entry(80.0, threads=2, watts=20.0),
        an_entry(40.0, threads=1, watts=8.0),
    )
    worse = an_entry(70.0, threads=3, watts=30.0)
    [front] = fronts(
        FleetProfile([worse, efficient, fast, middle, an_entry(9.0, engine="dark")], 100)
    )
    assert front.front == (fast, middle, efficient)
    assert front.saving == pytest.approx(1 - 0.2 / 0.5)


def test_reconstructed_profile_agrees_with_most_printed_numbers(
    reconstructed: FleetProfile,
) -> None:
    facts = compute_facts(
        summarize_classes(reconstructed), scale_threads(reconstructed), compare_modes(reconstructed)
    )
    assert {fact.key for fact in CHARACTERISATION} <= facts.keys()
    by_key = {c.fact.key: c for c in compare(CHARACTERISATION, facts)}
    for key in (
        "workers.x86.qps.high",
        "workers.x86.total.high",
        "workers.nx.t_pre_ratio",
        "threads.x86.pearson",
        "threads.x86.t_pre",
        "modes.agx.1.qps.mean",
        "modes.agx.6.qps.high",
        "modes.nx.1.total.mean",
        "knobs.nx.budget.15",
    ):
        assert by_key[key].verdict == "agrees", key
    assert [round(facts[f"threads.x86.qps.{n}"], 2) for n in (2, 4, 8, 16)] == [
        1.74,
        2.55,
        3.46,
        3.82,
    ]
    assert (
        max(abs(c.deviation) for c in by_key.values() if c.fact.key != "modes.agx.1.qps.low") < 0.16
    )


def test_report_on_a_reconstructed_profile_says_so(reconstructed: FleetProfile) -> None:
    report = characterise(reconstructed, source="thesis", made="now")
    assert report.is_reconstructed
    assert report.banner.startswith("Reconstructed")


SMALL = {
    "one entry": [an_entry(10.0)],
    "one thread count": [an_entry(10.0, threads=2), an_entry(9.0, engine="b", threads=2)],
    "no common engine": [an_entry(10.0), an_entry(3.0, engine="b", on="board")],
    "different thread counts": [an_entry(1.0, threads=1), an_entry(2.0, engine="b", threads=2)],
    "unknown modes": [an_entry(10.0, mode="A"), an_entry(9.0, mode="B")],
    "equal speeds": [an_entry(10.0, threads=n) for n in (1, 2)],
    "one metered": [an_entry(10.0, watts=5.0), an_entry(4.0, on="board")],
    "gaps in thread counts": [
        *(an_entry(10.0 * n, threads=n) for n in (1, 2)),
        *(an_entry(10.0 * n, engine="b", threads=n) for n in (2, 4)),
    ],
}


@pytest.mark.parametrize("entries", SMALL.values(), ids=SMALL)
def test_small_spaces_have_whole_cards(entries: list[ProfileEntry]) -> None:
    report = report_on(*entries)
    for answer in report.findings.values():
        assert answer.endswith(".")
        assert "nan" not in answer
        assert "None" not in answer
    assert not report.banner
    assert not report.is_reconstructed


def test_what_is_missing_is_said() -> None:
    report = report_on(an_entry(10.0))
    cards = " ".join(report.findings.values())
    assert "Only one worker class" in cards
    assert "profile with --threads" in cards
    assert "several power modes" in cards
    assert any("T_pre was not measured" in figure.caption for figure in figures_of(report))
    notes = [b for section in report.sections for b in section.blocks if isinstance(b, str)]
    assert any("no front" in note for note in notes)


def test_nothing_is_computed_from_predicted_entries() -> None:
    measured = an_entry(10.0, threads=1)
    predicted = an_entry(99.0, threads=2, label="predicted")
    space = FleetProfile([measured, predicted], 100)
    assert space.best(measured.engine, measured.worker_class) == measured
    assert scale_threads(space) == []
    assert report_on(measured, predicted).facts["Entries"] == "1 measured and 1 predicted"


def test_entries_of_an_older_model_file_or_runtime_are_set_aside() -> None:
    new = structs.replace(
        an_entry(10.0, threads=1), digest="b", runtime="r 2", measured_at="2026-02-01T00:00:00Z"
    )
    older = structs.replace(
        an_entry(50.0, threads=2), digest="a", runtime="r 2", measured_at="2026-01-01T00:00:00Z"
    )
    unknown = an_entry(20.0, threads=4)
    space = FleetProfile([new, older, unknown], 100)
    assert (space.stale, space.measured) == ([older], [new, unknown])
    assert space.labels() == {"measured": 2, "stale": 1}
    assert report_on(new, older).facts["Entries"] == "1 measured and 1 stale"


def test_the_measured_clock_stands_for_one_that_the_mode_does_not_state() -> None:
    entries = [
        structs.replace(an_entry(qps, mode=mode), clock_mhz=clock)
        for mode, qps, clock in (("slow", 10.0, 801.0), ("fast", 20.0, 1598.0))
    ]
    [comparison] = compare_modes(FleetProfile(entries, 100))
    [knob] = comparison.knobs
    assert [(knob.name, each.value) for each in knob.values] == [("clock", 800), ("clock", 1600)]


def test_two_points_and_disturbed_ones_have_no_correlation() -> None:
    two = FleetProfile([an_entry(10.0, threads=1), an_entry(9.0, threads=2)], 100)
    disturbed = FleetProfile(
        [
            an_entry(10.0, threads=1),
            an_entry(9.0, threads=2, label="disturbed"),
            an_entry(8.0, threads=4, label="disturbed"),
        ],
        100,
    )
    for space in (two, disturbed):
        [scaling] = scale_threads(space)
        assert scaling.pearson is None


def test_clock_and_cores_are_told_apart_by_partial_correlation() -> None:
    # QPS follows the clock alone; modes with more cores have lower clocks, as on the AGX.
    modes = {"8x1000mhz": 10.0, "6x1200mhz": 12.0, "4x1500mhz": 15.0, "2x1600mhz": 16.0}
    [comparison] = compare_modes(FleetProfile([an_entry(q, mode=m) for m, q in modes.items()], 100))
    clock, cores = comparison.knobs
    assert cores.pearson is not None
    assert cores.pearson < -0.9
    assert clock.partial == pytest.approx(1.0)
    assert cores.partial is None


def test_correlation_with_the_budget_says_that_maxn_is_left_out(
    reconstructed: FleetProfile,
) -> None:
    report = characterise(reconstructed, source="thesis", made="now")
    captions = {figure.key: figure.caption for figure in figures_of(report)}
    assert "MAXN" in captions["figure-5-4-agx"]
    assert "MAXN" not in captions["figure-5-4-nx"]


def test_modes_without_a_common_engine_are_not_compared() -> None:
    apart = [an_entry(90.0, engine="a", mode="fast"), an_entry(1.0, engine="b", mode="slow")]
    assert compare_modes(FleetProfile(apart, 100)) == []
    shared = [an_entry(10.0, engine="c", mode="fast"), an_entry(30.0, engine="c", mode="slow")]
    [comparison] = compare_modes(FleetProfile([*apart, *shared], 100))
    assert (comparison.best.mode, comparison.worst.behind) == ("slow", 3.0)


@pytest.mark.parametrize("entries", [[], [an_entry(1.0, label="predicted")]])
def test_a_dictionary_without_measurements_is_refused(entries: list[ProfileEntry]) -> None:
    with pytest.raises(InvalidInput, match="no measurement"):
        FleetProfile(entries, 100)

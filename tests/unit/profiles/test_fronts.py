"""Fronts of variants: dominance, significance, unknown accuracies."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from profiler.dictionary.files import add_to_dictionary
from profiler.engines.cli import app
from profiler.engines.variants import FrontPoint, variant_fronts
from synergai.domain import Configuration, EngineName, Origin, Variant, WorkerClass
from synergai.errors import NotFound
from synergai.profiles.dictionary import ConfigurationDictionary, ProfileEntry
from tests.cores import new_entry

NET = EngineName("net")


def an_entry(
    variant: str,
    qps: float,
    accuracy: float | None = None,
    samples: int = 10_000,
    *,
    worker_class: str = "x86",
    threads: int = 1,
    error: float = 0.0,
) -> ProfileEntry:
    return new_entry(
        NET,
        worker_class,
        qps,
        Configuration(threads, variant=variant),
        error=error,
        accuracy=accuracy or 0.0,
        accuracy_samples=samples if accuracy is not None else 0,
    )


def points(*entries: ProfileEntry) -> dict[str, FrontPoint]:
    [front] = variant_fronts(entries, {})
    return {point.variant: point for point in front.points}


def test_variant_that_is_neither_faster_nor_more_accurate_is_dominated() -> None:
    found = points(
        an_entry("full", 100, 0.90),
        an_entry("int8", 250, 0.89),
        an_entry("slow", 90, 0.85),
        an_entry("tiny", 900, 0.70),
    )
    assert list(found) == ["tiny", "int8", "full", "slow"]
    assert [name for name, point in found.items() if point.on_front] == ["tiny", "int8", "full"]
    assert found["slow"].dominated_by == "full"


def test_accuracies_within_their_standard_error_are_a_tie() -> None:
    entries = an_entry("full", 100, 0.884), an_entry("int8", 250, 0.881)
    found = points(*entries)
    assert found["full"].dominated_by == "int8"
    more = [an_entry("full", 100, 0.884, 200_000), an_entry("int8", 250, 0.881, 200_000)]
    assert all(point.on_front for point in points(*more).values())


def on(samples: str, entry: ProfileEntry, measured_at: str = "") -> ProfileEntry:
    return replace(entry, samples_digest=samples, measured_at=measured_at)


def test_accuracy_on_other_samples_than_those_of_most_variants_does_not_count() -> None:
    found = points(
        on("a", an_entry("full", 100, 0.90)),
        on("b", an_entry("int8", 250, 0.99)),
        on("a", an_entry("tiny", 900, 0.70)),
        an_entry("earlier", 500, 0.80),  # whose samples are not known
    )
    assert {name for name, point in found.items() if point.on_front} == {"full", "tiny", "earlier"}
    assert (found["int8"].accuracy, found["int8"].on_other_samples) == (None, True)


def test_of_equally_many_accuracies_the_latest_samples_count() -> None:
    old, new = an_entry("full", 100, 0.9), an_entry("int8", 250, 0.8)
    found = points(on("a", old, "2026-01-01"), on("b", new, "2026-02-01"))
    assert (found["full"].accuracy, found["int8"].accuracy) == (None, 0.8)
    dictionary = ConfigurationDictionary([on("a", old)])
    assert dictionary.samples(NET, WorkerClass("x86")) == "a"
    dictionary.put(on("b", new, "2026-02-01"))
    assert dictionary.samples(NET, WorkerClass("x86")) == "b"
    dictionary.remove(new)
    assert dictionary.samples(NET, WorkerClass("x86")) == "a"
    assert dictionary.samples(NET, WorkerClass("arm")) == ""


def test_throughputs_within_their_standard_error_are_a_tie() -> None:
    found = points(an_entry("full", 100, 0.9), an_entry("other", 100.5, 0.8))
    assert found["other"].dominated_by == "full"
    found = points(an_entry("full", 100, 0.9, error=0.1), an_entry("other", 110, 0.8))
    assert found["other"].dominated_by == "full"
    found = points(an_entry("full", 100, 0.9), an_entry("other", 110, 0.8))
    assert found["other"].on_front


def test_chain_of_ties_loses_no_more_than_a_tie() -> None:
    accuracies = [0.884, 0.881, 0.878, 0.875, 0.872]
    entries = [an_entry(f"v{i}", 100 * 1.5**i, each) for i, each in enumerate(accuracies)]
    front = [point for point in points(*entries).values() if point.on_front]
    best = max(point.accuracy or 0 for point in front)
    assert accuracies[0] - best < 0.0046
    assert len(front) > 1


def test_accuracy_that_was_not_measured_is_the_declared_one() -> None:
    declared = {"full": Variant(name="full", accuracy=0.751, origin=Origin.PUBLISHED)}
    [front] = variant_fronts([an_entry("full", 100), an_entry("int8", 200)], declared)
    int8, full = front.points
    assert (full.accuracy, full.origin, full.samples, full.on_front) == (
        *(0.751, Origin.PUBLISHED, 0),
        True,
    )
    assert (int8.accuracy, int8.on_front, int8.dominated_by) == (None, False, "")


def test_there_is_a_front_per_worker_class_and_configuration() -> None:
    entries = [
        an_entry(name, 100, 0.9, worker_class=worker_class, threads=threads)
        for name in ("full", "int8")
        for worker_class in ("x86", "agx")
        for threads in (1, 2)
    ]
    entries.append(an_entry("", 50, 0.9))
    fronts = variant_fronts(entries, {})
    assert [(each.worker_class, each.configuration, len(each.points)) for each in fronts] == [
        ("agx", Configuration(1), 2),
        ("agx", Configuration(2), 2),
        ("x86", Configuration(1), 2),
        ("x86", Configuration(2), 2),
    ]


FIGURES = st.lists(
    st.tuples(st.floats(1, 1e6), st.floats(0, 1), st.integers(1, 100_000), st.floats(0, 1)),
    min_size=1,
    max_size=8,
)


@given(FIGURES)
def test_every_front_has_a_member_and_only_members_dominate(
    figures: list[tuple[float, float, int, float]],
) -> None:
    found = points(
        *(
            an_entry(f"v{i}", qps, accuracy, samples, error=error)
            for i, (qps, accuracy, samples, error) in enumerate(figures)
        )
    )
    front = {name for name, point in found.items() if point.on_front}
    assert front
    for point in found.values():
        assert point.on_front or point.dominated_by in front


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    entries = [an_entry("full", 100, 0.90), an_entry("int8", 250, 0.90), an_entry("p25", 900)]
    add_to_dictionary(tmp_path / "d.db", entries)
    return tmp_path / "d.db"


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, ("front", *arguments))))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_command_shows_the_front(dictionary: Path, tmp_path: Path) -> None:
    shown = run("net", "--dictionary", dictionary, "--models", tmp_path / "nowhere")
    assert "90.00% ± 0.30%" in shown
    assert "dominated by int8" in shown
    assert "0.40x" in shown
    assert "unknown" in shown


def test_engine_without_measured_variants_is_not_found(dictionary: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="synergai profile --engines other"):
        run("other", "--dictionary", dictionary, "--models", tmp_path / "nowhere")

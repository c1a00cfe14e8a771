"""Configuration dictionaries as CSV, JSON and databases."""

import math
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from profiler.dictionary.files import add_to_dictionary, load_dictionary, read_csv, write_csv
from synergai.domain import Configuration
from synergai.errors import InvalidInput, NotFound, Unavailable
from synergai.profiles.dictionary import (
    COLUMNS,
    DISTURBED,
    OBSERVED,
    PREDICTED,
    ConfigurationDictionary,
    ProfileEntry,
    to_record,
)
from synergai.profiles.store import DictionaryStore
from synergai.runtime.database import connect
from tests.cores import new_entry

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
FIGURES = st.floats(min_value=0, max_value=1e12)
ENTRIES = st.builds(
    ProfileEntry,
    engine=NAMES,
    worker_class=NAMES,
    configuration=st.builds(Configuration, st.integers(0, 1024), TEXTS, TEXTS, st.just("") | NAMES),
    qps=st.floats(min_value=1e-6, max_value=1e9),
    batch_qps=st.lists(st.floats(min_value=1e-6, max_value=1e9), max_size=6).map(tuple),
    **dict.fromkeys(("queries", "repeats"), st.integers(0, 1 << 53)),
    **dict.fromkeys(("throttled", "background"), st.floats(min_value=0, max_value=1)),
    **dict.fromkeys(("label", "measured_at", "digest", "runtime", "agent"), TEXTS),
    **dict.fromkeys(("model_load_s", "latency_p50_s", "watts", "error", "clock_mhz"), FIGURES),
)
DICTIONARIES = st.lists(ENTRIES, max_size=5).map(ConfigurationDictionary)


def an_entry(engine: str = "e", qps: float = 10.0, threads: int = 1) -> ProfileEntry:
    return new_entry(engine, "x86", qps, Configuration(threads))


def change(path: Path, statements: str) -> None:
    with closing(connect(path)) as connection:
        connection.execute(statements)


def content(dictionary: ConfigurationDictionary) -> set[ProfileEntry]:
    return set(dictionary)


@given(DICTIONARIES)
def test_csv_reads_back_what_it_writes(dictionary: ConfigurationDictionary) -> None:
    assert content(read_csv(write_csv(dictionary))) == content(dictionary)


@given(DICTIONARIES)
def test_database_reads_back_what_it_writes(
    tmp_path_factory: pytest.TempPathFactory, dictionary: ConfigurationDictionary
) -> None:
    with DictionaryStore(tmp_path_factory.mktemp("store") / "d.db") as store:
        store.put_all(dictionary)
        assert content(store.load()) == content(dictionary)


@given(st.text(max_size=200))
def test_arbitrary_text_is_invalid_input(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_csv(text)


def test_equal_dictionaries_are_equal_texts() -> None:
    first = ConfigurationDictionary([an_entry("a"), an_entry("b")])
    second = ConfigurationDictionary([an_entry("b"), an_entry("a")])

    assert write_csv(first) == write_csv(second)


def test_missing_columns_take_their_defaults() -> None:
    (entry,) = read_csv("qps,engine,worker_class\n10,e,x86\n")

    assert entry == new_entry("e", "x86", 10.0, Configuration())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"f\.csv, line 1: the column 'engine' is missing"),
        ("engine,worker_class\n", r"line 1: the column 'qps' is missing"),
        ("engine,worker_class,qps,quality\n", "line 1: unknown column 'quality'"),
        ("engine,worker_class,qps,qps\n", "line 1: a column appears twice"),
        ("engine,worker_class,qps\ne,x86,fast\n", "line 2: qps must be a number"),
        ("engine,worker_class,qps\ne,x86,0\n", "line 2: .* qps must be positive"),
        ("engine,worker_class,qps\ne,x86,nan\n", "line 2: .* qps must be positive"),
        ("engine,worker_class,qps\ne,x86,1e999\n", "line 2: qps is too large"),
        ("engine,worker_class,qps,batch_qps\ne,x86,1,2 x\n", "line 2: batch_qps must be numbers"),
        ("engine,worker_class,qps,batch_qps\ne,x86,1,0\n", "line 2: .* batch_qps must be positive"),
        (
            "engine,worker_class,qps,batch_qps\ne,x86,1,1 1 1 1 1 1 1 1 1\n",
            "batches larger than 256",
        ),
        ("engine,worker_class,qps\ne/f,x86,1\n", "line 2: .* not a valid engine name"),
        ("engine,worker_class,qps\ne,x86\n", "line 2: 2 columns instead of 3"),
        ("engine,worker_class,qps\n\ne,x86,1\ne,x86,2\n", "line 4: duplicate entry"),
        ('engine,worker_class,qps\n"e,x86,1\n', "line 2: "),
        ("engine,worker_class,qps,threads\ne,x86,1,1.5\n", "threads must be an integer"),
        ("engine,worker_class,qps,threads\ne,x86,1,2000\n", "threads must be from 0 to 1024"),
    ],
)
def test_csv_error_names_line_and_column(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        read_csv(text, "f.csv")


def test_entries_are_added_to_a_database_and_replace_older_ones(tmp_path: Path) -> None:
    path = tmp_path / "new" / "d.db"
    add_to_dictionary(path, [an_entry("a", 1.0), an_entry("b", 2.0)])
    add_to_dictionary(path, [an_entry("b", 3.0), an_entry("c", 4.0)])

    assert {entry.engine: entry.qps for entry in load_dictionary(path)} == {
        "a": 1.0,
        "b": 3.0,
        "c": 4.0,
    }
    assert [file.name for file in path.parent.iterdir()] == ["d.db"]


def test_entries_are_added_atomically(tmp_path: Path) -> None:
    def broken_off() -> list[ProfileEntry]:
        raise RuntimeError

    path = tmp_path / "d.db"
    add_to_dictionary(path, [an_entry("a")])
    with pytest.raises(RuntimeError):
        add_to_dictionary(path, (entry for entry in [an_entry("b"), *broken_off()]))
    assert len(load_dictionary(path)) == 1


def test_missing_file_and_unknown_format_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"no dictionary file .*; 'synergai profile' makes one"):
        load_dictionary(tmp_path / "d.db")
    with pytest.raises(InvalidInput, match=r"must end in \.db or \.csv"):
        load_dictionary(tmp_path / "d.xlsx")
    with pytest.raises(InvalidInput, match=r"must end in \.db; 'synergai dictionary import'"):
        add_to_dictionary(tmp_path / "d.csv", [an_entry()])
    (tmp_path / "d.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        load_dictionary(tmp_path / "d.csv")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    add_to_dictionary(tmp_path / "d.db", [an_entry()])
    return tmp_path / "d.db"


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("UPDATE profile SET threads = -1", "threads must be from 0 to 1024, not -1"),
        ("UPDATE profile SET threads = 1025", "threads must be from 0 to 1024, not 1025"),
        ("UPDATE profile SET qps = -1", r"d\.db: e on x86 .* qps must be positive"),
        ("PRAGMA user_version = 2", "version 2, but this program reads version 1"),
    ],
)
def test_database_that_was_changed_by_hand_is_rejected_with_the_fault(
    stored: Path, statement: str, complaint: str
) -> None:
    change(stored, statement)
    with pytest.raises(InvalidInput, match=complaint):
        load_dictionary(stored)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        *(
            ({"accuracy": value, "accuracy_samples": 10}, "accuracy must be from 0 to 1, not")
            for value in (math.nan, -0.1, 1.01, math.inf)
        ),
        ({"accuracy": 0.5}, r"accuracy of 0\.5 without accuracy_samples"),
        ({"configuration": Configuration(variant="../x")}, "not a valid variant name"),
        ({"throttled": 1.5}, "throttled must be 0 or more, at most 1, not 1.5"),
        ({"background": 1.5}, "background must be 0 or more, at most 1, not 1.5"),
        *(({"qps": value}, "qps must be positive") for value in (math.inf, math.nan, -1.0)),
    ],
)
def test_impossible_entry_is_rejected(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        replace(an_entry(), **fields)


def test_accuracy_has_a_standard_error_that_samples_reduce() -> None:
    entry = replace(an_entry(), accuracy=0.884, accuracy_samples=10_000)
    assert entry.accuracy_error == pytest.approx(0.0032, abs=1e-4)
    assert replace(entry, accuracy=1.0, accuracy_samples=20).accuracy_error > 0.05
    assert an_entry().accuracy_error == 0


def test_prediction_replaces_only_a_prediction(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    others = [
        replace(an_entry(label), label=label)
        for label in ("measured", "disturbed", "observed", "reconstructed", "emulated")
    ]
    predicted = [replace(entry, label=PREDICTED, qps=5.0) for entry in others]
    add_to_dictionary(path, others)
    assert add_to_dictionary(path, predicted) == others
    assert content(load_dictionary(path)) == set(others)

    newer = [replace(an_entry("p"), label=PREDICTED, qps=qps) for qps in (5.0, 6.0)]
    for entry in newer:
        assert add_to_dictionary(path, [entry]) == []
    assert newer[1] in content(load_dictionary(path))


def test_observation_replaces_a_prediction_and_no_measurement(tmp_path: Path) -> None:
    predicted, measured = replace(an_entry("p"), label=PREDICTED), an_entry("m")
    observed = [replace(entry, label=OBSERVED, qps=3.0) for entry in (predicted, measured)]
    with DictionaryStore(tmp_path / "d.db") as store:
        store.put_all([predicted, measured])
        for entry in observed:
            store.put_observed(entry)
        assert content(store.load()) == {observed[0], measured}


def test_prediction_is_planned_with_one_standard_error_less() -> None:
    entry = replace(an_entry(qps=100.0), error=0.1)
    assert entry.planned_qps == 100.0
    assert replace(entry, label=PREDICTED).planned_qps == pytest.approx(100.0 / math.exp(0.1))


def test_entry_is_stale_if_the_model_or_the_runtime_is_known_to_differ() -> None:
    entry = replace(an_entry(), digest="d1", runtime="onnxruntime 1.31.1")
    assert not entry.is_stale("d1", "onnxruntime 1.31.1")
    assert entry.is_stale("d2", "onnxruntime 1.31.1")
    assert entry.is_stale("d1", "onnxruntime 1.32.0")
    assert not entry.is_stale("", "")
    assert not an_entry().is_stale("d1", "onnxruntime 1.31.1")


def test_energy_of_a_query_is_power_over_throughput() -> None:
    assert replace(an_entry(qps=10.0), watts=25.0).joules == 2.5


def test_disturbed_entry_replaces_a_measured_one_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    measured, other = an_entry("a"), replace(an_entry("b"), label="reconstructed")
    disturbed = [replace(entry, label=DISTURBED, qps=5.0) for entry in (measured, other)]
    add_to_dictionary(path, [measured, other])

    assert add_to_dictionary(path, disturbed, keep_undisturbed=True) == [measured]
    assert content(load_dictionary(path)) == {measured, disturbed[1]}
    assert add_to_dictionary(path, disturbed) == []
    assert content(load_dictionary(path)) == set(disturbed)


def test_undisturbed_entry_replaces_a_disturbed_one(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    add_to_dictionary(path, [replace(an_entry("a"), label=DISTURBED, qps=5.0)])
    assert add_to_dictionary(path, [an_entry("a")], keep_undisturbed=True) == []
    assert content(load_dictionary(path)) == {an_entry("a")}


def test_batch_times_follow_from_batch_rates() -> None:
    times = replace(an_entry(qps=10.0), batch_qps=(16.0, 20.0)).batch_times
    assert times is not None
    assert times.by_size == (0.1, 0.125, 0.2)
    assert an_entry().batch_times is None


def database_of_another_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")


@pytest.mark.parametrize(
    ("write", "complaint"),
    [
        (database_of_another_program, "not a configuration dictionary"),
        (lambda path: path.write_bytes(b"x"), "not a configuration dictionary"),
        (lambda path: path.write_text("engine,qps\n" * 500), "synergai dictionary import"),
    ],
    ids=["another program", "too short", "no database"],
)
def test_file_that_is_no_dictionary_is_rejected_and_unchanged(
    tmp_path: Path, write: Callable[[Path], object], complaint: str
) -> None:
    path = tmp_path / "d.db"
    write(path)
    before = path.read_bytes()
    for use in (load_dictionary, lambda path: add_to_dictionary(path, [an_entry()])):
        with pytest.raises(InvalidInput, match=complaint):
            use(path)
    assert path.read_bytes() == before


def test_truncated_database_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    add_to_dictionary(path, [an_entry(f"engine{index}") for index in range(200)])
    content = path.read_bytes()
    for kept in (100, 5000, *range(len(content) - 4095, len(content), 273)):
        path.write_bytes(content[:kept])
        with pytest.raises(InvalidInput, match=r"d\.db"):
            load_dictionary(path)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("qps = 'fast'", r"d\.db: qps must be a number, not a string"),
        ("label = x'00'", "label must be a string, not bytes"),
        ("threads = 'many'", "threads must be an integer"),
        ("batch_qps = x'00'", "batch_qps must be numbers"),
        ("label = CAST(x'ff41' AS TEXT)", "a text in it is not UTF-8"),
    ],
)
def test_value_of_another_type_in_a_database_is_named(
    stored: Path, value: str, complaint: str
) -> None:
    # By a program that does not check types.
    change(stored, "CREATE TABLE loose AS SELECT * FROM profile")
    change(stored, "DROP TABLE profile")
    change(stored, "ALTER TABLE loose RENAME TO profile")
    change(stored, f"UPDATE profile SET {value}")

    with pytest.raises(InvalidInput, match=complaint):
        load_dictionary(stored)


def test_column_of_a_later_version_is_ignored(stored: Path) -> None:
    change(stored, "ALTER TABLE profile ADD COLUMN later TEXT NOT NULL DEFAULT ''")

    assert list(load_dictionary(stored)) == [an_entry()]


def test_locked_database_is_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("synergai.profiles.store.BUSY_TIMEOUT_MS", 0)
    path = tmp_path / "d.db"
    add_to_dictionary(path, [])
    # By the same library: locks of a process's other copies of SQLite are not seen.
    other = apsw.Connection(str(path))
    other.execute("BEGIN EXCLUSIVE")

    with pytest.raises(Unavailable, match="locked"):
        load_dictionary(path)
    other.close()


def test_full_disk_is_unavailable_and_changes_nothing(stored: Path) -> None:
    with DictionaryStore(stored) as store:
        connection = store._connection
        connection.pragma("max_page_count", connection.pragma("page_count"))
        with pytest.raises(Unavailable, match=r"the disk of .* is full"):
            store.put_all(an_entry(f"engine-{number}") for number in range(200))
    assert content(load_dictionary(stored)) == {an_entry()}


def test_columns_are_the_fields_of_an_entry_and_of_its_configuration() -> None:
    assert tuple(to_record(an_entry())) == COLUMNS
    assert len(set(COLUMNS)) == len(COLUMNS) == 34

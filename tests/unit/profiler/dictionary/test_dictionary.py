"""The commands of ``synergai dictionary``."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner, Result

from profiler.dictionary import cli as dictionary
from profiler.dictionary import files
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.errors import NotFound, SynergaiError
from synergai.models.formats.model_files import digest
from synergai.profiles.dictionary import (
    BUILT_IN,
    DISTURBED,
    LOADGEN,
    MEASURED,
    PREDICTED,
    ConfigurationDictionary,
    ProfileEntry,
)
from tests.cores import new_entry

ENTRY = new_entry(
    "digits",
    "cloud",
    100.0,
    Configuration(2),
    queries=1234,
    label=DISTURBED,
    measured_at=(datetime.now(UTC) - timedelta(hours=5)).isoformat(),
)


COMMENTED = (
    "# reconstructed\n# by hand\n"
    "engine,worker_class,threads,power_mode,qps\n"
    "onnx_mobilenet_op11,x86,4,,116.739\n"
    "onnx_mobilenet_op11,agx,0,6,39.811\n"
)


def an_entry(engine: str = "e", qps: float = 10.0, threads: int = 1) -> ProfileEntry:
    return new_entry(engine, "x86", qps, Configuration(threads))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The dictionary of the commands."""
    return tmp_path / "d.db"


def invoke(path: Path, *arguments: str | Path) -> Result:
    return CliRunner().invoke(
        dictionary.app, [*map(str, arguments), "--dictionary", str(path)], env={"COLUMNS": "200"}
    )


def run(path: Path, *arguments: str | Path) -> str:
    result = invoke(path, *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_label_and_age_are_shown_without_a_gateway(path: Path) -> None:
    files.add_to_dictionary(path, [ENTRY])
    assert run(path, "show").splitlines()[-1].split()[-4:] == ["1,234", "disturbed", "5", "h"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--engine", "nope"), "of engine 'nope'; there are entries of digits, faces"),
        (("--engine", "nope", "--json"), "of engine 'nope'; there are entries of digits, faces"),
        (("--worker-class", "board"), "of worker class 'board'; there are entries of cloud"),
    ],
)
def test_engine_or_class_without_entries_is_an_error_that_names_those_with_some(
    path: Path, options: tuple[str, ...], complaint: str
) -> None:
    files.add_to_dictionary(path, [ENTRY, structs.replace(ENTRY, engine=EngineName("faces"))])
    shown = invoke(path, "show", *options)
    assert isinstance(shown.exception, NotFound)
    assert not shown.output
    assert f"no entries {complaint}" in str(shown.exception)


def test_import_reports_the_entries_that_it_kept(path: Path, tmp_path: Path) -> None:
    files.export_dictionary(tmp_path / "new.csv", ConfigurationDictionary([ENTRY]))
    files.add_to_dictionary(path, [structs.replace(ENTRY, label=MEASURED)])
    done = invoke(path, "import", tmp_path / "new.csv")
    assert done.stdout == f"imported 0 entries: {path}\n"
    assert done.stderr.startswith("1 entry kept")


def test_delete_names_its_entries_and_counts_them(path: Path) -> None:
    other = structs.replace(ENTRY, engine=EngineName("faces"), label=MEASURED)
    elsewhere = structs.replace(ENTRY, worker_class=WorkerClass("edge"))
    files.add_to_dictionary(path, [ENTRY, other, elsewhere])
    assert invoke(path, "delete").exit_code != 0  # names nothing
    assert run(path, "delete", "--worker-class", "edge") == f"deleted 1 entry: {path}\n"
    assert "deleted 0 " in run(path, "delete", "--engine", "digits", "--label", MEASURED)
    assert "deleted 1 " in run(path, "delete", "--engine", "digits", "--worker-class", "cloud")
    assert "deleted 1 " in run(path, "delete", "--all")


def test_import_refuses_an_implausible_entry_and_a_file_without_any(
    path: Path, tmp_path: Path
) -> None:
    absurd = ConfigurationDictionary([structs.replace(ENTRY, qps=1e-6)])
    files.export_dictionary(tmp_path / "absurd.csv", absurd)
    (tmp_path / "empty.db").touch()
    for file, complaint in (("absurd.csv", "implausible"), ("empty.db", "no entries to import")):
        assert complaint in str(invoke(path, "import", tmp_path / file).exception)
    assert not path.exists()


def test_entries_are_imported_shown_and_exported(path: Path, tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text(COMMENTED)
    assert "imported 2 entries" in run(path, "import", tmp_path / "s.csv")
    shown = run(path, "show", "--worker-class", "agx")
    assert "mode=6" in shown
    assert "threads=4" not in shown
    assert "exported 2 entries" in run(path, "export", tmp_path / "t.csv")
    assert set(files.load_dictionary(tmp_path / "t.csv")) == set(files.read_csv(COMMENTED))


def test_the_best_are_shown(path: Path) -> None:
    figures = {1: 10.0, 2: 18.0, 3: 17.0, 4: 20.0}
    # A prediction that is no better for sure.
    predicted = structs.replace(an_entry("a", 20.1, 5), label=PREDICTED, error=0.1)
    measured = [an_entry("a", qps, threads) for threads, qps in figures.items()]
    files.add_to_dictionary(path, [*measured, predicted, an_entry("b", 5.0, 2)])
    shown = json.loads(run(path, "show", "--best", "--json"))
    threads = {each["engine"]: each["configuration"]["threads"] for each in shown}
    assert threads == {"a": 4, "b": 2}


def lines_with(shown: str, word: str) -> set[str]:
    """Return the engines of the lines that have a word."""
    return {line.split()[0] for line in shown.splitlines() if word in line}


def test_entries_of_the_built_in_timer_are_labelled(path: Path) -> None:
    timers = {"by_hand": BUILT_IN, "by_loadgen": LOADGEN, "unknown": ""}
    entries = [structs.replace(an_entry(engine), timer=timer) for engine, timer in timers.items()]
    files.add_to_dictionary(path, entries)
    assert lines_with(run(path, "show"), "built-in") == {"by_hand"}


def test_entries_of_another_model_file_are_marked_as_stale(path: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    for name in ("same", "other"):
        (models / name).mkdir(parents=True)
        (models / name / "model.onnx").write_bytes(b"model")
    digests = {"same": digest(models / "same" / "model.onnx")}
    entries = [
        structs.replace(an_entry(name), digest=digests.get(name, "0" * 64))
        for name in ("same", "other", "elsewhere")
    ]
    files.add_to_dictionary(path, entries)
    assert lines_with(run(path, "show", "--models", models), "stale") == {"other"}


def test_export_replaces_a_file_only_on_request(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "t.csv"
    files.add_to_dictionary(path, [an_entry()])
    target.write_text("precious")
    assert isinstance(invoke(path, "export", target).exception, SynergaiError)
    assert target.read_text() == "precious"
    run(path, "export", target, "--replace")
    assert len(files.load_dictionary(target)) == 1

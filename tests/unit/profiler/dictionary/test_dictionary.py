"""The commands of ``synergai dictionary``."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec import structs
from typer.testing import CliRunner

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


def test_label_and_age_are_shown_without_a_gateway(tmp_path: Path) -> None:
    files.add_to_dictionary(tmp_path / "d.db", [ENTRY])
    result = CliRunner().invoke(
        dictionary.app, ["show", "--dictionary", str(tmp_path / "d.db")], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0
    assert result.output.splitlines()[-1].split()[-4:] == ["1,234", "disturbed", "5", "h"]


def test_engine_or_class_without_entries_is_an_error_that_names_those_with_some(
    tmp_path: Path,
) -> None:
    path = tmp_path / "d.db"
    files.add_to_dictionary(path, [ENTRY, structs.replace(ENTRY, engine=EngineName("faces"))])

    def error(*options: str) -> str:
        shown = CliRunner().invoke(dictionary.app, ["show", *options, "--dictionary", str(path)])
        assert isinstance(shown.exception, NotFound)
        assert not shown.output
        return str(shown.exception)

    text = "no entries of engine 'nope'; there are entries of digits, faces"
    assert text in error("--engine", "nope")
    assert text in error("--engine", "nope", "--json")
    text = "no entries of worker class 'board'; there are entries of cloud"
    assert text in error("--worker-class", "board")


def test_import_reports_the_entries_that_it_kept(tmp_path: Path) -> None:
    source, target = str(tmp_path / "new.csv"), str(tmp_path / "d.db")
    files.export_dictionary(tmp_path / "new.csv", ConfigurationDictionary([ENTRY]))
    files.add_to_dictionary(tmp_path / "d.db", [structs.replace(ENTRY, label=MEASURED)])
    arguments = ["import", source, "--dictionary", target]
    done = CliRunner().invoke(dictionary.app, arguments)
    assert done.stdout == f"imported 0 entries: {target}\n"
    assert done.stderr.startswith("1 entry kept")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(dictionary.app, [*arguments])
    return result.exit_code, result.output


def test_delete_names_its_entries_and_counts_them(tmp_path: Path) -> None:
    path = str(tmp_path / "d.db")
    other = structs.replace(ENTRY, engine=EngineName("faces"), label=MEASURED)
    elsewhere = structs.replace(ENTRY, worker_class=WorkerClass("edge"))
    files.add_to_dictionary(tmp_path / "d.db", [ENTRY, other, elsewhere])
    at = ("--dictionary", path)
    assert run("delete", *at)[0] != 0  # names nothing
    edge = ("--worker-class", "edge")
    assert run("delete", *edge, *at) == (0, f"deleted 1 entry: {path}\n")
    assert "deleted 0 " in run("delete", "--engine", "digits", "--label", MEASURED, *at)[1]
    assert "deleted 1 " in run("delete", "--engine", "digits", "--worker-class", "cloud", *at)[1]
    assert "deleted 1 " in run("delete", "--all", *at)[1]


def test_import_refuses_an_implausible_entry(tmp_path: Path) -> None:
    absurd = ConfigurationDictionary([structs.replace(ENTRY, qps=1e-6)])
    files.export_dictionary(tmp_path / "absurd.csv", absurd)
    result = CliRunner().invoke(
        dictionary.app,
        ["import", str(tmp_path / "absurd.csv"), "--dictionary", str(tmp_path / "d.db")],
    )
    assert "implausible" in str(result.exception)
    assert not (tmp_path / "d.db").exists()


def test_entries_are_imported_shown_and_exported(tmp_path: Path) -> None:
    source, path, target = (tmp_path / name for name in ("s.csv", "d.db", "t.csv"))
    source.write_text(COMMENTED)
    at = ("--dictionary", str(path))

    assert "imported 2 entries" in run("import", str(source), *at)[1]
    _, shown = run("show", "--worker-class", "agx", *at)
    assert "mode=6" in shown
    assert "threads=4" not in shown
    assert "exported 2 entries" in run("export", str(target), *at)[1]
    assert set(files.load_dictionary(target)) == set(files.read_csv(COMMENTED))


def test_the_best_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    figures = {1: 10.0, 2: 18.0, 3: 17.0, 4: 20.0}
    files.add_to_dictionary(
        path,
        [
            *(an_entry("a", qps, n) for n, qps in figures.items()),
            # A prediction that is no better for sure.
            structs.replace(an_entry("a", 20.1, 5), label=PREDICTED, error=0.1),
            an_entry("b", 5.0, 2),
        ],
    )
    _, shown = run("show", "--best", "--json", "--dictionary", str(path))
    threads = {each["engine"]: each["configuration"]["threads"] for each in json.loads(shown)}
    assert threads == {"a": 4, "b": 2}


def test_entries_of_the_built_in_timer_are_labelled(tmp_path: Path) -> None:
    path = tmp_path / "d.db"
    timers = {"by_hand": BUILT_IN, "by_loadgen": LOADGEN, "unknown": ""}
    entries = [structs.replace(an_entry(engine), timer=timer) for engine, timer in timers.items()]
    files.add_to_dictionary(path, entries)
    shown = CliRunner().invoke(dictionary.app, ["show", "--dictionary", str(path)])
    assert shown.exit_code == 0, shown.output
    assert [line.split()[0] for line in shown.output.splitlines() if "built-in" in line] == [
        "by_hand"
    ]


def test_entries_of_another_model_file_are_marked_as_stale(tmp_path: Path) -> None:
    path, models = tmp_path / "d.db", tmp_path / "models"
    for name in ("same", "other"):
        (models / name).mkdir(parents=True)
        (models / name / "model.onnx").write_bytes(b"model")
    of_file = digest(models / "same" / "model.onnx")
    files.add_to_dictionary(
        path,
        [
            structs.replace(an_entry("same"), digest=of_file),
            structs.replace(an_entry("other"), digest="0" * 64),
            structs.replace(an_entry("elsewhere"), digest="0" * 64),
        ],
    )
    arguments = ["show", "--dictionary", str(path), "--models", str(models)]
    lines = CliRunner().invoke(dictionary.app, arguments).output.splitlines()
    assert {line.split()[0] for line in lines if "stale" in line} == {"other"}


def test_importing_a_file_without_entries_is_rejected(tmp_path: Path) -> None:
    source = tmp_path / "empty.db"
    source.touch()

    refused = CliRunner().invoke(
        dictionary.app, ["import", str(source), "--dictionary", str(tmp_path / "d.db")]
    )

    assert "has no entries to import" in str(refused.exception)


def test_export_replaces_a_file_only_on_request(tmp_path: Path) -> None:
    path, target = tmp_path / "d.db", tmp_path / "t.csv"
    files.add_to_dictionary(path, [an_entry()])
    target.write_text("precious")
    arguments = ["export", str(target), "--dictionary", str(path)]

    refused = CliRunner().invoke(dictionary.app, arguments)
    assert isinstance(refused.exception, SynergaiError)
    assert target.read_text() == "precious"

    CliRunner().invoke(dictionary.app, [*arguments, "--replace"])
    assert len(files.load_dictionary(target)) == 1

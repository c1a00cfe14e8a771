"""``synergai report``: pages from dictionaries and simulations, and errors for people."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler.reports.cli import app
from synergai.errors import InvalidInput, InvalidSettings, NotFound
from tests.staged_runs import write_run

DICTIONARY = "engine,worker_class,threads,qps\nnet,x86,1,10\nnet,x86,2,19\n"


@pytest.fixture(autouse=True)
def _without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes long; the tests of the reports draw."""
    monkeypatch.setattr("profiler.reports.page.draw_svg", lambda *_: "<svg></svg>")


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.csv"
    path.write_text(DICTIONARY, "utf-8")
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_characterisation_prints_its_findings_and_page(dictionary: Path, tmp_path: Path) -> None:
    page = tmp_path / "out" / "report.html"
    text = run("characterisation", "--dictionary", dictionary, "--output", page)
    assert text.endswith(f"\n{page}\n")
    assert "Is performance linear in the number of threads?\n  " in text
    assert "three thread counts" in text
    assert str(dictionary) in page.read_text("utf-8")


def test_evaluation_of_a_fleet_of_ones_own(dictionary: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.html"
    options = ("--policies", "edf", "--seeds", "1")
    text = run("evaluation", "--dictionary", dictionary, "--output", output, *options)
    assert "Which policy meets most deadlines?\n  Violations of 96 jobs: edf" in text
    page = output.read_text("utf-8")
    assert "Reconstructed" not in page
    assert "The thesis&#39;s results" not in page


def test_printed_numbers_are_compared_with_the_reconstructed_profile(tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    run("evaluation", "--policies", "edf,be", "--seeds", "1", "--output", page)
    assert "The thesis&#39;s results" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("characterisation", "--dictionary", "no.csv"), NotFound, "no dictionary file no.csv"),
        (("characterisation", "--dictionary", "a.txt"), InvalidInput, "must end in"),
        (("evaluation", "--policies", "best"), InvalidSettings, "no policy 'best'"),
        (("run", "no.jsonl"), FileNotFoundError, "no.jsonl"),
    ],
)
def test_bad_input_is_named(
    arguments: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(*arguments)


def test_file_that_is_no_event_log_is_refused(dictionary: Path) -> None:
    with pytest.raises(InvalidInput, match="not an event log"):
        run("run", dictionary)


def test_empty_dictionary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("engine,worker_class,qps\n", "utf-8")
    with pytest.raises(InvalidInput, match="no measurement"):
        run("characterisation", "--dictionary", path, "--output", tmp_path / "out")


def test_recorded_run_becomes_one_page(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    assert run("run", write_run(tmp_path / "run.jsonl"), "--output", page) == f"{page}\n"
    assert page.read_text("utf-8").startswith("<!doctype html>")


def test_page_of_a_run_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    log = write_run(tmp_path / "run.jsonl")
    with pytest.raises(InvalidInput, match=r"cannot write .*: No such file"):
        run("run", log, "--output", tmp_path / "missing" / "run.html")

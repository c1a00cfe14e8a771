"""``synergai profile --stages``, and ``synergai plan`` with the times that it measures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler.cutting.stages import cut_engine
from profiler.dictionary.files import load_dictionary
from profiler.dictionary.stages import StageTimes
from profiler.measuring.cli import app
from profiler.measuring.stages import measured_cuts
from profiler.zoo import recipes as zoo
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.models.directory import ModelDirectory

ENGINE = EngineName("onnx_digits")


FLEET = """
[[workers]]
id = "edge"
worker_class = "here"
[[workers]]
id = "cloud"
worker_class = "here"
[default_link]
mbit_s = 100
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an engine in `models`, and with its dictionary."""
    folder = tmp_path_factory.mktemp("stages")
    zoo.build(ENGINE, folder / "models", lambda _: None)
    options = {
        "--models": folder / "models",
        "--dictionary": folder / "dictionary.db",
        "--output": folder / "runs",
        "--engines": ENGINE,
        "--worker-class": "here",
        "--power": "none",
    }
    given = [str(each) for pair in options.items() for each in pair]
    result = CliRunner().invoke(app, ["--stages", "--providers", "CPU", *given])
    assert result.exit_code == 0, result.output
    return folder


def test_heads_and_tails_are_entries_of_the_dictionary(folder: Path) -> None:
    cuts = cut_engine(folder / "models", ENGINE).cuts
    dictionary = load_dictionary(folder / "dictionary.db")
    places = [cut.position for cut in measured_cuts(cuts)]
    names = {f"{ENGINE}.s0-{k}" for k in places} | {
        f"{ENGINE}.s{k}-{len(cuts) + 1}" for k in places
    }
    assert {entry.engine for entry in dictionary} == names | {ENGINE}
    assert len({entry.digest for entry in dictionary}) == len(names) + 1
    times = StageTimes(
        dictionary, ENGINE, [cut.work for cut in cuts], WorkerClass("here"), Configuration(1)
    )
    assert times.heads[-1] > 0
    assert [each.name for each in ModelDirectory(folder / "models").engines()] == [ENGINE]


def plan(folder: Path, fleet: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "fleet.toml").write_text(fleet)
    files = ("models", "dictionary.db", "fleet.toml")
    names = ("--models", "--dictionary", "--fleet")
    given = [
        str(each) for name, file in zip(names, files, strict=True) for each in (name, folder / file)
    ]
    command = [sys.executable, "-m", "synergai", "plan", ENGINE, *given, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_plan_weighs_measured_stages_against_the_whole(folder: Path) -> None:
    done = plan(folder, FLEET, "--queries", "50", "--deadline", "1h", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    names = [option["name"] for option in found["options"]]
    assert names[:4] == ["whole on edge", "whole on cloud", "replicas", "2 stages"]
    ends = {option["name"]: option["end_s"] for option in found["options"]}
    assert ends[found["choice"]] == min(ends.values())
    assert found["slack_s"] > 0
    assert all("busy machine" in note for note in found["notes"])


def test_plan_that_is_impossible_is_told_in_one_line(folder: Path) -> None:
    done = plan(folder, FLEET.replace('"here"', '"here"\nmemory_mb = 10'))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: nothing fits: onnx_digits needs 68.2 MB whole")
    assert done.stderr.count("\n") == 1

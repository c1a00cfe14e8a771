"""Cuts and stages of an engine, on the command line."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler.dictionary.files import add_to_dictionary
from profiler.engines.cli import app
from profiler.zoo import recipes as zoo
from synergai.models.directory import ModelDirectory
from tests.cores import new_entry


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("models")
    zoo.build("onnx_digits", models, lambda _: None)
    return models


@pytest.fixture
def models(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copytree(built, tmp_path / "models")
    return tmp_path / "models"


def test_cuts_are_listed_and_made_into_stages(models: Path) -> None:
    table = run("cuts", "onnx_digits", "--models", models)
    assert "conv2/pool" in table
    seams = json.loads(run("cuts", "onnx_digits", "--models", models, "--seams", "--json"))
    assert all(each["seam"] for each in seams)
    assert "conv2/pool" in [each["tensor"] for each in seams]
    said = run("split", "onnx_digits", "--at", "conv2/pool", "--models", models)
    stages = [each for each in ModelDirectory(models).engines() if each.stage_of]
    assert len(stages) == 2
    for stage in stages:
        assert f"{stage.name}: {stage.file}\nchecked" in said


@pytest.mark.usefixtures("cuts_here")
def test_times_of_both_sides_are_shown_where_the_dictionary_has_them(
    models: Path, tmp_path: Path
) -> None:
    dictionary = tmp_path / "dictionary.db"
    times = {"onnx_digits": 4.0, "onnx_digits.s0-3": 1.0, "onnx_digits.s3-11": 3.5}
    add_to_dictionary(
        dictionary,
        [new_entry(name, "agx", 1 / seconds) for name, seconds in times.items()],
    )
    given = ("cuts", "onnx_digits", "--models", models, "--dictionary", dictionary)
    [cut] = [
        each
        for each in json.loads(run(*given, "--worker-class", "agx", "--json"))
        if each["tensor"] == "conv1/pool"
    ]
    assert cut["head"] == {"seconds": 1.0, "measured": True}
    assert cut["tail"] == {"seconds": 3.5, "measured": True}
    table = run(*given, "--worker-class", "agx")
    assert "1 s          3.5 s" in table
    assert "~" in table
    assert "no times of class nx: 'synergai profile --stages" in run(*given, "--worker-class", "nx")

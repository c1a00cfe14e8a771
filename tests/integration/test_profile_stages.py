"""``synergai profile --stages``: entries of heads and tails, which predict all stages."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from profiler.cli import app
from profiler.stages import measured_cuts
from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.models.cutting.stages import cut_engine
from synergai.models.directory import ModelDirectory
from synergai.profiles.files import load_dictionary
from synergai.profiles.stages import StageTimes
from synergai.zoo import build as zoo

ENGINE = EngineName("onnx_digits")


def test_heads_and_tails_are_entries_of_the_dictionary(tmp_path: Path) -> None:
    models, path = tmp_path / "models", tmp_path / "dictionary.db"
    zoo.build(ENGINE, models, lambda _: None)
    options = {
        "--models": models,
        "--dictionary": path,
        "--output": tmp_path / "runs",
        "--engines": ENGINE,
        "--worker-class": "here",
        "--power": "none",
    }
    given = [str(each) for pair in options.items() for each in pair]
    result = CliRunner().invoke(app, ["--stages", "--while-serving", "--providers", "CPU", *given])
    assert result.exit_code == 0, result.output
    cuts = cut_engine(models, ENGINE).cuts
    dictionary = load_dictionary(path)
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
    assert [each.name for each in ModelDirectory(models).engines()] == [ENGINE]

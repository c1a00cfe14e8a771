"""Engines with variants, in the commands of the model directory."""

import hashlib
import json
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

from profiler.engines.cli import app
from profiler.zoo import recipes as zoo
from profiler.zoo.listing import find_published
from synergai.cli.gateway_client import GatewayAddress
from synergai.domain import Engine
from synergai.errors import InvalidInput, NotFound, SynergaiError
from synergai.models.directory import ModelDirectory
from tests.constant_variants import write_family
from tests.engines import new_engine

VARIANTS = {"full": 1, "p25-int8": 0}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    write_family(tmp_path / "family", VARIANTS)
    return tmp_path


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.mark.parametrize(
    ("engine", "file"),
    [
        ("family", "full"),
        ("family/1", "full"),
        ("family/1.full", "full"),
        ("family/1.p25-int8", "p25-int8"),
    ],
)
def test_inspect_shows_the_variant_that_is_named(models: Path, engine: str, file: str) -> None:
    shown = run("inspect", engine, "--models", models, "--json")
    assert f"{file}.onnx" in shown
    assert "variants" in run("inspect", engine, "--models", models)


@pytest.mark.parametrize(
    ("engine", "version", "others"),
    [("family", "3", ["1", "4"]), ("family/1", "1", ["3", "4"])],
)
def test_inspect_shows_the_version_that_requests_get_and_names_the_others(
    models: Path, engine: str, version: str, others: list[str]
) -> None:
    write_family(models / "family" / "3", VARIANTS)
    (models / "family" / "4").mkdir()  # without a model, it cannot answer
    shown = json.loads(run("inspect", engine, "--models", models, "--json"))
    assert (shown["version"], shown["other_versions"]) == (version, others)
    assert ("family/3/" in shown["file"]) is (version == "3")
    table = " ".join(run("inspect", engine, "--models", models).split())
    assert f" version {version} (others: {', '.join(others)}) " in table


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("family/1.p50", "its variants: full, p25-int8"),
        ("family/1.", "'1.' is not a version"),
        ("family/model.onnx", "family/model.onnx"),
        ("family/2", "family/2"),
    ],
)
def test_inspect_of_what_there_is_not_says_so(models: Path, engine: str, reason: str) -> None:
    with pytest.raises(SynergaiError, match=reason):
        run("inspect", engine, "--models", models)


def test_build_names_the_file_of_each_variant(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (models / "family").rename(models / "onnx_digits")
    monkeypatch.setattr(zoo, "is_built", lambda *_: True)
    lines = run("build", "onnx_digits", "--models", models).splitlines()
    for name in VARIANTS:
        assert any(
            line.startswith(f"onnx_digits, variant {name}: ") and f"/{name}.onnx" in line
            for line in lines
        )


def test_what_follows_from_unknown_accuracies_and_how_to_measure_them_is_said(
    tmp_path: Path,
) -> None:
    write_family(tmp_path / "family", {**VARIANTS, "int8": 1})
    shown = run("list", "--models", tmp_path)
    assert "family: no accuracy of full, p25-int8, int8 in engine.toml" in shown
    assert "full answers while it can be in time" in shown
    assert "'synergai profile'" in shown
    file = tmp_path / "family" / "engine.toml"
    file.write_text(file.read_text().replace('"full"', '"full"\naccuracy = 0.9', 1))
    shown = run("list", "--models", tmp_path)
    assert "family: no accuracy of p25-int8, int8 in engine.toml" in shown
    assert "full answers" not in shown
    text = file.read_text()
    for name in ('"int8"', '"p25-int8"'):
        text = text.replace(name, f"{name}\naccuracy = 0.8", 1)
    file.write_text(text)
    assert "no accuracy" not in run("list", "--models", tmp_path)


def test_recipe_names_an_engine_and_its_processing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models / "family/full.onnx"
    digest = hashlib.md5(model.read_bytes()).hexdigest()
    published = structs.replace(find_published("onnx_resnet50_op11"), md5=digest)
    monkeypatch.setattr("profiler.zoo.listing.PUBLISHED", (published,))

    run("add", model, "--recipe", published.name, "--models", tmp_path / "new", "--no-check")

    engine = ModelDirectory(tmp_path / "new").get(published.name)
    assert (engine.preprocess, engine.postprocess) == ("resnet50", "classes")
    assert (engine.accuracy, engine.source) == (published.accuracy, published.url)


def test_file_with_another_digest_than_the_published_one_is_refused(
    models: Path, tmp_path: Path
) -> None:
    model = models / "family/full.onnx"
    with pytest.raises(InvalidInput, match="but f6a4da60cd5f084d97efc2c1ddb10beb was published"):
        run("add", model, "--recipe", "onnx_resnet50_op11", "--models", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_list_names_the_command_for_what_it_leaves_out(models: Path, tmp_path: Path) -> None:
    left_out = "'synergai engines store' lists the engines that were pushed"
    assert left_out in run("list", "--models", models)
    assert left_out in run("list", "--models", tmp_path / "empty")


def test_inspect_asks_the_gateway_of_the_environment_for_an_engine_that_is_not_here(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def call(address: GatewayAddress, *_: object) -> Engine:
        asked.append(address.target)
        return new_engine("remote", preprocess="mobilenet")

    monkeypatch.delenv("SYNERGAI_TARGET", raising=False)
    monkeypatch.setattr(GatewayAddress, "call", call)
    with pytest.raises(NotFound):
        run("inspect", "remote", "--models", models)
    monkeypatch.setenv("SYNERGAI_TARGET", "other:8001")
    assert "weights" in run("inspect", "family", "--models", models)
    assert not asked
    assert "mobilenet" in run("inspect", "remote", "--models", models)
    assert "mobilenet" in run("inspect", "remote", "--models", tmp_path / "nowhere")
    assert asked == ["other:8001", "other:8001"]

"""Verification and installation of downloaded weights."""

import hashlib
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from profiler.engines.cli import app
from profiler.zoo.fetch import fetching
from profiler.zoo.fetch.fetching import DOWNLOADS, is_fetched
from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from tests.integration.fetch.colours import PATH, fetch_colours, file_names, publish_colours
from tests.integration.fetch.web_server import Site


def test_fetched_engine_has_title_and_source(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish_colours(monkeypatch)

    reported = fetch_colours(models, site)

    engine = ModelDirectory(models).get("colours")
    assert engine.file.read_bytes() == model
    assert engine.verified_digest() == engine.sha256 == hashlib.sha256(model).hexdigest()
    assert (engine.preprocess, engine.postprocess, engine.accuracy) == ("mobilenet", "classes", 0.5)
    assert (engine.source, engine.title) == (published.url, published.title)
    assert reported[-1] == (len(model), len(model))
    assert is_fetched("colours", models)
    assert file_names(models / DOWNLOADS) == []
    assert site.requests == [(PATH, None)]


def test_file_that_does_not_match_the_published_digest_is_deleted(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    md5 = hashlib.md5(model).hexdigest()
    publish_colours(monkeypatch, md5=md5)
    site.content = model[:-1] + b"x"

    with pytest.raises(InvalidInput, match=f"but {md5} was published"):
        fetch_colours(models, site)
    assert file_names(models) == [DOWNLOADS]
    assert file_names(models / DOWNLOADS) == []

    site.content = model
    fetch_colours(models, site)
    assert is_fetched("colours", models)


def test_later_download_must_match_the_first(
    site: Site, models: Path, model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish_colours(monkeypatch)
    fetch_colours(models, site)
    believed = json.loads((models / "fetched.json").read_text())
    assert believed == {published.url: hashlib.sha256(model).hexdigest()}

    site.content = model + b"\x00"
    with pytest.raises(InvalidInput, match=r"was recorded in .*fetched\.json"):
        fetch_colours(models, site, replace=True)

    assert ModelDirectory(models).get("colours").file.read_bytes() == model


@pytest.mark.parametrize("content", [b"<html>please log in</html>", b"\x08"])
def test_error_page_is_neither_installed_nor_recorded(
    site: Site, models: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    site.content = content

    with pytest.raises(InvalidInput, match="is not the expected model"):
        fetch_colours(models, site)

    assert file_names(models) == [DOWNLOADS]
    assert file_names(models / DOWNLOADS) == []


def test_existing_engine_is_replaced_only_on_request(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_colours(monkeypatch)
    (models / "colours").mkdir(parents=True)

    with pytest.raises(InvalidInput, match="replace it with --replace"):
        fetch_colours(models, site)
    assert site.requests == []
    assert not is_fetched("colours", models)

    fetch_colours(models, site, replace=True)
    assert is_fetched("colours", models)


def test_two_processes_do_not_download_the_same_file(
    site: Site, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = publish_colours(monkeypatch)

    with (
        fetching._locked_download(models / DOWNLOADS, published),
        pytest.raises(InvalidInput, match="another process is downloading"),
    ):
        fetch_colours(models, site)


def test_command_fetches_once(site: Site, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_colours(monkeypatch)
    command = ["fetch", "colours", "--models", str(models), "--from", site.address]

    first = CliRunner().invoke(app, command)
    again = CliRunner().invoke(app, command)

    assert (first.exit_code, again.exit_code) == (0, 0)
    assert f"colours: {models / 'colours' / 'weights.onnx'}" in again.stdout
    assert len(site.requests) == 1

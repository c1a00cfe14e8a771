"""The published engine of these tests, and how they fetch it."""

from pathlib import Path

import pytest

from profiler.zoo.fetch import fetching
from profiler.zoo.fetch.fetching import fetch
from profiler.zoo.fetch.published import Published
from synergai.domain import EngineName
from tests.integration.fetch.web_server import Site

PATH = "/record/1/files/weights.onnx"


def publish_colours(monkeypatch: pytest.MonkeyPatch, **fields: object) -> Published:
    """Publish the engine `colours` at the site."""
    usual = {
        "name": EngineName("colours"),
        "url": f"https://weights.example{PATH}",
        "file": "weights.onnx",
        "title": "tells colours apart",
        "accuracy": 0.5,
        "preprocess": "mobilenet",
        "postprocess": "classes",
    }
    published = Published(**(usual | fields))  # type: ignore[arg-type]  # any field may be replaced
    monkeypatch.setattr(fetching, "find_published", lambda _: published)
    return published


def fetch_colours(models: Path, site: Site, *, replace: bool = False) -> list[tuple[int, int]]:
    """Fetch the engine; return the reported progress."""
    reported: list[tuple[int, int]] = []
    fetch(
        "colours",
        models,
        mirror=site.address,
        replace=replace,
        on_progress=lambda here, total: reported.append((here, total)),
    )
    return reported


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))

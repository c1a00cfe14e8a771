"""Model weights published on a web server on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.fetch.web_server import Site, serve_site
from tests.tiny_images import save_image_engines


@pytest.fixture
def model(tmp_path: Path) -> bytes:
    models = save_image_engines(tmp_path / "originals")
    return (models / "colours" / "model.onnx").read_bytes()


@pytest.fixture
def site(model: bytes) -> Iterator[Site]:
    with serve_site(Site(model)) as site:
        yield site


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"

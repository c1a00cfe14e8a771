"""The cache of what loading engines has found out."""

from pathlib import Path

import pytest

from synergai.domain import TensorSpec
from synergai.models.descriptions import (
    EngineDescription,
    default_caches,
    read_descriptions,
    remember,
)
from synergai.models.directory import EngineDefinition, ModelDirectory

X = (TensorSpec("x", "FP32", (1,)),)
VERIFIED = EngineDescription(X, X, samples=8)
UNVERIFIED = EngineDescription(X, X, samples=0, unverified="it fails")


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[EngineDefinition]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    for name in ("one", "two"):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "model.onnx").write_text(name)
    return ModelDirectory(tmp_path / "models").engines()


def test_remembered_description_is_in_the_caches_of_agent_and_serve(
    engines: list[EngineDefinition],
) -> None:
    for definition in engines:
        remember(definition, UNVERIFIED if definition.name == "one" else VERIFIED)
    for cache in default_caches():
        assert len(read_descriptions(cache)) == 2


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "engines": {}}', '{"format": 1}'])
def test_invalid_cache_is_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "engines.json").write_text(content)
    assert read_descriptions(tmp_path / "engines.json") == {}

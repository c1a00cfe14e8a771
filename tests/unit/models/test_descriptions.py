"""The cache of what loading engines has found out."""

from pathlib import Path

import pytest

from synergai.models.descriptions import read_descriptions


@pytest.mark.parametrize("content", ["", "[]", '{"format": 2, "engines": {}}', '{"format": 1}'])
def test_invalid_cache_is_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / "engines.json").write_text(content)
    assert read_descriptions(tmp_path / "engines.json") == {}

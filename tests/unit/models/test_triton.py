"""Folders of Triton's model repositories, whose ``config.pbtxt`` is not read."""

import errno
import logging
from pathlib import Path
from unittest.mock import patch

import pytest

from synergai.errors import InvalidInput
from synergai.models.directory import ModelDirectory
from synergai.models.formats.model_files import ignored_configs, why_no_model
from synergai.models.manifest import pack
from tests.unit.worker_agent.inventory.conftest import Loads
from worker_agent.inventory import Inventory

NOTE = "config.pbtxt is ignored: max_batch in engine.toml replaces max_batch_size"


def put(models: Path, name: str, config: str, file: str = "") -> Path:
    """Make a folder of a model repository; with a version if that has a file."""
    engine = models / name
    engine.mkdir(parents=True)
    (engine / "config.pbtxt").write_text(config)
    if file:
        for version in ("1", "2"):
            (engine / version).mkdir()
            (engine / version / file).write_bytes(b"model")
    return engine


async def test_ignored_configuration_is_logged_once_per_engine_also_of_new_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = tmp_path / "models"
    put(models, "old", "max_batch_size: 8", "model.onnx")
    inventory = Inventory(models, tmp_path / "engines.json", Loads(), parallel=1)
    with caplog.at_level(logging.WARNING):
        await inventory.discover()
        put(models, "new", "max_batch_size: 8", "model.onnx")
        for _ in range(3):
            await inventory.find_changes()
    noted = [each.getMessage() for each in caplog.records if NOTE in each.getMessage()]
    assert [message.partition("/config")[0] for message in noted] == [
        str(models / "old"),
        str(models / "new"),
    ]


def test_folder_that_may_not_be_read_is_not_noted(tmp_path: Path) -> None:
    refused = PermissionError(errno.EACCES, "Permission denied")
    with patch("os.stat", side_effect=refused):
        assert ignored_configs([tmp_path / "locked"]) == []
        assert why_no_model(tmp_path / "locked") == ""


def test_configuration_of_empty_lines_is_read_in_no_time(tmp_path: Path) -> None:
    """Matches would overlap, were blanks to cross lines: 15 kB would take seconds."""
    engine = put(tmp_path, "empty", "\n" * 500_000 + "ensemble_scheduling {}")
    assert "an ensemble" in why_no_model(engine)


@pytest.mark.parametrize(
    ("config", "file", "reason"),
    [
        ('name: "e"\nplatform: "ensemble"\n', "", "describes an ensemble"),
        ("ensemble_scheduling {\n  step [ ]\n}\n", "", "describes an ensemble"),
        ('backend: "python"\n', "model.py", "Triton's Python backend"),
        ("max_batch_size: 8", "model.py", "Triton's Python backend"),
        ('platform: "pytorch_libtorch"\n', "model.pt", "no model"),
    ],
)
def test_folder_without_a_model_is_refused_for_the_reason_that_it_has(
    tmp_path: Path, config: str, file: str, reason: str
) -> None:
    engine = put(tmp_path, "theirs", config, file)
    assert reason in ModelDirectory(tmp_path).get("theirs").fault
    with pytest.raises(InvalidInput, match=reason):
        pack(engine / "1" if file else engine, "theirs", 1)

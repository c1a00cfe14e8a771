import json
import os
from pathlib import Path

import pytest

from synergai.errors import Unavailable
from synergai.runtime.files import ready_file


def test_ready_file_holds_addresses_and_pid_while_the_service_runs(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    with ready_file(path, address="here:1"):
        assert json.loads(path.read_text()) == {"address": "here:1", "pid": os.getpid()}
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_written_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ready_file(None, address="here:1"):
        assert list(tmp_path.iterdir()) == []


def test_unwritable_ready_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "ready.json"
    with pytest.raises(Unavailable, match=r"cannot write .*nowhere"), ready_file(path):
        pytest.fail("it was written")

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from synergai.errors import Unavailable
from synergai.runtime.ready_file import ready_file

if TYPE_CHECKING:
    from pathlib import Path


def test_the_file_says_where_and_who_for_as_long_as_the_service_is_up(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    with ready_file(path, address="here:1"):
        assert json.loads(path.read_text()) == {"address": "here:1", "pid": os.getpid()}
    assert list(tmp_path.iterdir()) == []


def test_without_a_name_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ready_file(None, address="here:1"):
        assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_said_by_name(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "ready.json"
    with pytest.raises(Unavailable, match=r"cannot write .*nowhere"), ready_file(path):
        pytest.fail("it was written")

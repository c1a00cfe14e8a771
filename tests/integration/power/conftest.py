"""An emulated board per test."""

from pathlib import Path

import pytest

from tests.emulated_board.board import EmulatedBoard
from tests.emulated_board.kinds import AGX_XAVIER, XAVIER_NX


@pytest.fixture
def agx(tmp_path: Path) -> EmulatedBoard:
    return EmulatedBoard.create(AGX_XAVIER, tmp_path / "agx")


@pytest.fixture
def nx(tmp_path: Path) -> EmulatedBoard:
    return EmulatedBoard.create(XAVIER_NX, tmp_path / "nx")

"""Searches on emulated boards; the comparison with an exhaustive profile is in the script."""

from pathlib import Path

import pytest

from synergai.zoo import build as zoo
from tests.acceptance.profile_search import search_board
from tests.emulated_board.board import EmulatedBoard
from tests.emulated_board.kinds import AGX_XAVIER, XAVIER_NX, BoardKind


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [AGX_XAVIER, XAVIER_NX], ids=["agx", "nx"])
def test_modes_and_threads_of_a_board_are_searched(kind: BoardKind, tmp_path: Path) -> None:
    board = EmulatedBoard.create(kind, tmp_path / "board")
    zoo.build("onnx_identity", tmp_path / "models")
    figures = search_board(board.root, tmp_path / "models", tmp_path)
    print(figures)
    assert isinstance(figures["measured_modes"], list)
    assert figures["measured_modes"] == figures["modes"]
    measured, predicted = figures["measured"], figures["predicted"]
    assert isinstance(measured, int)
    assert isinstance(predicted, int)
    assert measured < predicted
    switches = [call for call in board.calls() if " -m " in call]
    assert len(switches) >= len(figures["measured_modes"])

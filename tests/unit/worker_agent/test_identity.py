"""The token that an agent presents."""

from pathlib import Path

import pytest

from synergai.errors import InvalidInput
from worker_agent.hub_client.identity import read_token


def test_token_is_that_of_the_file_and_otherwise_of_the_variable(tmp_path: Path) -> None:
    assert read_token(None, "") == ""
    assert read_token(None, "of the variable") == "of the variable"
    path = tmp_path / "token"
    path.write_text("of the file\n")
    assert read_token(path, "of the variable") == "of the file"


def test_token_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(InvalidInput, match=r"--token-file .*: No such file"):
        read_token(path, "of the variable")
    path.write_text("\n")
    with pytest.raises(InvalidInput, match=r"--token-file .* is empty"):
        read_token(path, "")
    path.write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match=r"--token-file .*: it is not text"):
        read_token(path, "")

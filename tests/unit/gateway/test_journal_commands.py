"""``synergai gateway check`` of a journal: what it prints, and its exit codes."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from gateway.journal.files import lock
from gateway.journal.journal import Journal
from synergai.cli import main as cli
from synergai.domain import EngineName
from synergai.runtime.database import connect


@pytest.fixture
def state(tmp_path: Path) -> Path:
    async def create() -> None:
        journal = Journal(tmp_path / "state")
        await journal.add_engines([EngineName("echo")])
        await journal.close()

    asyncio.run(create())
    return tmp_path / "state"


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exited:
        cli.main(["gateway", *map(str, arguments)])
    output = capsys.readouterr()
    return int(exited.value.code or 0), output.out, output.err


def test_intact_journal_is_reported(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("check", "--state", state, capsys=capsys)
    assert (code, "intact" in out) == (0, True), out
    held = lock(state)  # as by a gateway
    try:
        code, out, _ = run("check", "--state", state, capsys=capsys)
    finally:
        os.close(held)
    assert (code, "intact" in out) == (0, True), out


def test_file_in_place_of_the_state_directory_is_told_so(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run("check", "--state", state / "journal.db", capsys=capsys)
    assert (code, "is a file: --state names the directory" in err) == (1, True)


def test_journal_of_another_version_is_not_called_damaged(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = connect(state / "journal.db")
    connection.execute("PRAGMA user_version=9")
    connection.close()
    code, out, _ = run("check", "--state", state, capsys=capsys)
    assert (code, "it has version 9, and this SynergAI reads version" in out) == (1, True)
    assert "damaged" not in out


def test_damaged_journal_is_reported_with_exit_code_1(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "journal.db").write_bytes(b"")
    code, out, _ = run("check", "--state", state, "--json", capsys=capsys)
    [checked] = json.loads(out)
    assert (code, "damaged" in checked["fault"]) == (1, True)
    code, out, _ = run("check", "--state", state, capsys=capsys)
    assert (code, "damaged" in out) == (1, True)

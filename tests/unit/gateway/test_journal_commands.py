"""``synergai journal``: what it prints, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gateway.journal.journal import Journal
from synergai.cli import main as cli
from synergai.domain import EngineName

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def state(tmp_path: Path) -> Path:
    async def create() -> None:
        journal = Journal(tmp_path / "state")
        await journal.add_engines([EngineName("echo")])
        await journal.close()

    asyncio.run(create())
    return tmp_path / "state"


def run(*arguments: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run ``synergai journal``; return its exit code, standard output and standard error."""
    with pytest.raises(SystemExit) as exited:
        cli.main(["journal", *map(str, arguments)])
    output = capsys.readouterr()
    return int(exited.value.code or 0), output.out, output.err


def test_intact_journal_is_reported_and_copied(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run("check", "--state", state, capsys=capsys)
    assert (code, "intact" in out) == (0, True)
    for command in ("backup", "restore"):
        code, out, _ = run(command, tmp_path / "b.db", "--state", state, "--json", capsys=capsys)
        report = json.loads(out)
        assert (code, report["ok"], report["unfinished"]) == (0, True, 0)


def test_damaged_journal_is_reported_with_exit_code_1(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "journal.db").write_bytes(b"")
    code, out, _ = run("check", "--state", state, "--json", capsys=capsys)
    assert (code, json.loads(out)["ok"]) == (1, False)
    code, out, _ = run("check", "--state", state, capsys=capsys)
    assert (code, "damaged" in out) == (1, True)


def test_gateway_on_a_damaged_journal_says_what_to_do(state: Path) -> None:
    (state / "journal.db").write_bytes(b"")
    ports = [text for name in ("listen", "hub", "http") for text in (f"--{name}", "127.0.0.1:0")]
    done = subprocess.run(
        [sys.executable, "-m", "synergai", "gateway", "--state", str(state), *ports],
        capture_output=True,
        text=True,
        check=False,
    )
    error = done.stderr
    assert done.returncode == 1
    assert "error: the journal" in error
    assert "synergai journal restore" in error
    assert "Traceback" not in error


def test_missing_journal_is_one_line_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, error = run("check", "--state", tmp_path, capsys=capsys)
    assert (code, out) == (1, "")
    assert error.startswith("error: there is no journal in ")

"""``synergai journal``: what it prints, and its exit codes."""

import asyncio
import json
import os
from pathlib import Path

import apsw
import pytest

from gateway.journal.files import lock
from gateway.journal.journal import Journal
from synergai.cli import main as cli
from synergai.domain import EngineName
from synergai.runtime.database import find_faults


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
        cli.main(["journal", *map(str, arguments)])
    output = capsys.readouterr()
    return int(exited.value.code or 0), output.out, output.err


def test_intact_journal_is_reported_and_copied(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run("check", "--state", state, capsys=capsys)
    assert (code, "intact" in out) == (0, True)
    for command in ("backup", "restore"):
        code, out, _ = run(command, tmp_path / "b.db", "--state", state, capsys=capsys)
        assert (code, "intact" in out, "unfinished jobs  0" in out) == (0, True, True), out


def test_backup_names_the_copy_and_says_nothing_of_a_gateway(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = lock(state)  # as by a gateway
    try:
        _, out, _ = run("check", "--state", state, capsys=capsys)
        assert "running" in out
        code, out, _ = run("backup", tmp_path / "b.db", "--state", state, capsys=capsys)
    finally:
        os.close(held)
    rows = [line.split()[0] for line in out.splitlines()]
    assert (code, rows[:3]) == (0, ["backup", "copy", "state"])
    assert "running" not in out


def test_file_in_place_of_the_state_directory_is_told_so(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (("check",), ("backup", tmp_path / "b.db")):
        code, _, err = run(*arguments, "--state", state / "journal.db", capsys=capsys)
        assert (code, "is a file: --state names the directory" in err) == (1, True)


def test_damaged_journal_is_reported_with_exit_code_1(
    state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (state / "journal.db").write_bytes(b"")
    code, out, _ = run("check", "--state", state, "--json", capsys=capsys)
    assert (code, json.loads(out)["ok"]) == (1, False)
    code, out, _ = run("check", "--state", state, capsys=capsys)
    assert (code, "damaged" in out) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_a_restore_by_root_belong_to_the_owner_of_the_directory(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("backup", tmp_path / "b.db", "--state", state, capsys=capsys)
    new = tmp_path / "new"
    new.mkdir()
    os.chown(new, 1234, 1234)
    assert run("restore", tmp_path / "b.db", "--state", new, capsys=capsys)[0] == 0
    assert {file.name: file.stat().st_uid for file in new.iterdir()} == {
        "lock": 1234,
        "journal.db": 1234,
        "journal.marker": 1234,
    }


def test_backup_is_private_while_it_is_written(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: set[int] = set()

    def look(connection: apsw.Connection, *, thorough: bool = False) -> list[str]:
        modes.update(file.stat().st_mode & 0o777 for file in tmp_path.glob(".b.db*"))
        return find_faults(connection, thorough=thorough)

    monkeypatch.setattr("gateway.journal.archive.find_faults", look)
    assert run("backup", tmp_path / "b.db", "--state", state, capsys=capsys)[0] == 0
    assert modes == {0o600}
    assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".b.db*"))


def test_backup_to_a_missing_directory_is_one_line_on_standard_error(
    state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "missing" / "b.db"
    code, out, error = run("backup", target, "--state", state, capsys=capsys)
    assert (code, out) == (1, "")
    assert error.startswith(f"error: cannot write {target}: No such file")

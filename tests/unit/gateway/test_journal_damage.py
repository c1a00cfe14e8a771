"""A journal that lacks what was acknowledged is refused, and one that does not never is."""

import asyncio
import json
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.journal import archive
from gateway.journal.files import lock
from gateway.journal.journal import Journal
from gateway.journal.schema import VERSION
from gateway.journal.sqlite_store import Mark, read_marker, write_marker
from gateway.journal.store import JournalBroken, JournalDamaged
from synergai.cli import main as cli
from synergai.domain import EngineName
from synergai.runtime.database import connect
from tests.unit.gateway.test_journal import FILES, a_record, copied, jobs_in

JOBS = 40


async def accepted(journal: Journal, jobs: int = JOBS) -> None:
    for number in range(jobs):
        await journal.accept(a_record(f"job-{number}"), f"key-{number}")


@pytest.fixture
async def stopped(tmp_path: Path) -> Path:
    """Return the directory of a gateway that was stopped."""
    journal = Journal(tmp_path / "stopped")
    await accepted(journal)
    await journal.close()
    return tmp_path / "stopped"


@pytest.fixture
async def crashed(tmp_path: Path) -> Path:
    """Return the directory of a gateway that was killed."""
    journal = Journal(tmp_path / "live")
    await accepted(journal)
    copy = copied(tmp_path / "live", tmp_path / "crashed")
    await journal.close()
    return copy


def contents(directory: Path) -> dict[str, bytes]:
    read = {name: (directory / name).read_bytes() for name in FILES if (directory / name).exists()}
    return {name: content for name, content in read.items() if content}


async def test_journal_of_a_stopped_or_killed_gateway_is_complete(
    stopped: Path, crashed: Path
) -> None:
    for directory in (stopped, crashed):
        assert not archive.check(directory)
        assert (await jobs_in(directory))[1] == JOBS


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [emptied, lambda path: path.unlink()])
@pytest.mark.parametrize("name", ["journal.db", "journal.db-wal"])
async def test_lost_file_is_noticed_and_nothing_is_changed(
    crashed: Path, damage: Callable[[Path], None], name: str
) -> None:
    damage(crashed / name)
    before = contents(crashed)
    with pytest.raises(JournalDamaged, match="gateway restore"):
        Journal(crashed)
    assert archive.check(crashed)
    assert contents(crashed) == before


async def test_lost_marker_is_noticed(stopped: Path) -> None:
    (stopped / "journal.marker").unlink()
    with pytest.raises(JournalDamaged, match=r"journal\.marker"):
        Journal(stopped)


async def test_earlier_copy_of_the_database_is_noticed(tmp_path: Path, stopped: Path) -> None:
    earlier = copied(stopped, tmp_path / "earlier")
    journal = Journal(stopped)
    await journal.accept(a_record("later"))
    await journal.close()
    shutil.copy(earlier / "journal.db", stopped / "journal.db")
    with pytest.raises(JournalDamaged, match="commits are lost"):
        Journal(stopped)


@pytest.mark.parametrize("state", ["stopped", "crashed"])
async def test_flipped_bit_is_noticed_or_harmless(
    stopped: Path, crashed: Path, tmp_path: Path, state: str
) -> None:
    directory = {"stopped": stopped, "crashed": crashed}[state]
    noticed = 0
    for name in FILES:
        if not (directory / name).exists():
            continue
        size = (directory / name).stat().st_size
        for number, position in enumerate(range(7, size, max(1, size // 40))):
            copy = copied(directory, tmp_path / f"{name}-{number}")
            damaged = bytearray((copy / name).read_bytes())
            damaged[position] ^= 1 << number % 8
            (copy / name).write_bytes(damaged)
            try:
                assert (await jobs_in(copy))[1] == JOBS
            except JournalDamaged:
                noticed += 1
            shutil.rmtree(copy)
    assert noticed > 30


async def test_truncated_log_of_a_killed_gateway_is_noticed(crashed: Path) -> None:
    log = crashed / "journal.db-wal"
    content = log.read_bytes()
    log.write_bytes(content[: len(content) // 2])
    with pytest.raises(JournalDamaged, match="commits are lost"):
        Journal(crashed)


@pytest.mark.parametrize("left", [(), ("journal.db",)])
async def test_interrupted_creation_is_not_damage(tmp_path: Path, left: tuple[str, ...]) -> None:
    write_marker(tmp_path / "journal.marker", Mark())
    for name in left:
        (tmp_path / name).touch()
    assert (await jobs_in(tmp_path))[1] == 0


async def test_torn_progress_of_the_marker_is_ignored(crashed: Path) -> None:
    marker = crashed / "journal.marker"
    content = marker.read_bytes()
    marker.write_bytes(content[:512] + content[512:540] + bytes(484))
    assert read_marker(marker) == Mark(epoch=1, commits=1)
    assert (await jobs_in(crashed))[1] == JOBS


def test_progress_of_an_earlier_epoch_is_ignored(tmp_path: Path) -> None:
    marker = tmp_path / "journal.marker"
    write_marker(marker, Mark(1, 9))
    before = marker.read_bytes()
    write_marker(marker, Mark(2, 3))
    marker.write_bytes(marker.read_bytes()[:512] + before[512:])
    assert read_marker(marker) == Mark(2, 3)


def test_new_marker_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "journal.marker"
    synced: list[tuple[Path, Mark | None]] = []
    monkeypatch.setattr(
        "gateway.journal.sqlite_store.sync_path",
        lambda directory: synced.append((directory, read_marker(marker))),
    )
    write_marker(marker, Mark())
    assert synced == [(tmp_path, Mark())]


async def test_marker_counts_every_commit_and_no_reads(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    await accepted(journal, 3)
    await journal.unfinished_jobs()
    assert read_marker(tmp_path / "journal.marker") == Mark(epoch=1, commits=4)
    await journal.close()
    assert read_marker(tmp_path / "journal.marker") == Mark(epoch=1, commits=4)


async def test_marker_of_another_version_is_not_damage(stopped: Path) -> None:
    marker = stopped / "journal.marker"
    fields = f"synergai-journal {VERSION + 1} and more"
    marker.write_text(f"{fields} {zlib.crc32(fields.encode()):08x}".ljust(511) + "\n")
    with pytest.raises(JournalBroken, match=f"it has version {VERSION + 1}, and this SynergAI"):
        Journal(stopped)
    assert archive.check(stopped).startswith(f"it has version {VERSION + 1}, ")


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

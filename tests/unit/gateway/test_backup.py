"""Backups of a state directory: complete, private, checked before they replace anything."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.backup import back_up, restore
from gateway.cli import app
from gateway.fleet.versions import POLICY_FILE, PolicyFile, VersionPolicy
from gateway.journal.files import CLUSTER, MARKER, lock
from gateway.journal.journal import Journal
from gateway.journal.record_log import Record, RecordLog
from gateway.journal.sqlite_store import Mark, read_marker, write_marker
from gateway.journal.store import JournalDamaged
from profiler.dictionary.files import add_to_dictionary, load_dictionary
from synergai.domain import Configuration
from synergai.errors import InvalidInput, NotFound, SynergaiError, Unavailable
from synergai.runtime.paths import dictionary_path
from tests.cores import new_entry
from tests.unit.gateway.test_journal import a_record, jobs_in

POLICY = {"echo": VersionPolicy(base="1")}
LOG = Path("data", "tenant-", "results", "job-0")
ENTRY = new_entry("echo", "nx", 10.0, Configuration(2))


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Journal]:
    """The journal of a state directory that has everything, as of a gateway that runs."""
    state = tmp_path / "state"
    journal = Journal(state)
    for number in range(3):
        await journal.accept(a_record(f"job-{number}"), f"key-{number}")
    await PolicyFile(state).write(POLICY)
    add_to_dictionary(dictionary_path(state), [ENTRY])
    log = RecordLog(state / LOG)
    log.append([Record(0, [b"a result"])])
    log.sync()
    log.close()
    for name, text in (("engines/echo/1.json", "{}"), ("content/ab/abc", "x"), ("store-id", "7")):
        (state / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (state / "store" / name).write_text(text)
    (state / "store-id").write_text("7")
    (state / "store" / "content" / ".new-1").write_text("being written")
    yield journal
    await journal.close()


@pytest.fixture
async def state(running: Journal, tmp_path: Path) -> Path:
    """The directory, once the gateway has stopped."""
    await running.close()
    return tmp_path / "state"


def found(folder: Path, pattern: str) -> list[Path]:
    return list(folder.rglob(pattern))


def results(state: Path) -> list[bytes]:
    log = RecordLog(state / LOG)
    try:
        return log.read(0, 10, 1000)
    finally:
        log.close()


async def test_backup_of_a_running_gateway_has_everything_that_it_keeps(
    running: Journal, tmp_path: Path
) -> None:
    back_up(tmp_path / "state", tmp_path / "backup")
    restore(tmp_path / "new", tmp_path / "backup")
    new = tmp_path / "new"
    # Its gateway may have started again since, so it continues behind what it cannot know.
    assert await jobs_in(new) == (running.epoch + 1001, 3)
    assert PolicyFile(new).read() == POLICY
    assert list(load_dictionary(dictionary_path(new))) == [ENTRY]
    assert results(new) == [b"a result"]
    stored = {path.name for path in found(new / "store", "*") if path.is_file()}
    assert stored == {"1.json", "abc", "store-id"}
    assert (new / "store-id").read_text() == "7"


async def test_restore_where_another_gateway_has_started_continues_behind_unseen_epochs(
    running: Journal, tmp_path: Path
) -> None:
    back_up(tmp_path / "state", tmp_path / "backup")
    new = tmp_path / "new"
    await jobs_in(new)
    restore(new, tmp_path / "backup")
    assert await jobs_in(new) == (running.epoch + 1001, 3)


async def test_restore_continues_behind_the_last_epoch_of_the_directory(
    state: Path, tmp_path: Path
) -> None:
    back_up(state, tmp_path / "backup")
    write_marker(state / MARKER, Mark(epoch=5000))
    restore(state, tmp_path / "backup")
    assert await jobs_in(state) == (5001, 3)


async def test_restore_replaces_what_came_later_and_keeps_it_aside(
    state: Path, tmp_path: Path
) -> None:
    (state / POLICY_FILE).unlink()
    back_up(state, tmp_path / "backup")
    await PolicyFile(state).write(POLICY)
    journal = Journal(state)
    await journal.accept(a_record("later"))
    (tmp_path / "settings").mkdir()
    with pytest.raises(Unavailable, match="stop it first"):
        restore(state, tmp_path / "backup")
    epoch = journal.epoch
    await journal.close()
    restore(state, tmp_path / "backup")
    later, jobs = await jobs_in(state)
    assert later > epoch
    assert jobs == 3
    assert PolicyFile(state).read() == {}
    [replaced] = found(state, "replaced-*")
    assert PolicyFile(replaced).read() == POLICY
    assert (replaced / "journal.db").stat().st_size


async def test_restored_files_are_durable_before_a_gateway_may_start(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []

    def sync(path: Path) -> None:
        mark = read_marker(state / MARKER)
        synced.append((path.name, mark is not None and mark.restoring))

    monkeypatch.setattr("gateway.journal.archive.sync_path", sync)
    back_up(state, tmp_path / "backup")
    restore(state, tmp_path / "backup")
    [replaced] = found(state, "replaced-*")
    assert synced == [("journal.db", False), (replaced.name, True), (state.name, True)]


async def test_settings_are_copied_and_put_back_on_demand(state: Path, tmp_path: Path) -> None:
    settings = tmp_path / "etc"
    settings.mkdir(mode=0o755)
    (settings / "access.toml").write_text("quotas")
    back_up(state, tmp_path / "backup", settings)
    (settings / "access.toml").write_text("changed")
    restore(state, tmp_path / "backup")
    assert (settings / "access.toml").read_text() == "changed"
    restore(state, tmp_path / "backup", settings)
    assert (settings / "access.toml").read_text() == "quotas"
    assert settings.stat().st_mode & 0o777 == 0o755
    [before] = found(tmp_path, "etc.replaced-*")
    assert (before / "access.toml").read_text() == "changed"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("journal.db", "cannot be restored"),
        ("dictionary.db", "checksum"),
        (POLICY_FILE, "damaged"),
        ("backup.json", "damaged"),
    ],
)
async def test_damaged_backup_changes_nothing(
    state: Path, tmp_path: Path, name: str, reason: str
) -> None:
    backup = tmp_path / "backup"
    back_up(state, backup)
    content = bytearray((backup / name).read_bytes())
    content[len(content) // 2] ^= 1
    (backup / name).write_bytes(content)
    with pytest.raises(SynergaiError, match=reason):
        restore(state, backup)
    assert not found(state, "replaced-*")
    assert not found(state, ".restored-*")
    assert (await jobs_in(state))[1] == 3


async def test_incomplete_or_missing_backup_changes_nothing(state: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    back_up(state, backup)
    with pytest.raises(InvalidInput, match="already exists"):
        back_up(state, backup)
    shutil.rmtree(backup / "data")
    with pytest.raises(InvalidInput, match=r"incomplete: data/.* is missing"):
        restore(state, backup)
    with pytest.raises(NotFound, match=r"it has no backup\.json"):
        restore(state, tmp_path / "missing")
    with pytest.raises(NotFound, match="--state"):
        back_up(tmp_path / "missing", tmp_path / "other")
    assert (await jobs_in(state))[1] == 3


async def test_interrupted_restore_is_refused_until_it_is_repeated(
    state: Path, tmp_path: Path
) -> None:
    back_up(state, tmp_path / "backup")
    write_marker(state / "journal.marker", Mark(1, 2, restoring=True))
    with pytest.raises(JournalDamaged, match="restore was interrupted"):
        Journal(state)
    restore(state, tmp_path / "backup")
    assert (await jobs_in(state))[1] == 3


@pytest.mark.usefixtures("running")
async def test_what_can_be_read_of_a_damaged_journal_can_be_restored(tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    shutil.copytree(tmp_path / "state", crashed)
    log = crashed / "journal.db-wal"
    log.write_bytes(log.read_bytes()[:-5000])
    back_up(crashed, tmp_path / "rest")
    restore(crashed, tmp_path / "rest")
    assert 0 < (await jobs_in(crashed))[1] < 3


async def test_backup_without_the_journal_of_a_database_restores_the_rest(
    state: Path, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shutil.copytree(state, shared, ignore=shutil.ignore_patterns("journal.*"))
    (shared / CLUSTER).write_text("cluster 3\n")
    backup = back_up(shared, tmp_path / "backup")
    assert not backup.has_journal
    shutil.rmtree(shared / "data")
    restore(shared, tmp_path / "backup")
    assert results(shared) == [b"a result"]
    assert (shared / CLUSTER).read_text() == "cluster 3\n"
    with pytest.raises(InvalidInput, match="has a journal of its own"):
        restore(state, tmp_path / "backup")


async def test_only_the_owner_can_read_a_backup(state: Path, tmp_path: Path) -> None:
    back_up(state, tmp_path / "backup")
    files = [
        path for path in found(tmp_path / "backup", "*") if path.name.endswith((".db", ".json"))
    ]
    assert (tmp_path / "backup").stat().st_mode & 0o077 == 0
    assert {path.stat().st_mode & 0o077 for path in files if "store" not in path.parts} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_files_of_a_restore_by_root_belong_to_the_owner_of_the_directory(
    state: Path, tmp_path: Path
) -> None:
    back_up(state, tmp_path / "backup")
    new = tmp_path / "new"
    new.mkdir()
    os.chown(new, 1234, 1234)
    restore(new, tmp_path / "backup")
    assert {path.stat().st_uid for path in found(new, "*")} == {1234}


async def test_commands_say_what_they_did_and_where_it_fails(state: Path, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        done = CliRunner(env={"COLUMNS": "240"}).invoke(app, [*arguments, "--state", str(state)])
        return done.exit_code, done.output + str(done.exception or "")

    backup = str(tmp_path / "backup")
    code, printed = await asyncio.to_thread(run, "backup", backup)
    assert (code, "included" in printed, str(state) in printed) == (0, True, True), printed
    assert (await asyncio.to_thread(run, "restore", backup))[0] == 0
    code, printed = await asyncio.to_thread(run, "backup", str(tmp_path / "missing" / "b"))
    assert (code, f"cannot write {tmp_path / 'missing'}: No such file" in printed) == (1, True)
    held = lock(state)
    code, printed = await asyncio.to_thread(run, "restore", backup)
    os.close(held)
    assert (code, "stop it first" in printed) == (1, True)


def test_settings_keep_their_owners_if_root_restores_them(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, restored = tmp_path / "etc", tmp_path / "restored"
    (settings / "tls").mkdir(parents=True)
    (settings / "tls" / "key.pem").write_text("secret")
    owners: dict[object, tuple[int, int]] = {}

    def chown(path: object, uid: int, gid: int, **_: object) -> None:
        owners[path] = uid, gid

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", chown)
    back_up(state, tmp_path / "backup", settings)
    restore(state, tmp_path / "backup", restored)
    owner = settings.stat().st_uid, settings.stat().st_gid
    for path in (restored, restored / "tls", restored / "tls" / "key.pem"):
        assert owners[path] == owner

"""Checksums of the dictionary's database: damage is noticed, older files are upgraded."""

from __future__ import annotations

import json
import random
import shutil
from contextlib import closing
from pathlib import Path
from unittest import mock

import apsw
import pytest
from typer.testing import CliRunner

from synergai.cli.dictionary import app
from synergai.errors import InvalidInput
from synergai.profiles.files import add_to_dictionary, check_dictionary, load_dictionary
from synergai.profiles.service import ProfileService
from synergai.profiles.store import DictionaryDamaged, DictionaryStore
from synergai.runtime import database
from synergai.runtime.database import connect
from tests.unit.profiles.test_storage import OLD_DICTIONARY, an_entry, change, content

ENTRIES = [an_entry(f"engine-{number:03}", 1.0 + number) for number in range(200)]
FLIPS = 200
PAGE = 4096
CHECKSUM_VFS = database._CHECKSUM_VFS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a dictionary with many pages."""
    add_to_dictionary(tmp_path / "d.db", ENTRIES)
    return tmp_path / "d.db"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return the path of a dictionary that an earlier version wrote, without checksums."""
    return Path(shutil.copy(OLD_DICTIONARY, tmp_path / "old.db"))


def flip(path: Path, offset: int, bits: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= bits
    path.write_bytes(data)


def has_checksums(path: Path) -> bool | None:
    return check_dictionary(path).checksums


def test_flipped_byte_is_refused_or_harmless(path: Path) -> None:
    rng = random.Random(1)
    whole, expected = path.read_bytes(), set(ENTRIES)
    refused = harmless = 0
    header = range(100)
    offsets = [*header, *(rng.randrange(len(whole)) for _ in range(FLIPS - len(header)))]
    for offset in offsets:
        flip(path, offset, rng.randrange(1, 256))
        damaged = path.read_bytes()
        try:
            read = content(load_dictionary(path))
        except InvalidInput as error:
            refused += str(path) in str(error)
        else:
            harmless += read == expected
        assert path.read_bytes() == damaged
        path.write_bytes(whole)
    assert refused + harmless == FLIPS
    assert refused > FLIPS * 0.9
    assert content(load_dictionary(path)) == expected


def test_damage_names_the_file_the_fault_and_the_ways_out(path: Path) -> None:
    flip(path, 3 * PAGE)
    for use in (load_dictionary, lambda path: add_to_dictionary(path, []), ProfileService):
        with pytest.raises(DictionaryDamaged, match="the checksum of a page is wrong") as raised:
            use(path)
        assert str(path) in str(raised.value)
        assert "export FILE.csv --salvage" in str(raised.value)


def test_file_that_has_lost_its_checksums_is_refused(old: Path) -> None:
    change(old, "PRAGMA user_version = 3")
    with pytest.raises(DictionaryDamaged, match="lost their checksums"):
        load_dictionary(old)


async def test_gateway_adds_checksums_to_an_older_file_and_commands_do_not(old: Path) -> None:
    entries = content(load_dictionary(old))
    add_to_dictionary(old, [])
    assert not has_checksums(old)
    profiles = ProfileService(old)
    await profiles.close()
    assert has_checksums(old)
    assert content(load_dictionary(old)) == entries


def test_damage_of_an_older_file_is_not_sealed(old: Path) -> None:
    add_to_dictionary(old, ENTRIES)
    flip(old, 2 * PAGE)  # the type of a page
    before = old.read_bytes()
    with pytest.raises(DictionaryDamaged):
        ProfileService(old)
    assert old.read_bytes() == before


def test_connections_that_were_open_before_follow_the_upgrade(old: Path) -> None:
    add_to_dictionary(old, ENTRIES)
    with DictionaryStore(old) as reader, DictionaryStore(old) as writer:
        reader.load()
        with DictionaryStore(old) as upgrading:
            upgrading.upgrade()
        writer.put_all([an_entry("later")])
        assert an_entry("later") in content(reader.load())
        assert reader.has_checksums
        assert writer.has_checksums
        writer.delete(lambda entry: entry.qps > 100.0)
    assert not check_dictionary(old).fault


async def test_older_file_in_use_gets_its_checksums_at_a_later_start(
    old: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("synergai.profiles.store.BUSY_TIMEOUT_MS", 0)
    with closing(connect(old)) as reader:
        rows = reader.execute("SELECT * FROM profile")
        next(rows)
        profiles = ProfileService(old)
        assert "is not upgraded yet" in caplog.text
        assert len(profiles.dictionary) == 2
        await profiles.close()
        rows.close()
    assert not has_checksums(old)
    await ProfileService(old).close()
    assert has_checksums(old)


class _SnapshottingVfs(apsw.VFS):
    """Copies database and journal after each of their changes, as a crash leaves them."""

    def __init__(self, path: Path) -> None:
        super().__init__("snapshotting", CHECKSUM_VFS)
        self.path = path
        self.snapshots: list[dict[str, bytes]] = []

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        return _SnapshottingFile(name, flags, self)

    def xDelete(self, name: str, sync_directory: bool) -> None:  # noqa: N802 - SQLite's
        super().xDelete(name, sync_directory)
        self.snap()

    def snap(self) -> None:
        files = (self.path, self.path.with_name(f"{self.path.name}-journal"))
        self.snapshots.append({each.name: each.read_bytes() for each in files if each.exists()})


class _SnapshottingFile(apsw.VFSFile):
    def __init__(
        self, name: str | apsw.URIFilename | None, flags: list[int], vfs: _SnapshottingVfs
    ) -> None:
        super().__init__(CHECKSUM_VFS, name, flags)
        self._vfs = vfs

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite's name
        super().xWrite(data, offset)
        self._vfs.snap()

    def xTruncate(self, size: int) -> None:  # noqa: N802 - SQLite's name
        super().xTruncate(size)
        self._vfs.snap()


def test_crash_during_the_upgrade_leaves_the_older_file_or_the_new_one(
    old: Path, tmp_path: Path
) -> None:
    add_to_dictionary(old, ENTRIES[:100])
    entries = content(load_dictionary(old))
    vfs = _SnapshottingVfs(old)
    with (
        mock.patch.object(database, "_CHECKSUM_VFS", "snapshotting"),
        DictionaryStore(old) as store,
    ):
        store.upgrade()
    vfs.unregister()

    upgraded = set()
    for number, snapshot in enumerate(vfs.snapshots):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name, data in snapshot.items():
            (folder / name).write_bytes(data)
        copy = folder / old.name
        assert content(load_dictionary(copy)) == entries
        upgraded.add(has_checksums(copy))
        with DictionaryStore(copy) as store:
            store.upgrade()
        assert has_checksums(copy)
        assert content(load_dictionary(copy)) == entries
    assert upgraded == {False, True}


def test_writer_waits_for_another_one_before_it_reads(path: Path) -> None:
    with closing(connect(path)) as other, DictionaryStore(path) as store:
        other.execute("BEGIN IMMEDIATE")
        waited = []

        def commit_other(attempt: int) -> bool:
            waited.append(attempt)
            other.execute("COMMIT")
            return True

        store._connection.set_busy_handler(commit_other)
        store.put_all([an_entry("waiting")])
        assert waited == [0]
    assert an_entry("waiting") in content(load_dictionary(path))


def test_what_can_be_read_is_exported(path: Path, tmp_path: Path) -> None:
    flip(path, (path.stat().st_size // PAGE // 2) * PAGE + 200)
    target = tmp_path / "rest.csv"
    arguments = ["export", str(target), "--dictionary", str(path)]
    assert isinstance(CliRunner().invoke(app, arguments).exception, DictionaryDamaged)
    assert CliRunner().invoke(app, [*arguments, "--salvage"]).exit_code == 0
    rest = content(load_dictionary(target))
    assert len(ENTRIES) / 2 < len(rest) < len(ENTRIES)
    assert rest < set(ENTRIES)


def test_nothing_to_export_is_said(path: Path, tmp_path: Path) -> None:
    flip(path, 50)
    arguments = ["export", str(tmp_path / "rest.csv"), "--dictionary", str(path), "--salvage"]
    assert "nothing of" in str(CliRunner().invoke(app, arguments).exception)
    assert not (tmp_path / "rest.csv").exists()


def test_check_reports_the_state(path: Path, old: Path) -> None:
    def check(file: Path) -> tuple[int, dict[str, object]]:
        done = CliRunner().invoke(app, ["check", "--dictionary", str(file), "--json"])
        return done.exit_code, json.loads(done.stdout)

    code, report = check(path)
    assert (code, report["ok"], report["entries"], report["checksums"]) == (0, True, 200, True)
    assert check(old)[1]["checksums"] is False
    flip(path, 3 * PAGE)
    code, report = check(path)
    assert (code, report["fault"]) == (1, "the checksum of a page is wrong")
    shown = CliRunner().invoke(app, ["check", "--dictionary", str(path)])
    assert "damaged: the checksum of a page is wrong" in shown.output

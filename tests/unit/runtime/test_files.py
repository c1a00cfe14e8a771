"""Files of services: those that are shared, and those that say that a service is ready."""

import json
import os
import random
import threading
from pathlib import Path

import pytest

from synergai.errors import Unavailable
from synergai.runtime.files import StateDamaged, StateFile, StateUnusable, ready_file

FLIPS = 100


def numbers(directory: Path) -> StateFile[dict[str, int]]:
    return StateFile(directory / "numbers.json", dict[str, int], "Remove it")


def test_value_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = numbers(tmp_path)
    assert file.read() is None
    file.write({"a": 1})
    assert numbers(tmp_path).read() == {"a": 1}
    assert file.path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"sha256": ""}', '{"version": 1}'])
def test_damage_is_an_error_with_the_way_out(tmp_path: Path, text: str) -> None:
    (tmp_path / "numbers.json").write_text(text)
    with pytest.raises(StateDamaged, match=r"numbers\.json is damaged: .*\. Remove it$"):
        numbers(tmp_path).read()


def test_another_version_is_named_and_not_called_damage(tmp_path: Path) -> None:
    (tmp_path / "numbers.json").write_text('{"version": 7, "values": "in a form of its own"}')
    with pytest.raises(StateUnusable, match="has version 7, and this SynergAI reads version 1"):
        numbers(tmp_path).read()


def test_flipped_byte_is_refused_or_harmless(tmp_path: Path) -> None:
    rng = random.Random(1)
    expected = {f"number-{number}": number for number in range(40)}
    file = numbers(tmp_path)
    file.write(expected)
    whole = file.path.read_bytes()
    refused = harmless = 0
    for _ in range(FLIPS):
        data = bytearray(whole)
        data[rng.randrange(len(whole))] ^= rng.randrange(1, 256)
        file.path.write_bytes(data)
        try:
            harmless += numbers(tmp_path).read() == expected
        except StateUnusable as error:
            refused += str(file.path) in str(error)
    assert refused + harmless == FLIPS
    assert refused > FLIPS * 0.9


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_created_by_root_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1234)
    file = numbers(tmp_path)
    with file.locked():
        file.write({"a": 1})
    assert {path.stat().st_uid for path in tmp_path.iterdir()} == {1234}


def test_changes_under_the_lock_do_not_overwrite_each_other(tmp_path: Path) -> None:
    numbers(tmp_path).write({"a": 0})

    def count() -> None:
        file = numbers(tmp_path)
        for _ in range(20):
            with file.locked():
                file.write({"a": (file.read() or {})["a"] + 1})

    threads = [threading.Thread(target=count) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(tmp_path).read() == {"a": 60}


def test_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="cannot be written"):
        numbers(tmp_path / "missing").write({})


def test_ready_file_holds_addresses_and_pid_while_the_service_runs(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    with ready_file(path, address="here:1"):
        assert json.loads(path.read_text()) == {"address": "here:1", "pid": os.getpid()}
    assert list(tmp_path.iterdir()) == []


def test_no_file_is_written_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with ready_file(None, address="here:1"):
        assert list(tmp_path.iterdir()) == []


def test_unwritable_ready_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "ready.json"
    with pytest.raises(Unavailable, match=r"cannot write .*nowhere"), ready_file(path):
        pytest.fail("it was written")

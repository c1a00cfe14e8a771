"""Files that are read again when they change."""

import asyncio
from pathlib import Path

import pytest

from gateway.entry.access.table import WatchedFile
from synergai.errors import InvalidInput


async def test_change_reaches_followers_and_an_invalid_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "number"
    path.write_text("1")

    def read() -> int:
        text = path.read_text()
        if not text.isdecimal():
            raise InvalidInput(f"{path}: {text!r} is not a number")
        return int(text)

    seen: list[int] = []
    watched = WatchedFile("number", path, read)
    watched.follow(seen.append)
    await watched.look()
    assert seen == [1]
    for text in ("20", "three", "400"):
        await asyncio.to_thread(path.write_text, text)
        await watched.look()
    assert seen == [1, 20, 400]
    assert watched.rejected == 1
    assert "keeping the previous number" in caplog.text


async def test_change_that_is_being_written_is_read_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "number"
    path.write_text("1")

    def read() -> str:
        text = path.read_text()
        if not text:  # an editor has just emptied the file
            path.write_text("20")
        return text

    watched = WatchedFile("number", path, read)
    seen: list[str] = []
    watched.follow(seen.append)
    await asyncio.to_thread(path.write_text, "")
    await watched.look()
    assert seen == ["1"]
    await watched.look()
    assert seen == ["1", "20"]


async def test_bug_in_one_follower_or_the_reader_does_not_end_the_watching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "number"
    path.write_text("1")
    watched = WatchedFile("number", path, lambda: 6 // int(path.read_text()))
    seen: list[int] = []

    def broken(number: int) -> None:
        if number == 3:
            raise KeyError(number)

    watched.follow(broken)
    watched.follow(seen.append)
    for text in ("02", "0", "003"):
        await asyncio.to_thread(path.write_text, text)
        await watched.look()
    assert seen == [6, 3, 2]
    assert watched.rejected == 1
    assert "keeping the previous number: integer division or modulo by zero" in caplog.text
    assert "did not follow the number" in caplog.text

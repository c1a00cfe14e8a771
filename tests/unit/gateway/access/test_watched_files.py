"""Files that are read again when they change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.access.watched_files import WatchedFiles
from synergai.errors import InvalidInput

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


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
    watched = WatchedFiles("number", [path], read)
    watched.follow(seen.append)
    await watched.look()
    assert seen == [1]
    for text in ("20", "three", "400"):
        await asyncio.to_thread(path.write_text, text)
        await watched.look()
    assert seen == [1, 20, 400]
    assert watched.rejected == 1
    assert "keeping the previous number" in caplog.text

"""State that the leader keeps in the database of its journal."""

import asyncio
from pathlib import Path
from typing import cast

import pytest

from gateway.journal import shared_state
from gateway.journal.journal import Journal
from gateway.journal.shared_state import SharedState, StateDocuments
from synergai.errors import SynergaiError, Unavailable


class FakeJournal:
    def __init__(self) -> None:
        self.changed = asyncio.Event()

    async def change_documents(self, changed: dict[str, str], _removed: object) -> None:
        assert changed == {"policies": "new"}
        self.changed.set()


@pytest.mark.parametrize("error", [Unavailable("the dictionary is locked"), OSError("no file")])
async def test_changes_are_recorded_once_the_state_can_be_read_again(
    error: SynergaiError | OSError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = [error, {"policies": "new"}]

    def read(_documents: StateDocuments) -> object:
        outcome = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(shared_state, "_LOOK_S", 0.0)
    monkeypatch.setattr(StateDocuments, "read", read)
    journal = FakeJournal()
    shared = SharedState(cast("Journal", journal), tmp_path, tmp_path / "dictionary.db")
    following = asyncio.create_task(shared.follow())
    waiting = asyncio.create_task(journal.changed.wait())
    await asyncio.wait([following, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert not following.done()
    following.cancel()
    await asyncio.wait([following])
    await shared.close()

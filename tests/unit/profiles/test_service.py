"""Observed profiles are written to the dictionary file."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from synergai.domain import Configuration, EngineName, WorkerClass
from synergai.profiles.dictionary import ProfileEntry
from synergai.profiles.files import load_dictionary
from synergai.profiles.service import ProfileService

if TYPE_CHECKING:
    from pathlib import Path


async def test_observed_entry_is_stored_with_its_date(tmp_path: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    profiles = ProfileService(tmp_path / "dictionary.db")
    profiles.record(
        ProfileEntry(
            engine=EngineName("digits"),
            worker_class=WorkerClass("cloud"),
            configuration=Configuration(2),
            qps=100.0,
            label="observed",
        )
    )
    await profiles.close()

    [entry] = load_dictionary(tmp_path / "dictionary.db")
    assert entry.label == "observed"
    assert before <= datetime.fromisoformat(entry.measured_at) <= datetime.now(UTC)

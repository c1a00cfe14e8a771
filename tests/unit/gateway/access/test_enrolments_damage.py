"""Checksums of the enrolled workers, by which damage is noticed."""

import random
from pathlib import Path

import pytest

from gateway.entry.access.table import AllowedWorkers
from gateway.entry.access.workers import (
    ENROLMENTS_FILE,
    EnrolmentStore,
    JoiningWorker,
    WorkerRules,
    sha256,
)
from synergai.errors import Unavailable

FLIPS = 100


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a state directory with workers that enrolled."""
    store = EnrolmentStore(tmp_path)
    for number in range(12):
        name = f"worker-{number}"
        store.enrol(store.issue(name, "nx", 1e9, 0.0), name, "nx", sha256(name), 0.0)
    return tmp_path


def flip(file: Path, offset: int, bits: int = 1) -> None:
    data = bytearray(file.read_bytes())
    data[offset] ^= bits
    file.write_bytes(data)


def test_flipped_byte_is_refused_or_harmless(state: Path) -> None:
    rng = random.Random(1)
    file = state / ENROLMENTS_FILE
    whole = file.read_bytes()
    store = EnrolmentStore(state)
    expected = store.workers()
    refused = harmless = 0
    for _ in range(FLIPS):
        flip(file, rng.randrange(len(whole)), rng.randrange(1, 256))
        try:
            store = EnrolmentStore(state)
            read = store.workers()
        except Unavailable as error:
            refused += str(file) in str(error)
        else:
            harmless += read == expected
        file.write_bytes(whole)
    assert refused + harmless == FLIPS
    assert refused > FLIPS * 0.9


async def nothing() -> None:
    pass


async def test_worker_that_cannot_join_is_not_told_where_the_enrolments_are(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = WorkerRules(state, nothing)
    rules.set_rows((AllowedWorkers(id="*", worker_class="nx"),))
    token = EnrolmentStore(state).issue("", "", 1e12, 0.0)
    flip(state / ENROLMENTS_FILE, 200)
    joining = JoiningWorker(id="new", worker_class="nx", secret_sha256=sha256("new"))
    with pytest.raises(Unavailable, match="worker new cannot join now") as raised:
        await rules.admit(joining, token)
    assert str(state) not in str(raised.value)
    assert str(state) in caplog.text
    await rules.close()

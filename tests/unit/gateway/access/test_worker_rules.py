"""Which workers may join, how they enrol, and what they may serve."""

import json
import os
import random
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from gateway.cli import app, parse_time
from gateway.entry.access.table import AllowedWorkers
from gateway.entry.access.workers import (
    ENROLMENTS_FILE,
    EnrolmentStore,
    JoiningWorker,
    WorkerRules,
    sha256,
)
from gateway.journal.files import lock
from synergai.domain import Engine, EngineName, Variant
from synergai.errors import InvalidInput, NotFound, PermissionDenied, Unauthenticated, Unavailable

NOW = 1_000_000.0
DIGEST, OTHER = "a" * 64, "b" * 64
ENROLLED = AllowedWorkers(id="edge-*", worker_class="nx")
CERTIFIED = AllowedWorkers(id="*", certificate="spiffe://example.org/{class}/{id}")


async def nothing() -> None:
    pass


@pytest.fixture
async def rules(tmp_path: Path) -> AsyncIterator[WorkerRules]:
    rules = WorkerRules(tmp_path, nothing, clock=lambda: NOW)
    yield rules
    await rules.close()


@pytest.fixture
def token(tmp_path: Path) -> str:
    store = EnrolmentStore(tmp_path)
    return store.issue("", "", NOW + 60, NOW)


def joining(
    worker_id: str = "edge-1", worker_class: str = "nx", secret: str = "", certificate: str = ""
) -> JoiningWorker:
    return JoiningWorker(
        id=worker_id,
        worker_class=worker_class,
        certificate_names=frozenset({certificate} if certificate else ()),
        secret_sha256=sha256(secret) if secret else b"",
    )


def files_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_everyone_may_join_and_serve_everything_without_a_table(
    rules: WorkerRules, engine: Engine, tmp_path: Path
) -> None:
    await rules.admit(joining())
    assert rules.engine_fault(joining(), engine) == ""
    assert files_in(tmp_path) == []


async def test_empty_or_removed_section_admits_no_worker(rules: WorkerRules) -> None:
    rules.set_rows(None)
    assert not rules.active
    rules.set_rows((ENROLLED,))
    for rows in ((), None):
        rules.set_rows(rows)
        with pytest.raises(PermissionDenied, match="no row for worker 'edge-1' of class 'nx'"):
            await rules.admit(joining())


async def test_secret_is_proof_after_a_token_was_used(rules: WorkerRules, token: str) -> None:
    rules.set_rows((ENROLLED,))
    with pytest.raises(Unauthenticated, match="synergai gateway enroll"):
        await rules.admit(joining(secret="s"))
    await rules.admit(joining(secret="s"), token)
    await rules.admit(joining(secret="s"))
    await rules.admit(joining(secret="s"), token)  # presented again after a lost reply
    for impostor in (joining(secret="x"), joining()):
        with pytest.raises(Unauthenticated):
            await rules.admit(impostor)
    with pytest.raises(Unauthenticated, match="was used by worker 'edge-1'"):
        await rules.admit(joining("edge-2", secret="x"), token)


async def test_enrolment_is_saved_before_the_worker_is_told_so(tmp_path: Path, token: str) -> None:
    save = AsyncMock()
    rules = WorkerRules(tmp_path, save, clock=lambda: NOW)
    rules.set_rows((ENROLLED,))
    assert await rules.admit(joining(secret="s"), token)
    save.assert_awaited_once()
    await rules.close()


async def test_id_and_class_must_match_a_row_before_a_token_is_spent(
    rules: WorkerRules, token: str
) -> None:
    rules.set_rows((ENROLLED,))
    for stranger in (joining("cloud-1", secret="s"), joining(worker_class="agx", secret="s")):
        with pytest.raises(PermissionDenied, match="no row"):
            await rules.admit(stranger, token)
    await rules.admit(joining(secret="s"), token)


async def test_secret_does_not_prove_another_class(rules: WorkerRules, token: str) -> None:
    rules.set_rows((AllowedWorkers(id="*"),))
    await rules.admit(joining(secret="s"), token)
    with pytest.raises(Unauthenticated):
        await rules.admit(joining(worker_class="agx", secret="s"))


async def test_certificate_proves_id_and_class(rules: WorkerRules, token: str) -> None:
    rules.set_rows((CERTIFIED,))
    own = "spiffe://example.org/nx/edge-1"
    await rules.admit(joining(certificate=own))
    for impostor in (
        joining("edge-2", certificate=own),
        joining(worker_class="agx", certificate=own),
        joining(certificate="edge-1"),
        joining(),
    ):
        with pytest.raises(Unauthenticated, match="needs a certificate for 'spiffe://"):
            await rules.admit(impostor)
    # A token does not replace a certificate.
    with pytest.raises(Unauthenticated):
        await rules.admit(joining(secret="s"), token)


async def test_proof_is_what_was_verified_not_what_was_presented(
    rules: WorkerRules, token: str
) -> None:
    own = "spiffe://example.org/nx/edge-1"
    both = joining(secret="s", certificate=own)
    assert rules.proof(both) == "none", "everyone may join"
    rules.set_rows((ENROLLED,))
    assert rules.proof(both) == "none"
    await rules.admit(both, token)
    assert rules.proof(both) == "secret"
    rules.set_rows((CERTIFIED,))
    assert rules.proof(both) == "certificate"


async def test_revocation_and_removed_rows_are_noticed(
    rules: WorkerRules, token: str, tmp_path: Path
) -> None:
    rules.set_rows((ENROLLED,))
    worker = joining(secret="s")
    await rules.admit(worker, token)
    assert rules.refusal(worker) is None
    rules.set_rows(())
    assert isinstance(rules.refusal(worker), PermissionDenied)
    store = EnrolmentStore(tmp_path)
    store.revoke("edge-1", NOW)
    await rules.load()
    rules.set_rows((ENROLLED,))
    assert isinstance(rules.refusal(worker), Unauthenticated)
    with pytest.raises(Unauthenticated, match="has been revoked"):
        await rules.admit(worker, token)


async def test_engines_and_digests_are_limited_by_the_row(
    rules: WorkerRules, engine: Engine
) -> None:
    row = replace(CERTIFIED, engines=("ech*",), digests={"echo": frozenset({DIGEST})})
    rules.set_rows((row,))
    worker = joining(certificate="spiffe://example.org/nx/edge-1")
    listed, unlisted = replace(engine, digest=DIGEST), replace(engine, digest=OTHER)
    assert rules.engine_fault(worker, listed) == ""
    assert "its file, of SHA-256 bbbb" in rules.engine_fault(worker, unlisted)
    variants = (Variant(name="full", digest=DIGEST), Variant(name="half", digest=OTHER))
    assert "of SHA-256 bbbb" in rules.engine_fault(worker, replace(listed, variants=variants))
    other = replace(engine, name="resnet", digest=OTHER)
    assert "does not allow this worker" in rules.engine_fault(worker, other)
    pending = replace(engine, fault="it is being inspected", pending=True)
    assert rules.engine_fault(worker, pending) == ""


async def test_worker_fetches_only_what_its_row_lets_it_serve(rules: WorkerRules) -> None:
    worker = joining(certificate="spiffe://example.org/nx/edge-1")
    assert rules.may_have(worker, EngineName("resnet"), OTHER)
    rules.set_rows((replace(CERTIFIED, engines=("ech*",), digests={"echo": frozenset({DIGEST})}),))
    assert rules.may_have(worker, EngineName("echo"), DIGEST)
    assert not rules.may_have(worker, EngineName("echo"), OTHER)
    assert rules.may_have(worker, EngineName("echo-2"), OTHER)
    assert not rules.may_have(worker, EngineName("resnet"), DIGEST)


HOUR = 3600.0


@pytest.fixture
def store(tmp_path: Path) -> EnrolmentStore:
    return EnrolmentStore(tmp_path)


def issue(store: EnrolmentStore, worker_id: str = "", worker_class: str = "") -> str:
    return store.issue(worker_id, worker_class, NOW + HOUR, NOW)


def enrol(
    store: EnrolmentStore, token: str, worker_id: str = "w1", secret: str = "s1", now: float = NOW
) -> None:
    store.enrol(token, worker_id, "nx", sha256(secret), now)


def test_token_enrols_one_worker_once(store: EnrolmentStore) -> None:
    token = issue(store)
    enrol(store, token)
    [worker] = store.workers()
    assert (worker.id, worker.enrolled_at) == ("w1", NOW)
    assert worker.is_proved_by("nx", sha256("s1"))
    assert not worker.is_proved_by("nx", sha256("s2"))
    assert not worker.is_proved_by("agx", sha256("s1"))
    with pytest.raises(Unauthenticated, match="was used by worker 'w1'"):
        enrol(store, token, "w2")
    assert len(store.workers()) == 1


def test_neither_token_nor_secret_is_stored(store: EnrolmentStore, tmp_path: Path) -> None:
    token = issue(store)
    enrol(store, token, secret="the secret itself")
    content = (tmp_path / ENROLMENTS_FILE).read_bytes()
    assert token.encode() not in content
    assert b"the secret itself" not in content
    assert (tmp_path / ENROLMENTS_FILE).stat().st_mode & 0o077 == 0


def test_expired_and_unknown_tokens_are_refused(store: EnrolmentStore) -> None:
    token = issue(store)
    with pytest.raises(Unauthenticated, match="has expired"):
        enrol(store, token, now=NOW + HOUR)
    with pytest.raises(Unauthenticated, match="unknown to this gateway's --state; create a token"):
        enrol(store, "guessed")
    assert store.workers() == []


def test_token_is_bound_to_id_and_class(store: EnrolmentStore) -> None:
    with pytest.raises(Unauthenticated, match="is for worker 'w9'"):
        enrol(store, issue(store, worker_id="w9"))
    with pytest.raises(Unauthenticated, match="is for class 'agx'"):
        enrol(store, issue(store, worker_class="agx"))
    enrol(store, issue(store, "w1", "nx"))


@pytest.mark.parametrize("revoked", [False, True])
def test_enrolled_id_is_only_given_away_by_a_token_for_it(
    store: EnrolmentStore, *, revoked: bool
) -> None:
    enrol(store, issue(store))
    if revoked:
        store.revoke("w1", NOW)
    with pytest.raises(Unauthenticated, match="was enrolled before"):
        enrol(store, issue(store), secret="other")
    enrol(store, issue(store, worker_id="w1"), secret="new")
    [worker] = store.workers()
    assert worker.is_proved_by("nx", sha256("new"))
    assert not worker.is_proved_by("nx", sha256("s1"))


def test_revoked_secret_proves_nothing(store: EnrolmentStore) -> None:
    enrol(store, issue(store))
    store.revoke("w1", NOW + 1)
    store.revoke("w1", NOW + 2)
    [worker] = store.workers()
    assert worker.revoked_at == NOW + 1
    assert not worker.is_proved_by("nx", sha256("s1"))
    with pytest.raises(NotFound, match="no enrolled worker 'w2'"):
        store.revoke("w2", NOW)


def test_one_of_two_racing_agents_wins(store: EnrolmentStore, tmp_path: Path) -> None:
    token = issue(store)
    start = threading.Barrier(2)
    outcomes: list[str] = []

    def race(name: str) -> None:
        own = EnrolmentStore(tmp_path)
        start.wait()
        try:
            enrol(own, token, name, name)
        except Unauthenticated as error:
            outcomes.append(str(error))
        else:
            outcomes.append("enrolled")

    racers = [threading.Thread(target=race, args=(name,)) for name in ("w1", "w2")]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    [winner] = store.workers()
    outcomes.remove("enrolled")
    assert f"was used by worker {winner.id!r}" in outcomes[0]


def test_changes_of_other_processes_are_seen(store: EnrolmentStore, tmp_path: Path) -> None:
    enrol(store, issue(store))
    store.workers()
    assert not store.changed()
    command = EnrolmentStore(tmp_path)
    command.revoke("w1", NOW)
    assert store.changed()
    store.workers()
    assert not store.changed()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_file_created_by_root_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    os.chown(tmp_path, 1234, 1234)
    issue(EnrolmentStore(tmp_path))
    assert (tmp_path / ENROLMENTS_FILE).stat().st_uid == 1234


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


def run(*arguments: str, state: Path) -> str:
    result = CliRunner().invoke(app, [*arguments, "--state", str(state)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_printed_token_enrols_the_worker_that_it_is_for(tmp_path: Path) -> None:
    os.close(lock(tmp_path))
    token = run("enroll", "--worker-id", "w1", "--ttl", "30m", state=tmp_path)
    assert run("workers", "list", state=tmp_path).startswith("no worker is enrolled")
    store = EnrolmentStore(tmp_path)
    store.enrol(token, "w1", "nx", sha256("secret"), 0.0)
    [listed] = json.loads(run("workers", "list", "--json", state=tmp_path))
    assert (listed["id"], listed["worker_class"], listed["revoked_at"]) == ("w1", "nx", "")
    run("workers", "revoke", "w1", state=tmp_path)
    [listed] = json.loads(run("workers", "list", "--json", state=tmp_path))
    assert listed["revoked_at"]
    assert "w1" in run("workers", "list", state=tmp_path)
    with pytest.raises(NotFound, match="no enrolled worker 'w2'"):
        run("workers", "revoke", "w2", state=tmp_path)


def test_token_is_only_made_for_a_directory_that_a_gateway_has_used(tmp_path: Path) -> None:
    for state in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotFound, match="is no gateway's state directory"):
            run("enroll", state=state)
    assert not list(tmp_path.iterdir())


def test_token_says_for_which_gateway_it_is_and_whether_that_runs(tmp_path: Path) -> None:
    held = lock(tmp_path)
    said = CliRunner().invoke(app, ["enroll", "--state", str(tmp_path)]).stderr
    assert said.endswith(f"at the gateway of {tmp_path}.\n")
    os.close(held)
    said = CliRunner().invoke(app, ["enroll", "--state", str(tmp_path)]).stderr
    assert said.endswith(f"at the gateway of {tmp_path}, which is not running.\n")


@pytest.mark.parametrize("text", ["", "0h", "-1h", "1w", "nan", "inf", "forever"])
def test_invalid_validity_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="30m"):
        parse_time(text)

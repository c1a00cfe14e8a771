"""Which workers may join, and what they may serve."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gateway.entry.access.table import AllowedWorkers
from gateway.entry.access.workers import EnrolmentStore, JoiningWorker, WorkerRules, sha256
from synergai.domain import Engine, EngineName, Variant
from synergai.errors import PermissionDenied, Unauthenticated

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
